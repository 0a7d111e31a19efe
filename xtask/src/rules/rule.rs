//! A rule, and what it found.

use crate::house::House;

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What it asks for.
    pub name: &'static str,
    /// The most that is allowed.
    pub limit: usize,
    /// Measures it.
    pub find: fn(&House) -> Found,
}

/// What a rule found.
#[derive(Clone, Default, Debug)]
pub struct Found {
    /// What is compared with the limit.
    pub number: usize,
    /// What breaks the rule, worst first.
    pub offenders: Vec<String>,
    /// What is printed even if nothing breaks the rule.
    pub notes: Vec<String>,
}

impl From<Vec<String>> for Found {
    fn from(offenders: Vec<String>) -> Self {
        Self { number: offenders.len(), offenders, notes: Vec::new() }
    }
}

impl Found {
    /// The largest of some numbers; those above `limit` are offenders.
    #[must_use]
    pub fn largest(numbers: impl IntoIterator<Item = (usize, String)>, limit: usize) -> Self {
        let mut numbers: Vec<(usize, String)> = numbers.into_iter().collect();
        numbers.sort_by(|one, other| other.cmp(one));
        let number = numbers.first().map_or(0, |(number, _)| *number);
        let above = numbers.into_iter().take_while(|(number, _)| *number > limit);
        let offenders = above.map(|(number, what)| format!("{number}  {what}")).collect();
        Self { number, offenders, notes: Vec::new() }
    }
}
