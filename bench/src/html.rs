//! One self-contained page: what was measured, where, beside whom, and two runs beside each other.

use std::{fmt::Write as _, path::Path};

use crate::{
    error::BenchError,
    plots::{self, Axis, Line, Up, percentiles},
    record::{Part, knee, time},
    regress,
    report::{self, Report},
};

/// Plots are drawn in black on white; where the page is dark, it gives these two and the grid other colours.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--grid:#ddd;--faint:#555;--warn:#fff3cd}\
@media (prefers-color-scheme:dark){:root{--ink:#e4e4e4;--paper:#16191d;--grid:#3a3f46;--faint:#a4a9b0;--warn:#43381a}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink);\
background:var(--paper)}h1,h2{line-height:1.2}h2{margin-top:2.5rem}\
table{border-collapse:collapse;margin:1rem 0;width:100%;font-variant-numeric:tabular-nums}\
td,th{border-bottom:1px solid var(--grid);padding:.3rem .6rem;text-align:right;vertical-align:top;white-space:nowrap}\
td:first-child,th:first-child,.words{text-align:left;white-space:normal}svg{max-width:100%;height:auto;display:block;margin:1rem 0}\
svg text{fill:var(--ink)}svg [fill='#FFFFFF']{fill:var(--paper)}svg [stroke='#FFFFFF']{stroke:var(--paper)}\
svg [fill='#000000']{fill:var(--ink)}svg [stroke='#000000']{stroke:var(--ink)}svg [stroke='#DDDDDD']{stroke:var(--grid)}\
.note{color:var(--faint)}.warn{background:var(--warn);padding:.5rem .8rem;border-left:4px solid #e69f00;margin:.3rem 0}\
pre{overflow-x:auto;font-size:13px;color:var(--faint)}";

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

/// Text that is no markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The page of one run, or of two that are compared: the first is the older one.
///
/// # Errors
/// [`BenchError::Plot`].
pub fn page(runs: &[Vec<Report>]) -> Result<String, BenchError> {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>gimmal-bench</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\
         <h1>gimmal-bench</h1>"
    );
    let reports: Vec<&Report> = runs.iter().flatten().collect();
    environments(&mut page, &reports);
    overview(&mut page, &reports);
    if let [older, newer] = runs {
        compared(&mut page, older, newer)?;
    }
    for (run, title) in runs.iter().zip(["The older run", "The newer run"]) {
        let reports: Vec<&Report> = run.iter().collect();
        if runs.len() > 1 {
            let _ = write!(page, "<h2>{title}</h2>");
        }
        latencies(&mut page, &reports)?;
        sizes(&mut page, &reports)?;
    }
    for report in &reports {
        beside(&mut page, report)?;
        loads(&mut page, report)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn environments(page: &mut String, reports: &[&Report]) {
    let mut told: Vec<&Report> = Vec::new();
    for report in reports {
        if told.iter().any(|other| same_place(other, report)) {
            continue;
        }
        told.push(report);
        let at = &report.environment;
        let [total, free, kib] = at.huge_pages;
        // Writing to a string does not fail, here and below.
        let _ = write!(
            page,
            "<p class=\"note\">{}, {} cores{}; Linux {}; governor {}; {free} of {total} huge pages of {kib} KiB free; \
             devices: {}; {} build of {}</p>",
            escaped(&at.cpu),
            at.cores,
            if at.is_guest { ", a virtual machine" } else { "" },
            escaped(&at.kernel),
            escaped(at.governor.as_deref().unwrap_or("none")),
            if at.devices.is_empty() { "none".to_owned() } else { escaped(&at.devices.join(", ")) },
            at.build,
            escaped(&at.commit),
        );
    }
    if told.len() > 1 {
        page.push_str(
            "<p class=\"warn\">These records come from different places or builds: compare ratios, no times.</p>",
        );
    }
    for warning in report::warnings(reports.iter().copied()) {
        let _ = write!(page, "<p class=\"warn\">{}</p>", escaped(&warning));
    }
}

/// Whether two records may be compared in time.
fn same_place(one: &Report, other: &Report) -> bool {
    let (one, other) = (&one.environment, &other.environment);
    (&one.cpu, &one.kernel, &one.build, &one.commit, one.cores)
        == (&other.cpu, &other.kernel, &other.build, &other.commit, other.cores)
}

fn overview(page: &mut String, reports: &[&Report]) {
    page.push_str(
        "<h2>What was measured</h2><table><tr><th>test</th><th>RTT p50</th><th>half</th><th>p99</th><th>p99.9</th>\
         <th>max</th><th>per second</th><th>to frame floor</th></tr>",
    );
    for report in reports.iter().filter(|report| report.test != "instructions") {
        let ratio =
            report.ratio_to_frame_floor.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2} x"));
        let _ = write!(
            page,
            "<tr><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{ratio}</td></tr>",
            escaped(&report.name()),
            if report.is_complete { "" } else { " (incomplete)" },
            time(report.p50_ns),
            time(report.half_p50_ns),
            time(report.p99_ns),
            time(report.p999_ns),
            time(report.max_ns),
            report.calls_per_s,
        );
    }
    page.push_str("</table>");
    states(page, reports);
    for report in reports.iter().filter(|report| report.test == "instructions") {
        let _ = write!(page, "<p>{}: {}</p>", escaped(&report.name()), report.count);
    }
}

/// The result of each test in each core placement.
fn states(page: &mut String, reports: &[&Report]) {
    if reports.iter().all(|report| report.states.is_empty()) {
        return;
    }
    page.push_str(
        "<h2>States of the host</h2><p class=\"note\">Slices are grouped by what a cache line cost there and back right \
         before and after; those between two states are left out. Compare within a state only.</p><table><tr><th>test</th>\
         <th>line</th><th>slices</th><th>RTT p50</th><th>per second</th><th>to frame floor</th></tr>",
    );
    for report in reports {
        for state in &report.states {
            let ratio = match (state.ratio_to_frame_floor, state.ratio_to_frame_floor_interval) {
                (Some(ratio), Some([low, high])) => format!("{ratio:.2} x ({low:.2} to {high:.2})"),
                _ => "–".to_owned(),
            };
            let _ = write!(
                page,
                "<tr><td>{}</td><td>{:.0} ns</td><td>{}</td><td>{:.0} ns</td><td>{:.0}</td><td>{ratio}</td></tr>",
                escaped(&report.name()),
                state.line_ns,
                state.slices,
                state.p50_ns,
                state.per_s,
            );
        }
    }
    page.push_str("</table>");
}

fn latencies(page: &mut String, reports: &[&Report]) -> Result<(), BenchError> {
    let timed = reports.iter().filter(|report| report.p50_ns > 0);
    let lines: Vec<Line> = timed.map(|report| percentiles(report.name(), report)).collect();
    // More lines than that are told apart by nobody.
    for lines in lines.chunks(7) {
        page.push_str(&plots::lines("Round trip times", Axis::Percentiles, Up::Time, lines, None)?);
    }
    Ok(())
}

/// Records that differ in nothing but the size make a line.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn lines_over_size(reports: &[&Report], of: impl Fn(&Report) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for report in reports {
        let Report { test, provider, layer, mode, window, .. } = report;
        let name = format!("{test} {provider} {layer} {mode}, window {window}");
        let point = ((report.bytes.max(1) as f64).log2(), of(report));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.iter().any(|(bytes, _)| (bytes - line.points[0].0).abs() > 0.01));
    for line in &mut lines {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    lines
}

/// What becomes of times and rates when messages grow.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn sizes(page: &mut String, reports: &[&Report]) -> Result<(), BenchError> {
    let mut plot = |title: &str, up, lines: Vec<Line>| -> Result<(), BenchError> {
        if !lines.is_empty() {
            page.push_str(&plots::lines(title, Axis::Bytes, up, &lines, None)?);
        }
        Ok(())
    };
    let of = |test: &str| -> Vec<&Report> {
        reports.iter().copied().filter(|report| report.test == test).collect()
    };
    plot("RTT p50 over the size", Up::Time, lines_over_size(&of("lat"), |report| report.p50_ns as f64))?;
    plot(
        "Calls per second over the size",
        Up::Rate,
        lines_over_size(&of("rate"), |report| report.calls_per_s),
    )?;
    let bytes = |report: &Report| report.calls_per_s * report.bytes as f64;
    plot("Bytes per second over the size of a loan", Up::Bytes, lines_over_size(&of("bw"), bytes))
}

