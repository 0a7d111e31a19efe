//! Records in columns: perftest's, and comma-separated values: a line for the test, one for each contender, one for
//! each part, and one for each core placement.

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

/// A report in perftest's columns, whose times are half round trips and whose megabytes are binary.
#[expect(clippy::cast_precision_loss, reason = "times and sizes far below 2^53")]
#[must_use]
pub fn perftest(report: &Report, with_header: bool) -> String {
    let Report { bytes, count, .. } = report;
    if matches!(&*report.test, "rate" | "bw") {
        let header = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";
        let average = report.calls_per_s * *bytes as f64 / 1_048_576.0;
        // Slices are averaged: no higher one is known.
        let line = format!(
            " {bytes:<10} {count:<14} {average:<18.2} {average:<20.2} {:.6}\n",
            report.calls_per_s / 1e6
        );
        return if with_header { format!("{header}{line}") } else { line };
    }
    let header = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                  t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n";
    let half = |nanos: f64| nanos / 2e3;
    let [min, max, typical] = [report.min_ns, report.max_ns, report.p50_ns].map(|nanos| half(nanos as f64));
    let [tail, far] = [report.p99_ns, report.p999_ns].map(|nanos| half(nanos as f64));
    let (mean, stdev) = (half(report.mean_ns), half(report.stdev_ns));
    let line = format!(
        " {bytes:<7} {count:<14} {min:<14.2} {max:<12.2} {typical:<16.2} {mean:<14.2} {stdev:<15.2} {tail:<22.2} {far:.2}\n"
    );
    if with_header { format!("{header}{line}") } else { line }
}

/// The last columns of a line.
fn back(report: &Report, note: &str) -> String {
    let environment = &report.environment;
    format!(
        "{},{},{},{},{}",
        report.is_complete,
        field(&environment.cpu),
        field(&environment.kernel),
        field(&report.commit),
        field(note)
    )
}

/// The columns of a test's own line behind the first.
fn own(report: &Report) -> String {
    format!(
        "gimmal,RTT,{},{},{},{},{},{},{},{},{},,{},,,{}",
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
        back(report, &report.warnings.join("; "))
    )
}

/// The lines of one report, with the header before the first.
#[must_use]
pub fn lines(report: &Report, with_header: bool) -> String {
    let mut text = if with_header { HEADER.to_owned() } else { String::new() };
    let Report { test, provider, layer, mode, bytes, window, .. } = report;
    let front = format!("{test},{provider},{layer},{mode},{bytes},{window}");
    // Writing to a string does not fail.
    let _ = writeln!(text, "{front},{}", own(report));
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
            back(report, row.note.as_deref().unwrap_or_default())
        );
    }
    for state in &report.states {
        let [low, high] = state.ratio_to_frame_floor_interval.map_or([None, None], |ends| ends.map(Some));
        let _ = writeln!(
            text,
            "{front},line {:.0} ns,state of the host,{},,{},,,,,,{},{},{},{},{},{}",
            state.line_ns,
            state.slices,
            state.p50_ns,
            state.per_s,
            state.line_ns,
            number(state.ratio_to_frame_floor),
            number(low),
            number(high),
            back(report, "")
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
            back(report, part.note.as_deref().unwrap_or_default())
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{HostState, Part, Row};

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
            states: vec![HostState::default()],
            ..Report::default()
        };
        let text = lines(&report, true);
        let counts: Vec<usize> = text.lines().map(fields).collect();
        assert_eq!(counts, [26; 5], "{text}");
        assert_eq!(lines(&report, false).lines().count(), 4);
    }

    #[test]
    fn perftests_columns_are_read_by_what_reads_perftest() {
        let lat = Report { test: "lat".to_owned(), bytes: 64, count: 100, p50_ns: 3000, ..Report::default() };
        assert_eq!(crate::against::perftest::parse_latency(&perftest(&lat, true)), Some(1.5));
        let (test, calls_per_s) = ("rate".to_owned(), 2e6);
        let rate = Report { test, bytes: 1 << 20, count: 100, calls_per_s, ..Report::default() };
        let found = crate::against::perftest::parse_bandwidth(&perftest(&rate, true));
        assert_eq!(found, Some((2e6 * 1_048_576.0, 2.0)));
        assert_eq!(perftest(&rate, false).lines().count(), 1);
    }
}
