//! The rules of the house that no compiler checks: each has a name, a limit, and a function that finds what breaks it.
//!
//! A rule that the tree does not meet yet has a ceiling in `tests/tidy.toml`. It fails above the ceiling, so it can only get better.

pub mod boundaries;
pub mod circles;
pub mod code;
pub mod comments;
pub mod concepts;
pub mod ledger;
pub mod licences;
pub mod prose;
pub mod rule;
pub mod rust_version;
pub mod tested;
#[cfg(test)]
mod tests;

pub use rule::{Found, Rule};

use crate::house::House;

/// How a rule went.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Whether it holds, or is at most as far off as its ceiling allows.
    pub is_kept: bool,
    /// The line for it.
    pub line: String,
    /// What breaks the rule.
    pub below: Vec<String>,
    /// What is shown in any case.
    pub notes: Vec<String>,
    /// The ceiling that is enough; the limit where none is needed. `None` where nothing can be lowered.
    pub lower: Option<usize>,
}

/// Every rule, in the order in which they are printed.
#[must_use]
pub fn all() -> Vec<Rule> {
    [
        boundaries::RULES,
        code::RULES,
        comments::RULES,
        tested::RULES,
        concepts::RULES,
        circles::RULES,
        ledger::RULES,
        prose::RULES,
        licences::RULES,
        rust_version::RULES,
    ]
    .concat()
}

/// Measures a rule and compares.
#[must_use]
pub fn judge(house: &House, rule: &Rule) -> Verdict {
    let found = (rule.find)(house);
    let ceiling = house.ceiling(rule.name);
    let most = ceiling.map_or(rule.limit, |ceiling| ceiling.now.max(rule.limit));
    let is_kept = found.number <= most;
    let number = match (rule.limit, ceiling) {
        (0, None) if is_kept => String::new(),
        (limit, None) => format!(": {} of at most {limit}", found.number),
        (limit, Some(ceiling)) => format!(": {}, ceiling {}, aim {limit}", found.number, ceiling.now),
    };
    let lower = ceiling.filter(|ceiling| found.number < ceiling.now || ceiling.now <= rule.limit);
    let word = if is_kept { "ok     " } else { "FAILED " };
    let line = format!("{word} {}{number}", rule.name);
    let below = if found.number > rule.limit { found.offenders } else { Vec::new() };
    Verdict { is_kept, line, below, notes: found.notes, lower: lower.map(|_| found.number.max(rule.limit)) }
}
