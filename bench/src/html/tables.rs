//! The tables: each column has one unit.

use std::fmt::Write as _;

use super::{
    label::{Kind, bytes_per_s, grouped, label, micros},
    markup::{Table, escaped},
};
use crate::{
    record::{HostState, Row},
    regress,
    report::Report,
};

/// The tables of one run.
pub(super) fn tables(page: &mut String, reports: &[&Report]) {
    for (kind, of) in grouped(reports) {
        let _ = write!(page, "<h3>{}</h3><p class=\"note\">{}</p>", kind.title, kind.about);
        match kind.test {
            "instructions" => page.push_str(&instructions(&of)),
            _ => page.push_str(&overview(kind, &of)),
        }
        for report in of.iter().filter(|report| !report.parts.is_empty()) {
            page.push_str(&parts(report));
        }
        if kind.test == "soak" {
            page.push_str(&soaks(&of));
        }
    }
    titled(page, "Beside others", "Measured in turns with the test, on the same two cores.", &rows(reports));
    titled(
        page,
        "Core placements",
        "Slices are grouped by what a cache line cost right before and after them. Compare within one placement only.",
        &placements(reports),
    );
    titled(
        page,
        "Processor time",
        "Per call. A side that never sleeps uses its whole core.",
        &costs(reports),
    );
}

