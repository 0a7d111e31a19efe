//! What calls cost besides time: processor time of both sides, and what the port, the worker and the device counted.

use std::{fmt, path::Path};

use gimmal_engine::{transport::PortCounters, worker::duty::DutySnapshot};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{
    target::Counted,
    work::{Work, of_threads},
};

/// Where devices count.
const DEVICES: &str = "/sys/class/infiniband";

/// In every record of a test with slices; of the test alone, without floors and others.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time of this process for a call, nanoseconds. A process that never sleeps uses its whole core.
    pub client_cpu_ns: Option<f64>,
    /// Processor time of the server for a call, if it is on this host, nanoseconds.
    pub server_cpu_ns: Option<f64>,
    /// What the client did for a call.
    #[serde(default)]
    pub client_work: Option<Work>,
    /// What the server did, when it is on this host.
    #[serde(default)]
    pub server_work: Option<Work>,
    /// Frames for each doorbell of the client: what was ready in one turn left together.
    pub frames_per_doorbell: Option<f64>,
    /// Of the client's port and worker (see tuning.md), and what of a device moved meanwhile, as in
    /// `rxe0/rcvd_rnr_err`.
    pub counters: Vec<Count>,
    /// What the connection runs with: asked, offered, granted.
    pub negotiated: Option<String>,
}

/// A counter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Count {
    /// Its name.
    pub name: String,
    /// By how much it grew.
    pub value: u64,
}

/// Processor time of this process, nanoseconds; of threads that have ended too.
fn own_cpu_ns() -> Option<u64> {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(used.tv_sec * 1_000_000_000 + used.tv_nsec).ok()
}

/// Processor time of all threads that a process has, nanoseconds. `None` when there is no such process.
#[must_use]
pub fn cpu_ns(process: u32) -> Option<u64> {
    of_threads(process, "schedstat", |text| text.split_whitespace().next()?.parse().ok())
}

/// Counters of all devices below `root`, by name.
fn device_counts(root: &Path) -> Vec<Count> {
    let mut counts = Vec::new();
    for device in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let folder = device.path().join("ports/1/hw_counters");
        for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let value = std::fs::read_to_string(file.path()).ok().and_then(|text| text.trim().parse().ok());
            let name =
                format!("{}/{}", device.file_name().to_string_lossy(), file.file_name().to_string_lossy());
            counts.extend(value.map(|value| Count { name, value }));
        }
    }
    counts.sort_by(|one, other| one.name.cmp(&other.name));
    counts
}

/// What a port and a worker count, under the names of their fields.
fn own_counts(port: &PortCounters, duty: &DutySnapshot, blocked: u64) -> Vec<Count> {
    let named = [
        ("doorbells", port.doorbells),
        ("frames_sent", port.frames_sent),
        ("frames_received", port.frames_received),
        ("sends", port.sends),
        ("write_imms", port.write_imms),
        ("signals", port.signals),
        ("reads", port.reads),
        ("read_bytes", port.read_bytes),
        ("turns", duty.turns),
        ("empty_turns", duty.empty_turns),
        ("sleeps", duty.sleeps),
        ("blocked", blocked),
    ];
    named.into_iter().map(|(name, value)| Count { name: name.to_owned(), value }).collect()
}

/// By how much each counter grew; those that did not are left out, but for `kept`.
fn grown(before: &[Count], after: Vec<Count>, kept: &[&str]) -> Vec<Count> {
    let grown = after.into_iter().map(|count| {
        let then = before.iter().find(|then| then.name == count.name).map_or(0, |then| then.value);
        Count { value: count.value.saturating_sub(then), ..count }
    });
    grown.filter(|count| count.value > 0 || kept.contains(&&*count.name)).collect()
}

/// Reads meters before and after.
#[derive(Debug)]
pub(crate) struct Meter {
    server: Option<u32>,
    before: Vec<Count>,
    devices: Vec<Count>,
    started: [Option<u64>; 2],
    used: [Option<u64>; 2],
}

impl Meter {
    /// Before the first call; `server` is on this host.
    pub(crate) fn start(server: Option<u32>, counted: &Counted) -> Self {
        Self {
            server,
            before: own_counts(&counted.port, &counted.duty, counted.blocked),
            devices: device_counts(Path::new(DEVICES)),
            started: [None; 2],
            used: [None; 2],
        }
    }

