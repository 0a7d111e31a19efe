//! Files in the folder that are another server's, another user's, or of another folder: what becomes of them, and what is said.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{FlockOperation, flock};

use super::{
    super::{connecting::other_folder, denied::refused},
    listen::{files_in, path_of},
    skip, *,
};
use crate::testing::process::{alone, role};

fn refusal(address: &Address) -> String {
    Shm.listen(address, &patient_listen()).unwrap_err().to_string()
}

/// A cleaner took both files, another server took the name, and then the first one ends.
#[test]
fn a_server_leaves_the_files_of_its_successor() {
    let (folder, address) = place();
    let first = listen(&address);
    let path = path_of(&address);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_extension("lock")).unwrap();
    let mut second = listen(&address);
    drop(first);
    assert_eq!(files_in(folder.path()), 2, "those of the second");
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let _links = links(&mut second, &gate, &gate);
    let third = refusal(&address);
    assert!(third.contains("uses it"), "{third}");
    drop(second);
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_refused_server_leaves_nothing() {
    let (folder, address) = place();
    std::fs::write(path_of(&address), "precious").unwrap();
    assert!(refusal(&address).contains("no socket"));
    assert_eq!(files_in(folder.path()), 1);
}

#[test]
fn names_of_locks_and_folders_are_refused_at_both_ends() {
    let (folder, _) = place();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    for (name, why) in
        [("a.lock", "does not end in .lock"), ("", "no name"), (".", "no name"), ("..", "no name")]
    {
        let address = Address::Shm { path: PathBuf::from(format!("{}/{name}", folder.path().display())) };
        assert!(refusal(&address).contains(why), "{address}");
        let error = connect(&address, &gate).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(files_in(folder.path()), 0);
}

/// What a forked child leaves: its parent's pid in a file whose lock somebody holds.
#[test]
fn the_holder_of_a_name_is_named() {
    let (_folder, address) = place();
    let mut file = File::create(path_of(&address).with_extension("lock")).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(refusal(&address).contains("a live process uses it"), "{}", refusal(&address));
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    writeln!(file, "{}", ended.id()).unwrap();
    let text = refusal(&address);
    assert!(text.contains(&format!("a child that process {} forked", ended.id())), "{text}");
    drop(file);
    drop(listen(&address));
}

#[test]
#[ignore = "the other process of another test"]
fn child_that_forks() {
    let Some(_) = role() else { return };
    let (folder, address) = place();
    let listener = listen(&address);
    // SAFETY: the child runs only the drop below and ends; what that locks, of this process's own code, no other thread holds.
    match unsafe { libc::fork() } {
        0 => {
            drop(listener);
            leave(0)
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).unwrap();
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
        }
    }
    assert_eq!(files_in(folder.path()), 2, "the parent's");
    drop(listener);
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_forked_child_removes_nothing() {
    alone("shm::tests::leftovers::child_that_forks");
}

/// Ends a forked child, with nothing of the parent's run again.
fn leave(code: i32) -> ! {
    // SAFETY: ends this process, and runs nothing that the parent's copy would run again.
    unsafe { libc::_exit(code) }
}

#[test]
#[ignore = "the other process of another test"]
fn child_that_forks_while_connected() {
    let Some(_) = role() else { return };
    let (mut server, mut client) = pair(4096);
    let mut exchange = |round: u32| {
        client.send(&pattern(round, 100), round);
        let frame = server.frame();
        assert_eq!(frame.tag().0, round);
        server.give_back(frame);
    };
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:gimmal")).count()
    };
    exchange(0);
    assert!(mapped() > 0, "rings are mapped here");
    for round in 1..20 {
        // SAFETY: the child reads files of /proc and ends. The other thread of this process only waits, and holds no lock.
        match unsafe { libc::fork() } {
            0 => leave(i32::from(mapped() > 0) + 2 * i32::from(!all_close_on_exec())),
            child => {
                let child = rustix::process::Pid::from_raw(child).unwrap();
                let options = rustix::process::WaitOptions::empty();
                let (_, status) = rustix::process::waitpid(Some(child), options).unwrap().unwrap();
                assert_eq!(
                    status.exit_status(),
                    Some(0),
                    "1: it has the rings; 2: exec would leave descriptors open"
                );
            }
        }
        exchange(round);
    }
}

