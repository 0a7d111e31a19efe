//! Tuned constants: each has a line in the ledger that says what it is worth, on which machine, and how that was measured.
//!
//! A constant is tied to its entry by a comment on its line, `// ledger: NAME`. In files that hold nothing but tuned constants every
//! constant has one.

use std::collections::BTreeSet;

use super::rule::{Found, Rule};
use crate::house::House;

/// The rules of this module.
pub const RULES: &[Rule] =
    &[Rule { name: "tuned constants without a line in the ledger", limit: 0, find: unlisted }];

const MARK: &str = "ledger: ";

fn unlisted(house: &House) -> Found {
    let ledger = house.word("ledger", "file").unwrap_or_default();
    let table: toml::Table = house.tree.text(ledger).unwrap_or_default().parse().unwrap_or_default();
    let mut unmarked: BTreeSet<&str> = table.keys().map(String::as_str).collect();
    let mut offenders = Vec::new();
    for source in house.sources.values() {
        let marks = source
            .comments
            .iter()
            .filter_map(|comment| Some((comment.line, comment.text.strip_prefix(MARK)?)));
        let marks: Vec<(usize, &str)> = marks.collect();
        for (line, name) in &marks {
            unmarked.remove(name);
            if !table.contains_key(*name) {
                offenders.push(format!("{}: {name} is not in {ledger}", source.at(*line)));
            }
        }
        if house.is_in(&source.path, "tuned") {
            let constants = source
                .items
                .definitions
                .iter()
                .filter(|it| it.keyword == "const" && !it.is_test && it.name != "_");
            let bare = constants.filter(|it| !marks.iter().any(|(line, _)| *line == it.line));
            offenders
                .extend(bare.map(|it| format!("{}: {} has no `// {MARK}NAME`", source.at(it.line), it.name)));
        }
    }
    offenders.extend(unmarked.into_iter().map(|name| format!("{ledger}: nothing is marked with {name}")));
    let is_unmeasured =
        |entry: &&toml::Value| entry.get("effect").and_then(toml::Value::as_str) == Some("unmeasured");
    let unmeasured = table.values().filter(is_unmeasured).count();
    let notes = vec![format!("{unmeasured} of {} entries have no recorded effect", table.len())];
    Found { number: offenders.len(), offenders, notes }
}