    fn read(&self) -> [Option<u64>; 2] {
        [own_cpu_ns(), self.server.and_then(cpu_ns)]
    }

    /// A stretch of calls begins.
    pub(crate) fn begin(&mut self) {
        self.started = self.read();
    }

    /// It ended.
    pub(crate) fn end(&mut self) {
        let now = self.read();
        for ((used, started), now) in self.used.iter_mut().zip(self.started).zip(now) {
            if let (Some(started), Some(now)) = (started, now) {
                *used = Some(used.unwrap_or(0) + now.saturating_sub(started));
            }
        }
    }

    /// After the last of `calls`.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub(crate) fn finish(self, calls: u64, counted: Counted) -> Cost {
        let each = |used: Option<u64>| used.map(|used| used as f64 / calls.max(1) as f64);
        let after = own_counts(&counted.port, &counted.duty, counted.blocked);
        let mut counters = grown(&self.before, after, &["doorbells", "blocked", "sleeps"]);
        let of = |name: &str| counters.iter().find(|count| count.name == name).map_or(0, |count| count.value);
        let (frames, doorbells) = (of("frames_sent"), of("doorbells"));
        counters.extend(grown(&self.devices, device_counts(Path::new(DEVICES)), &[]));
        if counted.negotiated.is_none() {
            counters.clear();
        }
        Cost {
            client_cpu_ns: each(self.used[0]),
            server_cpu_ns: each(self.used[1]),
            client_work: None,
            server_work: None,
            frames_per_doorbell: (doorbells > 0).then(|| frames as f64 / doorbells as f64),
            counters,
            negotiated: counted.negotiated,
        }
    }
}

impl Cost {
    /// A counter; 0 when it did not move.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.counters.iter().find(|count| count.name == name).map_or(0, |count| count.value)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |cpu: Option<f64>| cpu.map_or_else(|| "unknown".to_owned(), |cpu| format!("{cpu:.0} ns"));
        writeln!(
            f,
            "CPU of a call      {} here, {} there",
            side(self.client_cpu_ns),
            side(self.server_cpu_ns)
        )?;
        for (side, work) in [("here", self.client_work), ("there", self.server_work)] {
            if let Some(work) = work {
                writeln!(f, "work of a call      {work} {side}")?;
            }
        }
        if let Some(frames) = self.frames_per_doorbell {
            writeln!(f, "coalescing         {frames:.2} frames a doorbell")?;
        }
        if !self.counters.is_empty() {
            let counts: Vec<String> =
                self.counters.iter().map(|count| format!("{} {}", count.name, count.value)).collect();
            writeln!(f, "counters           {}", counts.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, value: u64) -> Count {
        Count { name: name.to_owned(), value }
    }

    #[test]
    fn counters_that_moved_are_told_and_stalls_always() {
        let before = [count("blocked", 3), count("signals", 5), count("turns", 1)];
        let after = vec![count("blocked", 3), count("signals", 5), count("turns", 9), count("new", 2)];
        assert_eq!(
            grown(&before, after, &["blocked"]),
            [count("blocked", 0), count("turns", 8), count("new", 2)]
        );
    }

    #[test]
    fn a_devices_counters_are_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("rxe0/ports/1/hw_counters");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("rcvd_rnr_err"), "7\n").unwrap();
        assert_eq!(device_counts(root.path()), [count("rxe0/rcvd_rnr_err", 7)]);
        assert_eq!(device_counts(&root.path().join("nothing")), []);
    }

    #[test]
    fn work_takes_processor_time() {
        let mut meter = Meter::start(Some(std::process::id()), &Counted::default());
        meter.begin();
        // On a thread that is no more when it is asked.
        let spin = || {
            let own = || clock_gettime(ClockId::ThreadCPUTime);
            let started = own();
            while (own() - started).tv_nsec < 20_000_000 {
                std::hint::spin_loop();
            }
        };
        std::thread::spawn(spin).join().unwrap();
        let alone = own_cpu_ns().unwrap() - meter.started[0].unwrap();
        spin();
        meter.end();
        let cost = meter.finish(10, Counted::default());
        // Of ten calls in 20 ms of each thread.
        let (here, there) = (cost.client_cpu_ns.unwrap(), cost.server_cpu_ns.unwrap());
        assert!(here > 1e4 && there > 1e4 && alone > 10_000_000, "{here} {there} {alone}");
        assert!(cost.counters.is_empty() && cost.to_string().starts_with("CPU of a call"));
    }
}
