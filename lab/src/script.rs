//! The two shell scripts that one guest runs.
//!
//! ```text
//! init.sh     in the initrd: mounts /ctl, the folder these scripts come in
//! └ boot.sh   modules, the host's files under an overlay, then the new root
//!   └ session network and devices, the command, its exit code, the kernel's log, power off
//! ```
//!
//! What the session leaves in `ctl/`: `stdout`, `stderr`, `dmesg`, then `exit` (by rename, so it is whole), or
//! `failed` with the step that went wrong before the command could start. In a pair the guest then stays until the
//! host makes `off`: a peer may still wait for its last acknowledgement.

use std::fmt::Write;

use crate::{
    fabric::{Link, Role},
    spec::{FOLDER, Memlock, Spec, Variable},
    wire,
};

/// What every guest has in its environment, and what depends on the fabrics.
pub(crate) fn environment(spec: &Spec) -> Vec<Variable> {
    let mut list = vec![
        Variable::new("GIMMAL_LAB", "1"),
        Variable::new("GIMMAL_LAB_OUT", format!("{FOLDER}/out")),
        Variable::new("XDG_RUNTIME_DIR", format!("{FOLDER}/user")),
    ];
    match spec.role {
        Some(role) => {
            let fabrics = if spec.fabrics.links().is_empty() { "" } else { "rxe" };
            list.extend([
                Variable::new("GIMMAL_LAB_FABRICS", fabrics),
                Variable::new("GIMMAL_LAB_ROLE", role.name()),
                Variable::new("GIMMAL_LAB_WIRE", format!("{FOLDER}/ctl/{}", wire::WISH)),
                Variable::new("GIMMAL_LOCAL_ADDR", role.addr()),
                Variable::new("GIMMAL_LOCAL_ADDR6", role.addr6()),
                Variable::new("GIMMAL_PEER_ADDR", role.peer().addr()),
                Variable::new("GIMMAL_PEER_ADDR6", role.peer().addr6()),
            ]);
        }
        None => {
            list.push(Variable::new("GIMMAL_LAB_FABRICS", spec.fabrics.names()));
            for link in spec.fabrics.links() {
                let kind = link.kind.to_uppercase();
                list.push(Variable::new(&format!("GIMMAL_{kind}_ADDR"), link.addr));
                list.push(Variable::new(&format!("GIMMAL_{kind}_ADDR6"), link.addr6));
            }
        }
    }
    list.extend(spec.env.iter().cloned());
    list
}

const BOOT_HEAD: &str = r#"ctl=/ctl
must() { "$@" || { echo "$*" > $ctl/failed; off; }; }
# layer TAG FOLDER: the host's files, and over them a layer that takes what is written.
layer() {
    mkdir -p "/memory/$1/lower" "/memory/$1/upper" "/memory/$1/work"
    must share "$1" "/memory/$1/lower" ro,cache=loose
    cd "/memory/$1"
    must mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work layer "$2"
    cd /
}
"#;

/// Sourced by `init.sh`, with its functions.
pub(crate) fn boot(spec: &Spec) -> String {
    let mut groups: Vec<&str> = spec.fabrics.links().iter().map(|link| link.kind).collect();
    if spec.role.is_some() {
        groups.push("pair");
    }
    let mut text = String::from(BOOT_HEAD);
    for group in groups {
        line(&mut text, &format!("must load {group}"));
    }
    text.push_str("must mount -t tmpfs memory /memory\n");
    text.push_str("layer root /new\n");
    let _ = write!(
        text,
        "for folder in proc sys dev run; do [ -d /new/$folder ] || mkdir /new/$folder; done\n\
         must mount -t tmpfs run /new/run\n\
         mkdir -p /new{FOLDER}/ctl /new{FOLDER}/out\n\
         mkdir -m 700 /new{FOLDER}/user\n\
         must share out /new{FOLDER}/out cache=mmap\n\
         cp /bin/busybox /new{FOLDER}/busybox\n\
         for folder in proc sys dev; do must mount --move /$folder /new/$folder; done\n\
         must mount --move /ctl /new{FOLDER}/ctl\n\
         ctl=/new{FOLDER}/ctl\n\
         mkdir -p /new/dev/shm /new/dev/pts\n\
         must mount -t tmpfs -o mode=1777 shm /new/dev/shm\n\
         must mount -t devpts -o mode=620,ptmxmode=666 pts /new/dev/pts\n"
    );
    for (index, path) in spec.shares.iter().enumerate() {
        let folder = quote(&format!("/new{}", path.display()));
        line(&mut text, &format!("mkdir -p {folder}; layer share{index} {folder}"));
    }
    line(&mut text, &format!("exec switch_root /new /bin/sh {FOLDER}/ctl/session"));
    text
}