/// Whether every descriptor of shared memory is closed by an exec.
fn all_close_on_exec() -> bool {
    let names =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fd.ok()?.file_name().into_string().ok());
    let kinds = ["memfd:gimmal", "socket:", "eventpoll", "eventfd"];
    let is_ours = |name: &String| {
        std::fs::read_link(format!("/proc/self/fd/{name}"))
            .is_ok_and(|to| kinds.iter().any(|kind| to.to_string_lossy().contains(kind)))
    };
    let ours: Vec<String> = names.filter(is_ours).collect();
    let closes = |name: &String| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & rustix::fs::OFlags::CLOEXEC.bits() != 0)
    };
    ours.len() > 3 && ours.iter().all(closes)
}

/// A child that is forked while connections are established has no ring to write to, closes all descriptors when it
/// becomes another program, and its end disturbs nobody.
#[test]
fn r81_a_forked_child_has_no_ring_and_its_end_disturbs_nobody() {
    alone("shm::tests::leftovers::child_that_forks_while_connected");
}

#[test]
fn what_the_file_system_refuses_names_the_file() {
    let (folder, address) = place();
    let (socket, file) = (path_of(&address), folder.path().join("socket.lock"));
    let text = |errno| refused(&socket, &file, "open", errno).to_string();
    let shown = file.display().to_string();
    for (errno, words) in [
        (Errno::NOSPC, "make room there"),
        (Errno::ROFS, "choose another folder"),
        (Errno::NXIO, "is no lock file"),
        (Errno::ISDIR, "is no lock file"),
    ] {
        assert!(text(errno).contains(words) && text(errno).contains(&shown), "{}", text(errno));
    }
    // It is not there: its folder is named.
    let uid = rustix::process::geteuid().as_raw();
    let denied = text(Errno::ACCESS);
    let shown = format!("{} belongs to uid {uid} and has mode", folder.path().display());
    assert!(denied.contains(&shown) && denied.contains("a folder that this user may write"), "{denied}");
    assert!(!denied.contains("remove it"), "{denied}");
    assert!(text(Errno::MFILE).contains("RLIMIT_NOFILE"), "{}", text(Errno::MFILE));
}

/// Another user's server was killed here, and this user's would take the name.
#[test]
fn leftovers_of_another_user_are_named() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (folder, address) = place();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let lock = path_of(&address).with_extension("lock");
    std::fs::write(&lock, "1").unwrap();
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o600)).unwrap();
    let theirs = address.clone();
    let text = std::thread::spawn(move || {
        let nobody = rustix::thread::Uid::from_raw(65534);
        // This thread alone: the system call, not the C library's wrapper.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        refusal(&theirs)
    });
    let text = text.join().unwrap();
    let shown =
        format!("{} belongs to uid 0 and has mode 0600, this process is of uid 65534", lock.display());
    assert!(text.contains(&shown) && text.contains("remove it if no server of that user runs"), "{text}");
    // Root may take over what nobody locks, also where fs.protected_regular forbids to create over it.
    std::os::unix::fs::chown(&lock, Some(65534), None).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    drop(listen(&address));
}

#[test]
fn a_name_in_another_folder_is_found() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let paths: Vec<PathBuf> = folders.iter().map(|folder| folder.path().to_owned()).collect();
    let at = |folder: &Path, name: &str| Address::Shm { path: folder.join(name) };
    let wanted = at(&paths[0], "kv");
    assert_eq!(other_folder(&wanted, &paths), None);
    std::fs::write(paths[1].join("kv"), "no socket").unwrap();
    let _server = listen(&at(&paths[2], "kv"));
    assert_eq!(other_folder(&wanted, &paths), Some(paths[2].clone()));
    assert_eq!(other_folder(&at(&paths[2], "kv"), &paths), None, "a path is looked for nowhere else");
    let error = ConnectError::OtherFolder { address: wanted.to_string(), found: paths[2].clone() };
    let text = error.to_string();
    assert!(text.contains(&paths[2].display().to_string()) && text.contains("XDG_RUNTIME_DIR"), "{text}");
    assert!(text.contains(&wanted.to_string()), "{text}");
}
