//! Where something was measured, and what there spoils the numbers.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// In every record: numbers from different places are not compared.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Environment {
    /// The processor's name.
    pub cpu: String,
    /// Cores that are on.
    pub cores: usize,
    /// The frequency governor; `None` without one, as in most virtual machines.
    pub governor: Option<String>,
    /// Whether this is a guest of a hypervisor.
    pub is_guest: bool,
    /// Its name and version.
    pub kernel: String,
    /// RDMA devices that are there.
    pub devices: Vec<String>,
    /// Huge pages: how many, how many of them free, and their size in KiB.
    pub huge_pages: [u64; 3],
    /// Whether shared memory gets huge pages by itself: always, within_size, advise, never; none where nobody knows.
    #[serde(default)]
    pub huge_shared: Option<String>,
    /// Processes that ran or wanted to, averaged over a minute, when the run began.
    pub load: f64,
    /// How the program was built: release or debug.
    pub build: String,
    /// What was built.
    pub commit: String,
}

/// The value of `name` in a file of lines with a colon.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

/// The first number of a field; 0 without.
fn number(text: &str, name: &str) -> u64 {
    let value = field(text, name).and_then(|value| value.split_whitespace().next()?.parse().ok());
    value.unwrap_or(0)
}

/// The word in brackets, as in `always [never]`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

impl Environment {
    /// Of this machine, where files are below `root`.
    #[must_use]
    pub fn read(root: &Path, core: usize) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpuinfo = text("proc/cpuinfo");
        let meminfo = text("proc/meminfo");
        let governor = text(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"));
        let flags = field(&cpuinfo, "flags").unwrap_or_default();
        let mut devices: Vec<String> = std::fs::read_dir(root.join("sys/class/infiniband"))
            .map(|found| {
                found.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            })
            .unwrap_or_default();
        devices.sort();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            governor: Some(governor.trim().to_owned()).filter(|governor| !governor.is_empty()),
            is_guest: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            kernel: text("proc/sys/kernel/osrelease").trim().to_owned(),
            devices,
            huge_pages: [
                number(&meminfo, "HugePages_Total"),
                number(&meminfo, "HugePages_Free"),
                number(&meminfo, "Hugepagesize"),
            ],
            huge_shared: chosen(&text("sys/kernel/mm/transparent_hugepage/shmem_enabled")),
            load: text("proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            commit: env!("GIMMAL_COMMIT").to_owned(),
        }
    }

    /// What spoils the numbers, each with what to do about it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of cores")]
    pub fn warnings(&self, cores: [usize; 2]) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |is_so: bool, what: String| warnings.extend(is_so.then_some(what));
        warn(
            self.build != "release",
            "this is a debug build: use ./x bench, or cargo build --release".to_owned(),
        );
        warn(
            cores[0] == cores[1],
            "client and server share a core: give them two with --cpus A,B".to_owned(),
        );
        warn(
            self.governor.as_deref().is_some_and(|governor| governor != "performance"),
            format!(
                "the frequency governor is {}: cpupower frequency-set -g performance (tuning.md, Frequency governor)",
                self.governor.as_deref().unwrap_or_default()
            ),
        );
        warn(
            self.load > (self.cores as f64 / 4.0).max(0.5),
            format!(
                "the load was {:.1} before the run: stop what else runs, or isolate the cores",
                self.load
            ),
        );
        warn(
            self.is_guest,
            "this is a virtual machine, whose host moves cores about: trust ratios of one run only"
                .to_owned(),
        );
        warnings
    }
}

/// Many connections need many descriptors.
pub(crate) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Too few are reported when they are missed, with the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(governor: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let cpu = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu hypervisor sse\n\nprocessor\t: 1\n";
        write("proc/cpuinfo", cpu);
        write(
            "proc/meminfo",
            "HugePages_Total:      12\nHugePages_Free:        7\nHugepagesize:       2048 kB\n",
        );
        write("proc/loadavg", "1.50 0.5 0.2 1/100 5\n");
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor);
        write("sys/class/infiniband/rxe0/node_type", "");
        write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [never]\n");
        root
    }

    #[test]
    fn a_machine_is_read_and_judged() {
        let root = machine("powersave\n");
        let found = Environment::read(root.path(), 0);
        assert_eq!((&*found.cpu, found.cores, found.is_guest), ("Fast CPU", 2, true));
        assert_eq!((found.governor.as_deref(), &*found.kernel), (Some("powersave"), "6.1.0"));
        assert_eq!((found.huge_pages, &found.devices), ([12, 7, 2048], &vec!["rxe0".to_owned()]));
        assert_eq!(found.huge_shared.as_deref(), Some("never"));
        let warnings = found.warnings([0, 0]).join("\n");
        for words in ["share a core", "governor is powersave", "load was 1.5", "virtual machine"] {
            assert!(warnings.contains(words), "{words}: {warnings}");
        }
    }

    #[test]
    fn a_good_machine_is_not_blamed_and_a_strange_one_is_read_too() {
        let root = machine("performance");
        let mut found = Environment::read(root.path(), 0);
        (found.is_guest, found.load, found.build) = (false, 0.1, "release".to_owned());
        assert_eq!(found.warnings([0, 1]), Vec::<String>::new());
        let empty = tempfile::tempdir().unwrap();
        let found = Environment::read(empty.path(), 0);
        assert_eq!((&*found.cpu, found.cores, found.governor), ("unknown", 0, None));
    }
}