fn titled(page: &mut String, title: &str, note: &str, table: &str) {
    if !table.is_empty() {
        let _ = write!(page, "<h3>{title}</h3><p class=\"note\">{note}</p>{table}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
const fn counted(count: u64) -> Option<f64> {
    Some(count as f64)
}

fn overview(kind: &Kind, reports: &[&Report]) -> String {
    let all = || reports.iter();
    Table::new("test", all().map(|report| label(report)))
        .numbers("p50", "µs", all().map(|report| micros(report.p50_ns)))
        .numbers("p99", "µs", all().map(|report| micros(report.p99_ns)))
        .numbers("p99.9", "µs", all().map(|report| micros(report.p999_ns)))
        .numbers("max", "µs", all().map(|report| micros(report.max_ns)))
        .numbers(
            kind.counted,
            "per second",
            all().map(|report| (report.calls_per_s > 0.0).then(|| report.calls_per_s.round())),
        )
        .numbers("bytes", "MB/s", all().map(|report| bytes_per_s(report).map(|bytes| bytes / 1e6)))
        .numbers("to floor", "x", all().map(|report| report.ratio_to_frame_floor))
        .intervals("to floor", all().map(|report| report.ratio_to_frame_floor_interval))
        .html()
}

fn instructions(reports: &[&Report]) -> String {
    let names = reports.iter().map(|report| label(report));
    let counts = reports.iter().map(|report| counted(report.count));
    Table::new("round", names).numbers("instructions", "per round", counts).html()
}

fn parts(report: &Report) -> String {
    let all = || report.parts.iter();
    Table::new("part", all().map(|part| part.name.clone()))
        .numbers("p50", "µs", all().map(|part| micros(part.p50_ns)))
        .numbers("p99", "µs", all().map(|part| micros(part.p99_ns)))
        .numbers("p99.9", "µs", all().map(|part| micros(part.p999_ns)))
        .numbers("max", "µs", all().map(|part| micros(part.max_ns)))
        .numbers("done", "per second", all().map(|part| (part.per_s > 0.0).then(|| part.per_s.round())))
        .numbers("bytes", "MB/s", all().map(|part| part.bytes_per_s.map(|bytes| bytes / 1e6)))
        .words("note", all().map(|part| part.note.clone()))
        .html()
}

fn soaks(reports: &[&Report]) -> String {
    let found: Vec<_> = reports.iter().filter_map(|report| Some((report, report.soak.as_ref()?))).collect();
    let all = || found.iter().map(|(_, soak)| *soak);
    Table::new("test", found.iter().map(|(report, _)| label(report)))
        .numbers("duration", "s", all().map(|soak| Some(soak.seconds)))
        .numbers("verified", "calls", all().map(|soak| counted(soak.verified)))
        .numbers("server killed", "times", all().map(|soak| counted(soak.kills)))
        .numbers("longest outage", "ms", all().map(|soak| counted(soak.away_ms_max)))
        .numbers("failed, did not run", "calls", all().map(|soak| counted(soak.not_run)))
        .numbers("failed, may have run", "calls", all().map(|soak| counted(soak.maybe_ran)))
        .numbers("failed, ran", "calls", all().map(|soak| counted(soak.ran)))
        .html()
}

/// The contenders of all tests, and what is typed to measure them by hand.
fn rows(reports: &[&Report]) -> String {
    let found: Vec<(&Report, &Row)> =
        reports.iter().flat_map(|report| report.rows.iter().map(move |row| (*report, row))).collect();
    let all = || found.iter().map(|(_, row)| *row);
    let is_bytes = |row: &Row| row.what.starts_with("bytes");
    let value = |wanted: fn(&Row) -> bool| move |row: &Row| row.value.filter(|_| wanted(row));
    let time = value(|row| regress::is_time(&row.what));
    let rate = value(|row| !regress::is_time(&row.what) && !row.what.starts_with("bytes"));
    let table = Table::new("other", all().map(|row| row.name.clone()))
        .words("beside the test", found.iter().map(|(report, _)| Some(label(report))))
        .numbers("time", "µs", all().map(|row| time(row).map(|nanos| nanos / 1e3)))
        .numbers("rate", "per second", all().map(|row| rate(row).map(f64::round)))
        .numbers("bytes", "MB/s", all().map(|row| row.value.filter(|_| is_bytes(row)).map(|it| it / 1e6)))
        .numbers("test / other", "x", all().map(|row| row.ratio))
        .intervals("test / other", all().map(|row| row.ratio_interval))
        .words("counted", all().map(|row| Some(row.what.clone())))
        .words("note", all().map(|row| row.note.clone()))
        .html();
    let commands: Vec<String> = all().flat_map(|row| row.commands.iter().cloned()).collect();
    if commands.is_empty() {
        return table;
    }
    let commands = escaped(&commands.join("\n"));
    format!(
        "{table}<details><summary>Commands that measure the others by hand</summary><pre>{commands}</pre></details>"
    )
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn placements(reports: &[&Report]) -> String {
    let found: Vec<(&Report, &HostState)> =
        reports.iter().flat_map(|report| report.states.iter().map(move |state| (*report, state))).collect();
    let all = || found.iter().map(|(_, state)| *state);
    Table::new("test", found.iter().map(|(report, _)| label(report)))
        .numbers("cache line", "ns", all().map(|state| Some(state.line_ns.round())))
        .numbers("slices", "number", all().map(|state| Some(state.slices as f64)))
        .numbers("p50", "µs", all().map(|state| Some(state.p50_ns / 1e3)))
        .numbers("calls", "per second", all().map(|state| Some(state.per_s.round())))
        .numbers("to floor", "x", all().map(|state| state.ratio_to_frame_floor))
        .intervals("to floor", all().map(|state| state.ratio_to_frame_floor_interval))
        .words("note", all().map(|state| (!state.is_sure()).then(|| "few slices".to_owned())))
        .html()
}

fn costs(reports: &[&Report]) -> String {
    let found: Vec<_> = reports.iter().filter_map(|report| Some((report, report.cost.as_ref()?))).collect();
    let all = || found.iter().map(|(_, cost)| *cost);
    Table::new("test", found.iter().map(|(report, _)| label(report)))
        .numbers("client", "ns", all().map(|cost| cost.client_cpu_ns))
        .numbers("server", "ns", all().map(|cost| cost.server_cpu_ns))
        .numbers("frames", "per doorbell", all().map(|cost| cost.frames_per_doorbell))
        .html()
}
