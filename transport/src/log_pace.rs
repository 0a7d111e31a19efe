//! Lines of the log that strangers cause: so many a second, and no more.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::Instant;

/// Lines in a second.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Paces lines of the log that strangers cause: 10 a second at most.
#[derive(Debug, Default)]
pub struct LogPace(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogPace {
    /// Whether there may be a line at `now`; then, how many were left out since the last one.
    pub fn line(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.since.is_none_or(|since| now - since >= SECOND) {
            (window.since, window.lines) = (Some(now), 0);
        }
        if window.lines == LINES {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_ten_lines_a_second() {
        let (pace, start) = (LogPace::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let lines = (0..500).filter(|ms| pace.line(at(*ms)).is_some()).count();
        assert_eq!(lines, 10);
        assert_eq!(
            (pace.line(at(999)), pace.line(at(1000)), pace.line(at(1001))),
            (None, Some(491), Some(0))
        );
    }
}