/// Process 1 of the guest from here on.
pub(crate) fn session(spec: &Spec) -> String {
    let mut text = String::from(SESSION_HEAD);
    network(&mut text, spec);
    text.push_str(SESSION_PIPES);
    text.push_str("(\n");
    for variable in environment(spec) {
        line(&mut text, &format!("    export {}={}", variable.name, quote(&variable.value)));
    }
    line(&mut text, &format!("    ulimit -l {}", memlock(spec.memlock)));
    line(&mut text, &format!("    cd {} || exit 126", quote(&spec.cwd.to_string_lossy())));
    let words: Vec<_> = spec.command.iter().map(|word| quote(word)).collect();
    line(&mut text, &format!("    exec {}", words.join(" ")));
    text.push_str(") < /dev/null > $L/stdout 2> $L/stderr\ncode=$?\n");
    text.push_str(SESSION_END);
    if spec.role.is_some() {
        text.push_str("while [ ! -e $L/ctl/off ]; do $B sleep 0.1; done\n");
    }
    text.push_str("off\n");
    text
}

const SESSION_HEAD: &str = r#"export PATH=/usr/sbin:/usr/bin:/sbin:/bin
L=/run/gimmal-lab
B=$L/busybox
off() { echo o > /proc/sysrq-trigger; $B sleep 60; }
must() { "$@" || { echo "$*" > $L/ctl/failed; off; }; }
# retry TRIES COMMAND: repeats a command every 0.1 s.
retry() {
    tries=$1; shift
    retries=0
    while ! "$@"; do
        retries=$((retries + 1))
        [ $retries -lt $tries ] || return 1
        $B sleep 0.1
    done
}
active() { $B grep -q ACTIVE /sys/class/infiniband/$1/ports/1/state; }
# An IPv4 address has reached the table that the RDMA CM looks it up in.
known() { $B grep -qs :ffff: /sys/class/infiniband/$1/ports/1/gids/*; }
ulimit -n 1048576
$B ifconfig lo up
"#;

const SESSION_PIPES: &str = r"# Pipes, not files: a program that opens /dev/stdout again must not cut off what came before.
must $B mkfifo $L/stdout $L/stderr
$B cat $L/stdout >> $L/ctl/stdout & copy_out=$!
$B cat $L/stderr >> $L/ctl/stderr & copy_err=$!
";

const SESSION_END: &str = r"# What the command left running may hold the pipes for ever; what it printed is through long before.
( $B sleep 2; kill $copy_out $copy_err ) 2> /dev/null &
wait $copy_out $copy_err
$B dmesg > $L/ctl/dmesg
echo $code > $L/ctl/exit.new
$B mv $L/ctl/exit.new $L/ctl/exit
";

fn network(text: &mut String, spec: &Spec) {
    let Some(role) = spec.role else {
        line(text, "$B hostname gimmal-lab");
        for link in spec.fabrics.links() {
            veth(text, link);
            device(text, link.kind, link.device, link.netdev);
        }
        return;
    };
    line(text, &format!("$B hostname {}", role.name()));
    for role in [Role::A, Role::B] {
        line(text, &format!("echo {} {} >> /etc/hosts", role.addr(), role.name()));
        line(text, &format!("echo {} {}6 >> /etc/hosts", role.addr6(), role.name()));
    }
    line(text, "must ip link set eth0 mtu 9000");
    up(text, "eth0", role.addr(), role.addr6());
    if !spec.fabrics.links().is_empty() {
        device(text, "rxe", "rxe0", "eth0");
    }
    line(text, &format!("must retry 100 $B ping -q -c 1 -W 1 {}", role.peer().addr()));
}

fn veth(text: &mut String, link: &Link) {
    line(
        text,
        &format!(
            "must ip link add {} mtu 9000 type veth peer name {} mtu 9000",
            link.netdev, link.netdev_peer
        ),
    );
    line(text, &format!("must ip link set {} up", link.netdev_peer));
    up(text, link.netdev, link.addr, link.addr6);
}

fn up(text: &mut String, netdev: &str, addr: &str, addr6: &str) {
    line(text, &format!("must ip link set {netdev} up"));
    line(text, &format!("must ip addr add {addr}/24 dev {netdev}"));
    line(text, &format!("must ip -6 addr add {addr6}/64 dev {netdev} nodad"));
}

fn device(text: &mut String, kind: &str, device: &str, netdev: &str) {
    line(text, &format!("must rdma link add {device} type {kind} netdev {netdev}"));
    line(text, &format!("must retry 50 active {device}"));
    if kind == "rxe" {
        line(text, &format!("must retry 50 known {device}"));
    }
}

/// The shell counts in KiB.
fn memlock(limit: Memlock) -> String {
    match limit {
        Memlock::Unlimited => "unlimited".to_owned(),
        Memlock::Bytes(bytes) => (bytes / 1024).to_string(),
    }
}

fn line(text: &mut String, content: &str) {
    text.push_str(content);
    text.push('\n');
}

/// One word for the shell, whatever is in it.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::fabric::Fabrics;

    fn spec(role: Option<Role>, fabrics: Fabrics) -> Spec {
        Spec {
            role,
            fabrics,
            command: vec!["echo".into(), "it's $HOME".into()],
            cwd: "/a b".into(),
            env: vec![Variable::new("HOME", "/home/x"), Variable::new("GIMMAL_LAB", "2")],
            shares: vec!["/data".into()],
            memlock: Memlock::Bytes(65536),
            mem_mb: 512,
            cpus: 2,
            nodes: 1,
        }
    }

    fn value(spec: &Spec, name: &str) -> Option<String> {
        environment(spec)
            .into_iter()
            .rev()
            .find(|variable| variable.name == name)
            .map(|variable| variable.value)
    }

    #[test]
    fn quoting_survives_a_shell() {
        for word in ["", "a b", "it's", "$(false) `x` \\ \" \n *"] {
            let script = format!("printf %s {}", quote(word));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn scripts_parse() {
        for role in [None, Some(Role::A), Some(Role::B)] {
            for fabrics in [Fabrics::Both, Fabrics::Rxe, Fabrics::None] {
                let spec = spec(role, fabrics);
                for script in [boot(&spec), session(&spec), include_str!("init.sh").to_owned()] {
                    let output = Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
                    assert!(output.status.success(), "{output:?}\n{script}");
                }
            }
        }
    }

    #[test]
    fn the_environment_tells_the_addresses() {
        let both = spec(None, Fabrics::Both);
        assert_eq!(value(&both, "GIMMAL_LAB_FABRICS").as_deref(), Some("rxe siw"));
        assert_eq!(value(&both, "GIMMAL_RXE_ADDR").as_deref(), Some("10.77.1.1"));
        assert_eq!(value(&both, "GIMMAL_SIW_ADDR6").as_deref(), Some("fd77:2::1"));
        assert_eq!(value(&both, "GIMMAL_LAB").as_deref(), Some("2"), "what the user sets wins");
        assert_eq!(value(&spec(None, Fabrics::Siw), "GIMMAL_RXE_ADDR"), None);

        let b = spec(Some(Role::B), Fabrics::Rxe);
        assert_eq!(value(&b, "GIMMAL_LOCAL_ADDR").as_deref(), Some("10.77.3.2"));
        assert_eq!(value(&b, "GIMMAL_PEER_ADDR").as_deref(), Some("10.77.3.1"));
        assert_eq!(value(&spec(Some(Role::A), Fabrics::None), "GIMMAL_LAB_FABRICS").as_deref(), Some(""));
    }

    #[test]
    fn only_what_is_asked_for_is_loaded() {
        let rxe = boot(&spec(None, Fabrics::Rxe));
        assert!(rxe.contains("load rxe") && !rxe.contains("load siw") && !rxe.contains("load pair"));
        let none = session(&spec(None, Fabrics::None));
        assert!(!none.contains("must rdma") && !none.contains("must ip"));
    }

    #[test]
    fn the_command_has_its_limits() {
        let text = session(&spec(None, Fabrics::None));
        assert!(text.contains("ulimit -l 64\n") && text.contains("cd '/a b' ||"), "{text}");
        assert!(text.contains(r"exec 'echo' 'it'\''s $HOME'"), "{text}");
    }
}
