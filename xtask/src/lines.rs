//! Lines of code: no tests, comments or blank lines.

use std::{collections::BTreeMap, fmt::Write as _, io};

use crate::{
    house::{House, SETTINGS, covers},
    tree::Tree,
};

/// A table of the lines of each part of `tests/tidy.toml`, of the working tree or of `revision`, with a sum of those that are judged.
///
/// # Errors
/// git fails, or does not know the revision.
pub fn table(revision: Option<&str>) -> io::Result<String> {
    let here = Tree::here()?;
    let settings = here.text(SETTINGS).unwrap_or_default().to_owned();
    let tree = revision.map_or(Ok(here), Tree::at)?;
    let house = House::with(tree, &settings)?;
    let title = revision.unwrap_or("the working tree");
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let parts = house.lists("lines");
    for source in house.product() {
        // The longest entry that covers the file says which part it is of.
        let entries =
            parts.iter().flat_map(|(part, entries)| entries.iter().map(move |entry| (*part, *entry)));
        let part =
            entries.filter(|(_, entry)| covers(entry, &source.path)).max_by_key(|(_, entry)| entry.len());
        if let Some((part, _)) = part {
            *lines.entry(part).or_default() += source.code_lines();
        }
    }
    let mut text = format!("lines of code of {title}, without tests, comments and blank lines\n\n");
    for (part, count) in &lines {
        let _ = writeln!(text, "  {part:<12} {count:>7}");
    }
    for parts in [ENGINE, WITH_SIMULATION] {
        let sum: usize = parts.iter().filter_map(|part| lines.get(part)).sum();
        let _ = writeln!(text, "= {sum:>7}  {}", parts.join(" + "));
    }
    Ok(text)
}

/// The parts whose sum is the size of the engine. What tests it was in the same crates once, and is in none of them.
const ENGINE: &[&str] = &["transport", "rdma", "engine", "rpc"];
const WITH_SIMULATION: &[&str] = &["transport", "rdma", "engine", "rpc", "sim", "testkit", "floor"];
