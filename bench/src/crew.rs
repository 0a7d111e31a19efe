//! Several threads that call at once, a window each, through one worker.

use std::{
    fmt,
    sync::Barrier,
    thread::{ScopedJoinHandle, scope},
};

use crate::{clock::Stamp, error::BenchError, recorder::Recorder};

/// Calls that are ended before others start in their places, at most: about as many as one turn brings.
const BATCH_MAX: usize = 8;

/// Calls that end before others start, of a window of so many.
pub(crate) fn batch_of(window: usize) -> usize {
    (window / 4).clamp(1, BATCH_MAX)
}

/// What calls are made through.
pub(crate) trait Calls: fmt::Debug {
    /// Makes `count` calls with a window of its own, as [`Target::run`](crate::target::Target::run).
    ///
    /// # Errors
    /// The first call that failed.
    fn calls(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError>;
}

/// The callers, each with what its thread recorded last.
#[derive(Debug)]
pub(crate) struct Crew<C> {
    members: Vec<(C, Recorder)>,
}

impl<C: Calls + Send> Crew<C> {
    /// Of one or more.
    ///
    /// # Errors
    /// As [`Recorder::new`].
    pub(crate) fn new(callers: Vec<C>) -> Result<Self, BenchError> {
        let members = callers.into_iter().map(|caller| Ok((caller, Recorder::new()?)));
        Ok(Self { members: members.collect::<Result<_, BenchError>>()? })
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<&C> {
        self.members.first().map(|(caller, _)| caller)
    }
}

impl<C: Calls + Send> Calls for Crew<C> {
    /// Calls are shared out over threads that begin together; one alone calls on this thread. What counts is the time from
    /// the first one's beginning to the end of the last, by their own clocks: who started them may run long after they did.
    fn calls(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        if let [(alone, _)] = &mut self.members[..] {
            return alone.calls(count, recorder);
        }
        let (share, ready) = (count.div_ceil(self.members.len() as u64), Barrier::new(self.members.len()));
        let spans = scope(|scope| {
            let begun = self.members.iter_mut().map(|(caller, times)| {
                let ready = &ready;
                scope.spawn(move || {
                    times.reset();
                    ready.wait();
                    let start = Stamp::now();
                    caller.calls(share, times).map(|()| (start, Stamp::now()))
                })
            });
            let threads: Vec<ScopedJoinHandle<'_, _>> = begun.collect();
            let panicked = |_| BenchError::Wrong("end of a thread: it panicked");
            threads.into_iter().map(|thread| thread.join().map_err(panicked)?).collect::<Result<Vec<_>, _>>()
        })?;
        self.members.iter().try_for_each(|(_, times)| recorder.add_times(times))?;
        let (start, end) = (spans.iter().map(|span| span.0).min(), spans.iter().map(|span| span.1).max());
        recorder.busy(end.zip(start).map_or(0, |(end, start)| end.nanos_since(start)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Sleeper(u64);

    impl Calls for Sleeper {
        fn calls(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
            if self.0 == 0 {
                return Err(BenchError::Wrong("day"));
            }
            for _ in 0..count {
                std::thread::sleep(std::time::Duration::from_millis(self.0));
                recorder.record(self.0 * 1_000_000);
            }
            recorder.busy(1 << 40);
            Ok(())
        }
    }

    #[test]
    fn the_calls_of_all_count_in_the_time_of_the_slowest() {
        let mut crew = Crew::new(vec![Sleeper(1), Sleeper(20), Sleeper(1)]).unwrap();
        let mut recorder = Recorder::new().unwrap();
        crew.calls(6, &mut recorder).unwrap();
        assert_eq!((recorder.count(), recorder.max_ns() / 1_000_000), (6, 20));
        let per_second = recorder.per_second();
        assert!(per_second < 150.0 && per_second > 1.0, "{per_second}");
        let mut crew = Crew::new(vec![Sleeper(1), Sleeper(0)]).unwrap();
        assert!(crew.calls(2, &mut recorder).is_err());
    }
}
