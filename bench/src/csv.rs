//! Records as comma-separated values: a line for the test and one for each who was measured beside it.

use std::fmt::Write as _;

use crate::report::Report;

/// The names of the columns.
const HEADER: &str = "test,provider,layer,mode,bytes,window,name,what,count,min_ns,p50_ns,p90_ns,p99_ns,p999_ns,\
                      p9999_ns,max_ns,per_s,value,ratio,ratio_low,ratio_high,complete,cpu,kernel,commit,note\n";

/// A text as a field: quoted when it must be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// The lines of one report, with the header before the first.
#[must_use]
pub fn lines(report: &Report, with_header: bool) -> String {
    let mut text = if with_header { HEADER.to_owned() } else { String::new() };
    let Report { test, provider, layer, mode, bytes, window, .. } = report;
    let front = format!("{test},{provider},{layer},{mode},{bytes},{window}");
    let environment = &report.environment;
    let back = |note: &str| {
        format!(
            "{},{},{},{},{}",
            report.is_complete,
            field(&environment.cpu),
            field(&environment.kernel),
            field(&report.commit),
            field(note)
        )
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{front},gimmal,RTT,{},{},{},{},{},{},{},{},{},,{},,,{}",
        report.count,
        report.min_ns,
        report.p50_ns,
        report.p90_ns,
        report.p99_ns,
        report.p999_ns,
        report.p9999_ns,
        report.max_ns,
        report.calls_per_s,
        number(report.ratio_to_frame_floor),
        back(&report.warnings.join("; "))
    );
    for row in &report.rows {
        let [low, high] = row.ratio_interval.map_or([None, None], |interval| interval.map(Some));
        let _ = writeln!(
            text,
            "{front},{},{},{},,,,,,,,,{},{},{},{},{}",
            field(&row.name),
            field(&row.what),
            row.slices,
            number(row.value),
            number(row.ratio),
            number(low),
            number(high),
            back(row.note.as_deref().unwrap_or_default())
        );
    }
    for part in &report.parts {
        let _ = writeln!(
            text,
            "{front},{},part,{},,{},,{},{},,{},{},{},,,,{}",
            field(&part.name),
            part.count,
            part.p50_ns,
            part.p99_ns,
            part.p999_ns,
            part.max_ns,
            part.per_s,
            part.at,
            back(part.note.as_deref().unwrap_or_default())
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Part, Row};

    /// Fields of a line; quotes are undone.
    fn fields(line: &str) -> usize {
        let mut quoted = false;
        1 + line
            .chars()
            .filter(|letter| {
                quoted ^= *letter == '"';
                *letter == ',' && !quoted
            })
            .count()
    }

    #[test]
    fn every_line_has_the_headers_columns() {
        let report = Report {
            rows: vec![Row { name: "kernel TCP, polled".to_owned(), ..Row::default() }],
            parts: vec![Part { name: "a \"part\"".to_owned(), ..Part::default() }],
            warnings: vec!["first, second".to_owned()],
            ..Report::default()
        };
        let text = lines(&report, true);
        let counts: Vec<usize> = text.lines().map(fields).collect();
        assert_eq!(counts, [26; 4], "{text}");
        assert_eq!(lines(&report, false).lines().count(), 3);
    }
}
