//! One self-contained page: plots, tables, warnings, the method and a glossary; of one run, or of two beside each other.
//!
//! ```text
//!  records ─► page ─► figures ─► plots (SVG), markup (bars)
//!                 ├─► compare                              two runs
//!                 ├─► tables ─► markup                     one unit per column
//!                 └─► notes                                warnings and remedies, method, glossary
//! ```

mod compare;
mod figures;
mod label;
mod markup;
mod notes;
mod tables;

use std::{fmt::Write as _, path::Path};

use self::markup::escaped;
use crate::{error::BenchError, report::Report};

const STYLE: &str = include_str!("style.css");
/// The sections, in the order of the page: their anchors and headings.
const SECTIONS: [(&str, &str); 5] = [
    ("plots", "Plots"),
    ("tables", "Tables"),
    ("warnings", "Warnings"),
    ("method", "Method"),
    ("glossary", "Glossary"),
];

/// The records of a file: one JSON object a line, as `--json` prints them.
///
/// # Errors
/// [`BenchError::System`], [`BenchError::Record`].
pub fn read(path: &Path) -> Result<Vec<Report>, BenchError> {
    let text = std::fs::read_to_string(path).map_err(BenchError::system("reading a file of records"))?;
    records(&text, &path.display().to_string())
}

/// The records in `text`, which is from `place`.
pub(crate) fn records(text: &str, place: &str) -> Result<Vec<Report>, BenchError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| BenchError::Record {
                place: format!("{place}:{}", number + 1),
                why: error.to_string(),
            })
        })
        .collect()
}

/// The page of one run, or of two that are compared: the first is the older one.
///
/// # Errors
/// [`BenchError::Plot`].
pub fn page(runs: &[Vec<Report>]) -> Result<String, BenchError> {
    let reports: Vec<&Report> = runs.iter().flatten().collect();
    let mut page = head(&reports);
    for (id, title) in SECTIONS {
        // Writing to a string does not fail.
        let _ = write!(page, "<section id=\"{id}\"><h2>{title}</h2>");
        match id {
            "plots" => {
                if let [older, newer] = runs {
                    compare::compared(&mut page, older, newer);
                }
                each_run(&mut page, runs, figures::figures)?;
            }
            "tables" => each_run(&mut page, runs, |page, reports| {
                tables::tables(page, reports);
                Ok(())
            })?,
            "warnings" => notes::warnings(&mut page, &reports),
            "method" => notes::method(&mut page, &reports),
            _ => notes::glossary(&mut page),
        }
        page.push_str("</section>");
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

/// Up to the first section: a summary, and where to find what.
fn head(reports: &[&Report]) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>gimmal-bench report</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><link rel=\"icon\" href=\"data:,\">\
         <style>{STYLE}</style></head><body><header><h1>gimmal-bench report</h1><p>{}</p>\
         <p class=\"note\">Times are round trips, in microseconds (µs).</p><nav>",
        escaped(&notes::summary(reports)),
    );
    let problems = notes::problems(reports).len();
    for (id, title) in SECTIONS {
        let count = if id == "warnings" { format!(" ({problems})") } else { String::new() };
        let _ = write!(page, "<a href=\"#{id}\">{title}{count}</a>");
    }
    page + "</nav></header><main>"
}

/// Adds a part of the page for each run; of two, with a heading.
fn each_run(
    page: &mut String,
    runs: &[Vec<Report>],
    add: impl Fn(&mut String, &[&Report]) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    for (run, title) in runs.iter().zip(["Older run", "Newer run"]) {
        if runs.len() > 1 {
            let _ = write!(page, "<h3 class=\"run\">{title}</h3>");
        }
        add(page, &run.iter().collect::<Vec<_>>())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