/// The contenders of a test.
fn beside(page: &mut String, report: &Report) -> Result<(), BenchError> {
    if report.rows.is_empty() {
        return Ok(());
    }
    let _ = write!(page, "<h2>Beside {}</h2>", escaped(&report.name()));
    // Each in its own plot: a test of rates has rows of times, too.
    for (is_time, title) in
        [(false, "ours over theirs (more is better)"), (true, "ours over theirs (less is better)")]
    {
        let rows = report.rows.iter().filter(|row| regress::is_time(&row.what) == is_time);
        let bars: Vec<_> =
            rows.filter_map(|row| Some((row.name.clone(), row.ratio?, row.ratio_interval?))).collect();
        if !bars.is_empty() {
            page.push_str(&plots::ratios(title, &bars)?);
        }
    }
    page.push_str(
        "<table><tr><th>who</th><th>value</th><th class=\"words\">what</th><th>slices</th>\
         <th class=\"words\">note</th></tr>",
    );
    for row in &report.rows {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"words\">{}</td><td>{}</td><td class=\"words\">{}</td></tr>",
            escaped(&row.name),
            row.shown_value().unwrap_or_default(),
            escaped(&row.what),
            row.slices,
            escaped(row.note.as_deref().unwrap_or_default()),
        );
    }
    page.push_str("</table>");
    let commands: Vec<String> = report.rows.iter().map(|row| row.commands.join("\n")).collect();
    if commands.iter().any(|lines| !lines.is_empty()) {
        let _ = write!(
            page,
            "<details><summary>The same by hand</summary><pre>{}</pre></details>",
            escaped(commands.join("\n").trim())
        );
    }
    Ok(())
}

