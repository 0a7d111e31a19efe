//! What the lines of programs say: the sums at their ends, and why tests were skipped. Both Rust's test runner and the
//! project's own programs are understood.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use regex::Regex;

/// Cases that passed, failed and were skipped.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Count {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// Tests that skipped themselves, which Rust's test runner counts among those that passed.
    pub(super) unseen: u64,
}

/// Begins the line of a test that skips itself.
const SELF: &str = "SKIPPED ";

static CLOSING: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"^test result: \S+ (\d+) passed; (\d+) failed; (\d+) ignored|(?:^|: )(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$";
    Regex::new(pattern).expect("the pattern is a constant")
});

impl Count {
    /// Adds what another counted.
    pub(super) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.unseen += other.unseen;
    }

    /// What a line says; nothing if it is no closing line, and not that of a test that skips itself.
    pub(super) fn of(line: &str) -> Self {
        if line.starts_with(SELF) {
            return Self { unseen: 1, ..Self::default() };
        }
        let Some(found) = CLOSING.captures(line.trim_end()) else { return Self::default() };
        let number = |one: usize, other: usize| {
            let digits = found.get(one).or_else(|| found.get(other));
            digits.and_then(|digits| digits.as_str().parse().ok()).unwrap_or_default()
        };
        Self { passed: number(1, 4), failed: number(2, 5), skipped: number(3, 6), unseen: 0 }
    }

    /// The sum of a tier whose commands ended well, or not: a failure that nothing counted is one, and so is a success.
    pub(super) fn closed(mut self, is_good: bool) -> Self {
        let unseen = std::mem::take(&mut self.unseen).min(self.passed);
        (self.passed, self.skipped) = (self.passed - unseen, self.skipped + unseen);
        if !is_good && self.failed == 0 {
            self.failed = 1;
        }
        if self == Self::default() {
            self.passed = 1;
        }
        self
    }
}

static SKIPPED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"^test .* \.\.\. ignored(?:, (.*))?$|^\s*SKIP(?:PED)?\s+(?:[^:]*: )?(.*)$";
    Regex::new(pattern).expect("the pattern is a constant")
});

/// Why tests were skipped, each cause with their number.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Causes(BTreeMap<String, u64>);

impl Causes {
    /// Notes the cause that a line gives for a test, if it gives one.
    pub(super) fn note(&mut self, line: &str) {
        let Some(found) = SKIPPED.captures(line.trim_end()) else { return };
        if let Some(cause) = found.get(1).or_else(|| found.get(2)) {
            *self.0.entry(cause.as_str().to_owned()).or_default() += 1;
        }
    }

    /// Returns how many of `skipped` tests gave no cause.
    pub(super) fn missing(&self, skipped: u64) -> u64 {
        skipped.saturating_sub(self.0.values().sum())
    }
}

impl fmt::Display for Causes {
    /// Writes a line for each cause, the most frequent one first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut causes: Vec<_> = self.0.iter().collect();
        causes.sort_by_key(|&(_, number)| std::cmp::Reverse(number));
        causes.iter().try_for_each(|(cause, number)| writeln!(f, "{number:>6}  {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of every program that skips: Rust's test runner, a test that sees by itself what it lacks, the suites.
    #[test]
    fn causes_are_counted_for_each_form_of_a_line() {
        let mut causes = Causes::default();
        for line in [
            "test rxe::echo ... ignored, needs the lab\n",
            "test siw::echo ... ignored, needs the lab",
            "SKIPPED r76_another_user_is_refused: needs root",
            "        SKIP   one_sided_atomics: the device has no atomics",
            "SKIP    chromium is not installed",
            "test echo ... ok",
            "test src/lib.rs - (line 7) ... ignored",
            "12 passed, 0 failed, 6 skipped",
        ] {
            causes.note(line);
        }
        let text = "     2  needs the lab\n     1  chromium is not installed\n     1  needs root\n     1  the device has no atomics\n";
        assert_eq!((causes.to_string().as_str(), causes.missing(6)), (text, 1));
    }

    #[test]
    fn a_test_that_skips_itself_is_not_counted_as_passed() {
        let mut count = Count::of("SKIPPED it: needs root");
        count.add(Count::of("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out"));
        assert_eq!(count.closed(true), Count { passed: 2, skipped: 2, ..Count::default() });
    }

    #[test]
    fn closing_lines_are_counted_and_no_others() {
        let count = |passed, failed, skipped| Count { passed, failed, skipped, unseen: 0 };
        assert_eq!(
            Count::of("test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out"),
            count(12, 3, 1)
        );
        assert_eq!(Count::of("7 passed, 1 failed"), count(7, 1, 0));
        assert_eq!(Count::of("conformance: 80 passed, 0 failed, 4 skipped\n"), count(80, 0, 4));
        for line in [
            "        7 passed; 1 failed",
            "7 passed, 1 failed, and more",
            "ok      demo: 3 passed, 1 failed of 4",
        ] {
            assert_eq!(Count::of(line), Count::default(), "{line}");
        }
    }

    #[test]
    fn a_tier_counts_at_least_one() {
        assert_eq!(Count::default().closed(true), Count { passed: 1, ..Count::default() });
        assert_eq!(Count::default().closed(false), Count { failed: 1, ..Count::default() });
        let some = Count { passed: 3, failed: 2, skipped: 1, unseen: 0 };
        assert_eq!(some.closed(false), some);
    }
}
