//! `cargo xtask tidy`: every rule, a line each.

use std::{fs, io};

use crate::{
    house::{House, SETTINGS},
    rules::{self, Verdict},
    tree,
};

/// Lines shown below a rule that fails, or has not met its aim.
const SHOWN: usize = 60;

/// Characters shown of a note.
const COLUMNS: usize = 180;

/// Measures the rules whose names contain one of `names`, all where there are none, and prints a line for each; with `is_wordy`, what
/// the rules have not met too. `true` when every rule is kept.
///
/// # Errors
/// The files cannot be listed.
pub fn run(names: &[String], is_wordy: bool) -> io::Result<bool> {
    let house = House::here()?;
    let (mut passed, mut failed) = (0, 0);
    let chosen = rules::all()
        .into_iter()
        .filter(|rule| names.is_empty() || names.iter().any(|name| rule.name.contains(name)));
    for rule in chosen {
        let verdict = rules::judge(&house, &rule);
        *(if verdict.is_kept { &mut passed } else { &mut failed }) += 1;
        println!("{}", verdict.line);
        show(&verdict, is_wordy || !names.is_empty());
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn show(verdict: &Verdict, is_wordy: bool) {
    for line in &verdict.notes {
        println!("        {}", line.chars().take(COLUMNS).collect::<String>());
    }
    let shown = if is_wordy {
        usize::MAX
    } else if verdict.is_kept {
        0
    } else {
        SHOWN
    };
    for line in verdict.below.iter().take(shown) {
        println!("        {line}");
    }
    if verdict.below.len() > shown && !verdict.is_kept {
        println!("        ... and {} more", verdict.below.len() - shown);
    }
    match verdict.lower {
        Some(number) if verdict.is_kept => {
            println!("        its ceiling can be lowered to {number}: cargo xtask tidy --lower")
        }
        _ => {}
    }
}

/// Lowers the ceilings to what the tree has come to, and takes out those that are not needed any more. No ceiling is raised.
///
/// # Errors
/// The files cannot be listed, or the settings not be written.
pub fn lower() -> io::Result<()> {
    let house = House::here()?;
    let mut text = house.tree.text(SETTINGS).unwrap_or_default().to_owned();
    for rule in rules::all() {
        let Some(number) = rules::judge(&house, &rule).lower else { continue };
        let begin = format!("\"{}\" = ", rule.name);
        let replace = |line: &str| match line.strip_prefix(&begin) {
            None => Some(line.to_owned()),
            Some(_) if number <= rule.limit => None,
            Some(_) => Some(format!("{begin}{{ now = {number}, aim = {} }}", rule.limit)),
        };
        text = text.lines().filter_map(replace).map(|line| line + "\n").collect();
        println!("{}: {number}", rule.name);
    }
    fs::write(tree::root().join(SETTINGS), text)
}