/// The open loop, and parts of other tests.
#[expect(clippy::cast_precision_loss, reason = "for a plot")]
fn loads(page: &mut String, report: &Report) -> Result<(), BenchError> {
    if report.parts.is_empty() {
        return Ok(());
    }
    let _ = write!(page, "<h2>Parts of {}</h2>", escaped(&report.name()));
    if report.test == "load" {
        let line = |name: &str, of: fn(&Part) -> u64| Line {
            name: name.to_owned(),
            points: report.parts.iter().map(|part| (part.at, of(part) as f64)).collect(),
        };
        let mut lines =
            vec![line("open loop p50", |part| part.p50_ns), line("open loop p99", |part| part.p99_ns)];
        let closed = report.p99_ns as f64;
        let ends = report.parts.iter().map(|part| (part.at, closed)).collect();
        lines.push(Line { name: "closed loop p99".to_owned(), points: ends });
        let knee = knee(&report.parts).map(|knee| (report.parts[knee].at, " the knee"));
        let title = "Times from when calls were due, over the load";
        page.push_str(&plots::lines(title, Axis::Rate, Up::Time, &lines, knee)?);
        page.push_str(
            "<p class=\"note\">A closed loop waits for slow answers and asks less meanwhile: a stall is one slow call \
             among many. In the open loop every call that was due in a stall waits, as callers do.</p>",
        );
    }
    page.push_str(
        "<table><tr><th>part</th><th>p50</th><th>p99</th><th>p99.9</th><th>max</th><th>per second</th>\
         <th class=\"words\">note</th></tr>",
    );
    for part in &report.parts {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0}</td><td class=\"words\">{}</td></tr>",
            escaped(&part.name),
            time(part.p50_ns),
            time(part.p99_ns),
            time(part.p999_ns),
            time(part.max_ns),
            part.per_s,
            escaped(part.note.as_deref().unwrap_or_default()),
        );
    }
    page.push_str("</table>");
    Ok(())
}

/// The widest that both intervals allow.
fn quotient(now: Option<[f64; 2]>, then: Option<[f64; 2]>) -> Option<[f64; 2]> {
    let ([low, high], [then_low, then_high]) = now.zip(then)?;
    (then_low > 0.0).then(|| [low / then_high, high / then_low])
}

