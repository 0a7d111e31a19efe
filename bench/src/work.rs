//! What the kernel counts of a process while calls run: instructions and cycles where the processor has counters that
//! this
//! system lends, system calls where it traces them (root, or `CAP_PERFMON`), switches of its threads.
//! perf_event_open(2),
//! proc_pid_status(5).

use std::{fmt, fs, io, path::Path};

use perf_event::{
    Builder, Counter, ReadFormat,
    events::{Event, Hardware, Tracepoint},
};
use serde::{Deserialize, Serialize};

/// Where tracing is mounted: by itself, or as older systems have it.
const TRACING: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Fires at every system call.
const SYSTEM_CALL: &str = "events/raw_syscalls/sys_enter/id";

/// What one side did for a call, on all its threads. Counted while calls ran that are not timed, since counting
/// system calls
/// makes them slower. `None`: this system does not count it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    /// Instructions in user space. A polling thread executes them all the time.
    pub instructions: Option<f64>,
    /// Cycles in user space.
    pub cycles: Option<f64>,
    /// System calls.
    pub system_calls: Option<f64>,
    /// How often a thread gave up its core, or lost it.
    pub switches: Option<f64>,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = [
            ("instructions", self.instructions, 0),
            ("cycles", self.cycles, 0),
            ("system calls", self.system_calls, 4),
            ("switches", self.switches, 4),
        ];
        let known = known.into_iter().filter_map(|(name, value, digits)| {
            value.map(|value| format!("{value:.0$} {name}", if value.fract() == 0.0 { 0 } else { digits }))
        });
        let known: Vec<String> = known.collect();
        f.write_str(&if known.is_empty() { "unknown".to_owned() } else { known.join(", ") })
    }
}

/// One kind of event, of all threads of a process.
#[derive(Debug, Default)]
struct Events(Vec<Counter>);

impl Events {
    /// Opened, not counting yet; empty where the kernel refuses.
    fn open(process: u32, event: &(impl Event + Clone), in_kernel: bool) -> Self {
        let threads = threads(process).filter_map(|thread| open(thread, event.clone(), in_kernel).ok());
        Self(threads.collect())
    }

    fn begin(&mut self) {
        // One that cannot begin counts nothing, which `total` sees.
        self.0.iter_mut().for_each(|counter| drop(counter.enable()));
    }

    /// What was counted, scaled up where counters had to share the processor's.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    fn total(&mut self) -> Option<f64> {
        let counts = self.0.iter_mut().map(|counter| {
            let data = counter.read_full().ok()?;
            let (enabled, running) = (data.time_enabled()?, data.time_running()?);
            // A thread that slept all the time was never counted.
            let scale = if running.is_zero() { 1.0 } else { enabled.as_secs_f64() / running.as_secs_f64() };
            Some(data.count() as f64 * scale)
        });
        let counts: Option<Vec<f64>> = counts.collect();
        counts.filter(|counts| !counts.is_empty()).map(|counts| counts.iter().sum())
    }
}

fn open(thread: i32, event: impl Event, in_kernel: bool) -> io::Result<Counter> {
    Builder::new(event)
        .observe_pid(thread)
        .exclude_kernel(!in_kernel)
        // Threads that begin meanwhile.
        .inherit(true)
        .read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING)
        .build()
}

fn threads(process: u32) -> impl Iterator<Item = i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// The event of a system call, where tracing is mounted and may be read.
fn system_call() -> Option<Tracepoint> {
    TRACING.iter().find_map(|root| {
        let id = fs::read_to_string(Path::new(root).join(SYSTEM_CALL)).ok()?;
        Some(Tracepoint::with_id(id.trim().parse().ok()?))
    })
}

/// The sum of what `name` below /proc says of each thread of a process; `None` when there is no thread.
pub(crate) fn of_threads(process: u32, name: &str, read: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let texts =
        threads(process).map(|thread| fs::read_to_string(format!("/proc/{process}/task/{thread}/{name}")));
    // One that ended meanwhile is not counted.
    let counts: Vec<u64> = texts.filter_map(|text| read(&text.ok()?)).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// How often threads of a process gave up their cores, or lost them.
fn switches(process: u32) -> Option<u64> {
    let count = |line: &str| line.split_once("_ctxt_switches:")?.1.trim().parse::<u64>().ok();
    of_threads(process, "status", |text| Some(text.lines().filter_map(count).sum()))
}

/// Counts what one process does between [`Watch::begin`] and [`Watch::end`].
#[derive(Debug)]
pub(crate) struct Watch {
    process: u32,
    instructions: Events,
    cycles: Events,
    system_calls: Events,
    switches: Option<u64>,
}

impl Watch {
    pub(crate) fn new(process: u32) -> Self {
        Self {
            process,
            instructions: Events::open(process, &Hardware::INSTRUCTIONS, false),
            cycles: Events::open(process, &Hardware::CPU_CYCLES, false),
            system_calls: system_call().map(|event| Events::open(process, &event, true)).unwrap_or_default(),
            switches: None,
        }
    }

    pub(crate) fn begin(&mut self) {
        self.switches = switches(self.process);
        self.instructions.begin();
        self.cycles.begin();
        self.system_calls.begin();
    }

    /// After `calls`: what each took.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub(crate) fn end(mut self, calls: u64) -> Work {
        // First, before reading the others adds to it.
        let system_calls = self.system_calls.total();
        let [instructions, cycles] = [self.instructions.total(), self.cycles.total()];
        let switches =
            switches(self.process).zip(self.switches).map(|(now, then)| now.saturating_sub(then) as f64);
        let each = |count: Option<f64>| count.map(|count| count / calls.max(1) as f64);
        Work {
            instructions: each(instructions),
            cycles: each(cycles),
            system_calls: each(system_calls),
            switches: each(switches),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        process::{Command, Stdio},
    };

    use super::*;

    /// A process of one thread: the counts of threads that ended meanwhile are lost.
    #[test]
    fn what_a_process_does_is_counted() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut to, mut from) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let mut watch = Watch::new(cat.id());
        let can_trace = !watch.system_calls.0.is_empty();
        watch.begin();
        for _ in 0..50 {
            to.write_all(b"x").unwrap();
            from.read_exact(&mut [0]).unwrap();
        }
        let work = watch.end(50);
        drop(to);
        cat.wait().unwrap();
        // It finds the next byte at once now and then.
        assert!(work.switches.is_some_and(|switches| switches > 0.0), "{work}");
        assert_eq!(work.system_calls.is_some_and(|calls| calls >= 1.0), can_trace, "{work}");
        assert!(work.to_string().contains("switches"), "{work}");
    }

    #[test]
    fn a_process_that_is_not_there_has_no_numbers() {
        let mut watch = Watch::new(u32::MAX >> 1);
        watch.begin();
        let work = watch.end(1);
        assert_eq!(work, Work::default());
        assert_eq!(work.to_string(), "unknown");
    }

    #[test]
    fn whole_numbers_have_no_digits_behind_them() {
        let work = Work { system_calls: Some(0.0), switches: Some(0.25), ..Work::default() };
        assert_eq!(work.to_string(), "0 system calls, 0.2500 switches");
    }
}
