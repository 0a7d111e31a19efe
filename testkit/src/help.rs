//! The help of a program, of every command that it has.

use std::process::{Command, Stdio};

/// Columns of the longest line.
const COLUMNS_MAX: usize = 100;

/// Runs `program` with `arguments`, and returns what it printed. The exit code must be 0, and standard error empty.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{arguments:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Checks `--help` and `-h` of `program` and of each of its commands, and returns the commands.
///
/// The first line says what the command does, no line is long, each option and argument has a text, the long help ends with
/// the exit codes, and nothing is coloured, since no terminal reads it.
///
/// # Panics
/// When one of this is not so.
#[must_use]
pub fn commands(program: &str) -> Vec<String> {
    let whole = checked(program, &[]);
    let listed = whole.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter(|line| line.starts_with("  "));
    let names =
        names.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(!names.is_empty(), "{program} has no commands:\n{whole}");
    for name in &names {
        checked(program, &[name]);
    }
    names
}

fn checked(program: &str, command: &[&str]) -> String {
    let [short, long] = ["-h", "--help"].map(|help| printed(program, &[command, &[help]].concat()));
    for text in [&short, &long] {
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.len() > 20 && first.starts_with(char::is_uppercase),
            "{command:?} says first: {first:?}"
        );
        assert!(!text.contains('\u{1b}'), "{command:?}: colours without a terminal:\n{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= COLUMNS_MAX, "{command:?}: a line is too long:\n{line}");
        }
    }
    assert!(long.contains("Exit codes:\n  0  "), "{command:?}: no exit codes:\n{long}");
    let mut lines = long.lines().peekable();
    while let Some(line) = lines.next() {
        let name = line.trim_start();
        let is_heading = name.starts_with('-') && line.len() - name.len() <= 6;
        if is_heading && name != "-h, --help" && !name.starts_with("- ") {
            let text = lines.peek().copied().unwrap_or_default().trim();
            assert!(!text.is_empty() && !text.starts_with('-'), "{command:?}: {name} has no text:\n{long}");
        }
    }
    long
}