/// Compares the tests of two runs by their ratios to baselines and contenders, within one core placement.
fn compared(page: &mut String, older: &[Report], newer: &[Report]) -> Result<(), BenchError> {
    page.push_str(
        "<h2>Two runs</h2><p class=\"note\">Ratios to floors and to others, which were measured in each run \
                   beside the test, where a cache line cost the same in both: the newer over the older one.</p>",
    );
    let mut bars = Vec::new();
    for report in newer {
        let Some(before) = older.iter().find(|before| before.name() == report.name()) else { continue };
        let mut bar = |text: String, now: f64, then: f64, ends: [Option<[f64; 2]>; 2]| {
            if then > 0.0 {
                bars.push((text, now / then, quotient(ends[0], ends[1]).unwrap_or([now / then; 2])));
            }
        };
        for (state, then) in regress::shared(&report.states, &before.states) {
            let text = format!("{}, line {:.0} ns", report.name(), state.line_ns);
            if let (Some(now), Some(old)) = (state.ratio_to_frame_floor, then.ratio_to_frame_floor) {
                let ends = [state.ratio_to_frame_floor_interval, then.ratio_to_frame_floor_interval];
                bar(format!("{text}, to frame floor"), now, old, ends);
            }
            for row in &state.rows {
                let Some(other) = then.rows.iter().find(|other| other.name == row.name) else { continue };
                let ends = [Some(row.ratio_interval), Some(other.ratio_interval)];
                bar(format!("{text}, to {}", row.name), row.ratio, other.ratio, ends);
            }
        }
        for row in report.rows.iter().filter(|row| !row.commands.is_empty()) {
            let Some(other) = before.rows.iter().find(|other| other.name == row.name) else { continue };
            if let Some((now, then)) = row.ratio.zip(other.ratio) {
                let ends = [row.ratio_interval, other.ratio_interval];
                bar(format!("{}, to {}", report.name(), row.name), now, then, ends);
            }
        }
    }
    if bars.is_empty() {
        page.push_str("<p>The two have no test in common, or saw no state of the host in common.</p>");
        return Ok(());
    }
    page.push_str(&plots::ratios("newer over older", &bars)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{HostState, Row};

    fn report(bytes: usize, ratio: f64) -> Report {
        Report {
            test: "lat".to_owned(),
            bytes,
            p50_ns: 500,
            p99_ns: 900,
            max_ns: 10_000,
            ratio_to_frame_floor: Some(ratio),
            states: vec![HostState {
                line_ns: 400.0,
                slices: 9,
                ratio_to_frame_floor: Some(ratio),
                ratio_to_frame_floor_interval: Some([ratio * 0.9, ratio * 1.1]),
                ..HostState::default()
            }],
            rows: vec![Row {
                name: "a <rival>".to_owned(),
                ratio: Some(ratio),
                ratio_interval: Some([ratio * 0.9, ratio * 1.1]),
                ..Row::default()
            }],
            is_complete: true,
            ..Report::default()
        }
    }

    #[test]
    fn a_page_has_everything_and_no_markup_of_others() {
        let mut load = report(64, 1.0);
        load.test = "load".to_owned();
        load.parts = vec![Part { name: "offered 10 per s".to_owned(), at: 10.0, ..Part::default() }];
        let page = page(&[vec![report(64, 1.5), report(4096, 1.2), load]]).unwrap();
        for text in [
            "<!doctype html>",
            "States of the host",
            "RTT p50 over the size",
            "a &lt;rival&gt;",
            "offered 10 per s",
            "</html>",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<rival>") && !page.contains("http://") || page.contains("www.w3.org"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    #[test]
    fn rates_and_times_are_drawn_apart() {
        let mut bandwidth = report(64, 1.0);
        bandwidth.test = "bw".to_owned();
        bandwidth.rows.push(Row { what: "bytes per second".to_owned(), ..bandwidth.rows[0].clone() });
        let page = page(&[vec![bandwidth]]).unwrap();
        assert!(page.contains("(more is better)") && page.contains("(less is better)"));
        assert!(!super::page(&[vec![report(64, 1.0)]]).unwrap().contains("(more is better)"));
    }

    #[test]
    fn two_runs_are_compared_by_ratios() {
        let page = page(&[vec![report(64, 1.0)], vec![report(64, 1.5)]]).unwrap();
        assert!(page.contains("newer over older") && page.contains("1.50 x (1.23 to 1.83)"), "{page}");
        let page = super::page(&[vec![report(64, 1.0)], vec![report(65, 1.5)]]).unwrap();
        assert!(page.contains("no test in common"));
    }

    #[test]
    fn a_bad_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.json");
        let good = serde_json::to_string(&report(64, 1.0)).unwrap();
        std::fs::write(&path, format!("{good}\n\n{good}\n")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        std::fs::write(&path, format!("{good}\n{{\n")).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("runs.json:2"), "{error}");
    }
}
