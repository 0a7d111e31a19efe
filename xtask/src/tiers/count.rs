//! What the closing lines of programs say: those of Rust's test runner, and the plain ones of the project's own.

use std::sync::LazyLock;

use regex::Regex;

/// Cases that passed, failed and were skipped.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Count {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

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
    }

    /// What a line says; nothing if it is no closing line.
    pub(super) fn of(line: &str) -> Self {
        let Some(found) = CLOSING.captures(line.trim_end()) else { return Self::default() };
        let number = |one: usize, other: usize| {
            let digits = found.get(one).or_else(|| found.get(other));
            digits.and_then(|digits| digits.as_str().parse().ok()).unwrap_or_default()
        };
        Self { passed: number(1, 4), failed: number(2, 5), skipped: number(3, 6) }
    }

    /// The sum of a tier whose commands ended well, or not: a failure that nothing counted is one, and so is a success.
    pub(super) fn closed(mut self, is_good: bool) -> Self {
        if !is_good && self.failed == 0 {
            self.failed = 1;
        }
        if self == Self::default() {
            self.passed = 1;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted_and_no_others() {
        let count = |passed, failed, skipped| Count { passed, failed, skipped };
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
        let some = Count { passed: 3, failed: 2, skipped: 1 };
        assert_eq!(some.closed(false), some);
    }
}
