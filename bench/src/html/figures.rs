//! Everything on the page that is drawn.

use std::fmt::Write as _;

use super::{
    label::{Kind, bytes_per_s, grouped, label, without_size},
    markup::{Bar, bars, escaped, figure, number, ratios},
};
use crate::{
    error::BenchError,
    plots::{self, Axis, Line, Up, percentiles},
    record::{Part, knee},
    regress,
    report::Report,
};

/// Lines of one plot that are still told apart.
const LINES_MAX: usize = 7;
/// Sizes from which on a line over the size says more than bars.
const SIZES_MIN: usize = 3;

/// The plots of one run.
pub(super) fn figures(page: &mut String, reports: &[&Report]) -> Result<(), BenchError> {
    for (kind, of) in grouped(reports) {
        if kind.test == "instructions" {
            continue;
        }
        throughput(page, kind, &of)?;
        sizes(page, kind, &of)?;
        times(page, kind, &of)?;
        for report in &of {
            loads(page, report)?;
        }
        parts(page, kind, &of);
    }
    beside(page, reports);
    Ok(())
}

/// A plot of lines with its title and its legend.
fn plot(
    page: &mut String,
    (title, note): (&str, &str),
    (axis, up): (Axis, Up),
    lines: &[Line],
    mark: Option<(f64, &str)>,
) -> Result<(), BenchError> {
    page.push_str(&figure(title, note));
    page.push_str("<ul class=\"legend\">");
    for (line, colour) in lines.iter().zip((0..LINES_MAX).cycle()) {
        let _ = write!(page, "<li><i class=\"c{colour}\"></i>{}</li>", escaped(&line.name));
    }
    page.push_str("</ul>");
    page.push_str(&plots::lines(title, axis, up, lines, mark)?);
    page.push_str("</figure>");
    Ok(())
}

/// Rates of tests that differ in more than their size.
fn throughput(page: &mut String, kind: &Kind, reports: &[&Report]) -> Result<(), BenchError> {
    let bar = |report: &&Report, value: f64, shown: String| Bar {
        name: label(report),
        value,
        shown,
        interval: None,
    };
    let has_few_sizes = lines_over_size(reports, |_| 1.0).is_empty();
    if kind.test == "rate" && has_few_sizes {
        let all: Vec<Bar> = reports
            .iter()
            .map(|report| {
                bar(report, report.calls_per_s, format!("{} calls/s", number(report.calls_per_s, 0)))
            })
            .collect();
        page.push_str(&bars("Calls per second", "Higher is better.", &all));
    }
    if kind.test == "bw" && has_few_sizes {
        let of = |report: &&Report| {
            let bytes = bytes_per_s(report)?;
            Some(bar(report, bytes, format!("{} MB/s", number(bytes / 1e6, 0))))
        };
        let all: Vec<Bar> = reports.iter().filter_map(of).collect();
        page.push_str(&bars("Bytes per second", "Bytes of loans that were read. Higher is better.", &all));
    }
    Ok(())
}

fn times(page: &mut String, kind: &Kind, reports: &[&Report]) -> Result<(), BenchError> {
    let timed = reports.iter().filter(|report| report.p50_ns > 0);
    let lines: Vec<Line> = timed.map(|report| percentiles(label(report), report)).collect();
    let title = format!("{}: time by percentile", kind.title);
    let note = format!("{} Lower is better; the right end is the tail.", kind.about);
    for lines in lines.chunks(LINES_MAX).filter(|_| kind.test != "load") {
        plot(page, (&title, &note), (Axis::Percentiles, Up::Time), lines, None)?;
    }
    Ok(())
}

/// Records that differ in nothing but the size make a line, if there are enough of them.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn lines_over_size(reports: &[&Report], of: impl Fn(&Report) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for report in reports {
        let name = without_size(report);
        let point = ((report.bytes.max(1) as f64).log2(), of(report));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let sizes = |line: &Line| {
        let mut sizes: Vec<f64> = line.points.iter().map(|(bytes, _)| *bytes).collect();
        sizes.dedup_by(|one, other| (*one - *other).abs() < 0.01);
        sizes.len()
    };
    lines.retain(|line| sizes(line) >= SIZES_MIN);
    lines
}

