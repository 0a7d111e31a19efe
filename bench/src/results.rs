//! `RESULTS.md`: tables of measurements and records of this program, one heading per machine, newest first.

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
};

use serde::Deserialize;

use crate::{error::BenchError, html, report::Report};

/// A file of tables.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// In their order on the page.
    pub table: Vec<Table>,
}

/// Measurements of one machine and build.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The processor.
    pub machine: String,
    /// Year, month and day, so that text order is time order.
    pub date: String,
    /// The commit.
    pub build: String,
    /// What was measured.
    pub title: String,
    /// Commands, units, and what a ratio means.
    pub method: String,
    /// What the columns are.
    pub columns: Vec<String>,
    /// As many texts as there are columns in each.
    pub rows: Vec<Vec<String>>,
    /// What the table does not say.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Tables {
    /// Reads what [`Tables::to_toml`] made.
    ///
    /// # Errors
    /// [`BenchError::Arguments`]: it is something else.
    pub fn parse(text: &str) -> Result<Self, BenchError> {
        toml::from_str(text).map_err(|error| BenchError::Arguments(error.to_string()))
    }

    /// As a file that [`page`] reads.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for Table { machine, date, build, title, method, columns, rows, notes } in &self.table {
            // Texts and lists look the same in Rust and in TOML.
            let _ = writeln!(
                text,
                "[[table]]\nmachine = {machine:?}\ndate = {date:?}\nbuild = {build:?}\ntitle = {title:?}"
            );
            let _ = writeln!(
                text,
                "method = {method:?}\ncolumns = {columns:?}\nrows = {rows:#?}\nnotes = {notes:?}\n"
            );
        }
        text
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.table.iter().for_each(|table| show(&mut text, table));
        f.write_str(text.trim_start())
    }
}

/// What the page begins with.
const HEAD: &str = "# Results

Made by `gimmal-bench results bench/results.toml bench/peers.toml bench/baseline.json > bench/RESULTS.md`.
Change those files, not this one. The [method](docs/README.md) is described elsewhere. Results of older builds are in
the history of this file.

A ratio holds for one core placement: the host of a virtual machine moves its cores between the same core, a shared
L3 cache and separate L3 caches.
";

/// The longest line of text, columns.
const WIDTH: usize = 120;

/// The page of these files: tables in TOML, or records in JSON.
///
/// # Errors
/// A file cannot be read, or is neither.
pub fn page(files: &[PathBuf]) -> Result<String, BenchError> {
    let (mut tables, mut records) = (Vec::new(), Vec::new());
    for path in files {
        let place = path.display();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let wrong = |why: String| BenchError::Arguments(format!("{place}: {why}"));
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            let file = Tables::parse(&text).map_err(|error| wrong(error.to_string()))?;
            tables.extend(file.table);
        } else {
            records.extend(html::read(path)?);
        }
    }
    tables.sort_by(|one, other| other.date.cmp(&one.date));
    let mut text = HEAD.to_owned();
    let mut machines: Vec<&str> = Vec::new();
    for table in &tables {
        if !machines.contains(&table.machine.as_str()) {
            machines.push(&table.machine);
        }
    }
    for machine in machines {
        let _ = write!(text, "\n## {machine}\n");
        tables.iter().filter(|table| table.machine == machine).for_each(|table| show(&mut text, table));
    }
    if let Some(first) = records.first() {
        let at = &first.environment;
        let guest = if at.is_guest { "virtual " } else { "" };
        let _ = write!(text, "\n## {}, {} {guest}cores\n", at.cpu, at.cores);
        show_records(&mut text, first, &records);
    }
    Ok(text)
}

fn show(text: &mut String, table: &Table) {
    let Table { title, date, build, method, columns, rows, notes, .. } = table;
    let _ = write!(text, "\n### {title}\n\nMeasured {date}, build {build}.\n\n{}\n", wrapped(method, ""));
    let rows = rows.iter().map(Vec::as_slice);
    tabulate(text, columns, rows);
    for (at, note) in notes.iter().enumerate() {
        let space = if at == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{space}- {}", wrapped(note, "  "));
    }
}

fn show_records(text: &mut String, first: &Report, records: &[Report]) {
    let about = format!(
        "Records of the suite `regress`, which CI compares with. The load before was {:.1}. Latencies are round trips; the baseline \
         is a bare frame without an engine, measured in turns.",
        first.environment.load
    );
    let _ = write!(
        text,
        "\n### The regression baseline\n\nBuild {}, kernel {}.\n\n{}\n",
        first.commit,
        first.environment.kernel,
        wrapped(&about, "")
    );
    let columns = ["what", "cache-line round trip", "slices", "p50", "to bare frame"].map(str::to_owned);
    let timed = records.iter().flat_map(|report| report.states.iter().map(move |state| (report, state)));
    let rows: Vec<Vec<String>> = timed
        .map(|(report, state)| {
            let ratio = state.ratio_to_frame_floor.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            vec![
                report.name(),
                format!("{:.0} ns", state.line_ns),
                state.slices.to_string(),
                format!("{:.0} ns", state.p50_ns),
                ratio,
            ]
        })
        .collect();
    tabulate(text, &columns, rows.iter().map(Vec::as_slice));
    let counted: Vec<Vec<String>> = records
        .iter()
        .filter(|report| report.test == "instructions")
        .map(|report| vec![report.layer.clone(), report.count.to_string()])
        .collect();
    let columns = ["64 bytes, both sides", "instructions"].map(str::to_owned);
    tabulate(text, &columns, counted.iter().map(Vec::as_slice));
}

/// A table; none without rows.
fn tabulate<'a>(text: &mut String, columns: &[String], rows: impl Iterator<Item = &'a [String]>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = write!(text, "\n| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

/// Text in lines of at most [`WIDTH`], later ones behind `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut column = indent.len();
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent.len() && column + 1 + length > WIDTH {
            let _ = write!(out, "\n{indent}");
            column = indent.len();
        } else if !out.is_empty() {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_the_tree_is_the_one_its_files_make() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let files = ["results.toml", "peers.toml", "baseline.json"].map(|name| root.join(name));
        let made = page(&files).unwrap();
        assert_eq!(made, include_str!("../RESULTS.md"), "run the command that its head names");
    }

    #[test]
    fn tables_are_read_as_they_were_written() {
        let text = include_str!("../results.toml");
        let tables = Tables::parse(text).unwrap();
        let again = Tables::parse(&tables.to_toml()).unwrap();
        assert_eq!(again, tables);
        assert!(tables.to_string().starts_with(&format!("### {}\n", tables.table[0].title)));
    }

    #[test]
    fn lines_are_filled_and_no_longer_than_the_width() {
        let text = "word ".repeat(100);
        let lines: Vec<String> = wrapped(&text, "  ").lines().map(str::to_owned).collect();
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        assert!(lines[0].len() > WIDTH - 8 && lines[1].starts_with("  word"), "{lines:?}");
    }
}