/// What becomes of times and rates when messages grow.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn sizes(page: &mut String, kind: &Kind, reports: &[&Report]) -> Result<(), BenchError> {
    let mut over_size = |words, up, lines: Vec<Line>| match lines.is_empty() {
        true => Ok(()),
        false => plot(page, words, (Axis::Bytes, up), &lines, None),
    };
    match kind.test {
        "lat" => over_size(
            ("Round trips over the size", "The median of one call at a time."),
            Up::Time,
            lines_over_size(reports, |report| report.p50_ns as f64),
        ),
        "rate" => over_size(
            ("Calls per second over the size", "A window of calls is kept in flight."),
            Up::Rate,
            lines_over_size(reports, |report| report.calls_per_s),
        ),
        "bw" => over_size(
            ("Bytes per second over the size of a loan", "Bytes that the other side fetched and read."),
            Up::Bytes,
            lines_over_size(reports, |report| bytes_per_s(report).unwrap_or(0.0)),
        ),
        _ => Ok(()),
    }
}

/// The open loop beside the closed one.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn loads(page: &mut String, report: &Report) -> Result<(), BenchError> {
    if report.test != "load" || report.parts.is_empty() {
        return Ok(());
    }
    let line = |name: &str, of: fn(&Part) -> u64| Line {
        name: name.to_owned(),
        points: report.parts.iter().map(|part| (part.at, of(part) as f64)).collect(),
    };
    let closed = report.p99_ns as f64;
    let ends = report.parts.iter().map(|part| (part.at, closed)).collect();
    let lines = [
        line("open loop, p50", |part| part.p50_ns),
        line("open loop, p99", |part| part.p99_ns),
        Line { name: "closed loop, p99".to_owned(), points: ends },
    ];
    let knee = knee(&report.parts).map(|knee| (report.parts[knee].at, " the knee"));
    let note = "Times count from when calls were due. A closed loop waits for a slow answer and asks less meanwhile, so a \
                stall is one slow call among many. In the open loop every call that is due in the stall waits, as callers do.";
    plot(page, ("Open loop: time over the load", note), (Axis::Rate, Up::Time), &lines, knee)
}

/// The parts of tests that are no loads.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn parts(page: &mut String, kind: &Kind, reports: &[&Report]) {
    let parts = || reports.iter().flat_map(|report| report.parts.iter());
    if kind.test == "stream" {
        let bar = |part: &Part| Bar {
            name: part.name.clone(),
            value: part.per_s,
            shown: format!("{} items/s", number(part.per_s, 0)),
            interval: None,
        };
        let all: Vec<Bar> = parts().map(bar).collect();
        page.push_str(&bars("Streams: items per second", "Higher is better.", &all));
    } else if matches!(kind.test, "conn" | "scale") {
        let bar = |part: &Part| Bar {
            name: part.name.clone(),
            value: part.p50_ns as f64,
            shown: format!("{} µs", number(part.p50_ns as f64 / 1e3, 2)),
            interval: None,
        };
        let all: Vec<Bar> = parts().filter(|part| part.p50_ns > 0).map(bar).collect();
        page.push_str(&bars(&format!("{}: median by part", kind.title), "Lower is better.", &all));
    }
}

/// The tests beside baselines and other programs: times and rates apart, since more of a rate is better.
fn beside(page: &mut String, reports: &[&Report]) {
    for (is_time, title, note) in [
        (
            true,
            "Times beside others",
            "Time of the test over that of the other, in turns on the same two cores. Left of \
                                       the dashed line the test is faster. The line on a bar is the 95 % interval; the scale is \
                                       logarithmic.",
        ),
        (
            false,
            "Rates beside others",
            "Rate of the test over that of the other, in turns on the same two cores. Right of \
                                        the dashed line the test is faster. The line on a bar is the 95 % interval; the scale is \
                                       logarithmic.",
        ),
    ] {
        let mut all = Vec::new();
        for report in reports {
            let rows = report.rows.iter().filter(|row| regress::is_time(&row.what) == is_time);
            all.extend(rows.filter_map(|row| {
                Some(Bar::ratio(format!("{} / {}", label(report), row.name), row.ratio?, row.ratio_interval))
            }));
        }
        page.push_str(&ratios(title, note, &all));
    }
}
