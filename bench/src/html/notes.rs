//! The words of the page: what spoils the numbers, how they were made, and what the terms mean.

use std::fmt::Write as _;

use super::{
    label::label,
    markup::{escaped, number},
};
use crate::{
    advise,
    report::{self, Report},
};

/// A term and what it means. Each stands on the page.
const GLOSSARY: [(&str, &str); 20] = [
    (
        "round trip (RTT)",
        "The time from the start of a call until its answer has been read. All times are round trips \
                          unless a heading says otherwise; half of one is what some tools call latency.",
    ),
    (
        "p50, p99, p99.9",
        "Percentiles: 50 %, 99 % or 99.9 % of the calls took at most this long. p50 is the median.",
    ),
    ("µs, ns", "Microseconds (a millionth of a second) and nanoseconds (a thousandth of a microsecond)."),
    ("MB/s", "10^6 bytes per second, in one direction. Only the bytes of bodies and loans count."),
    (
        "B, KiB, MiB",
        "Bytes, 1,024 bytes, and 1,048,576 bytes: the size of one body, each way, or of one loan.",
    ),
    ("in flight", "Calls that have started and not ended. One at a time is a window of 1."),
    (
        "closed loop, open loop",
        "A closed loop starts a call when an earlier one has ended. An open loop starts calls when \
                                they are due, whether or not earlier ones have ended.",
    ),
    (
        "knee",
        "The highest load that was reached without its p99 growing to more than ten times that of the lowest load.",
    ),
    (
        "engine, rpc, typed, pipeline",
        "Layers: messages of the engine; calls of a raw method; calls of a typed method through \
                                      its codec; raw calls that are told apart by tags.",
    ),
    ("inline", "The calling thread moves its own calls, and polls without sleeping."),
    ("handoff", "A worker thread moves the calls, and sleeps when it has nothing to do."),
    (
        "asleep",
        "The calling thread moves its own calls, and both sides sleep whenever they have nothing to do.",
    ),
    ("loan", "Memory that one side lends with a call. The other side fetches and reads it."),
    (
        "cache line",
        "A cache-line round trip: one core writes a word, the other sees it and writes back. It shows how far \
                    apart the two cores are, and is the least that any exchange can take.",
    ),
    (
        "core placement",
        "Which physical cores the two processes had: the same core, a shared L3 cache, or separate ones. The \
                        host of a virtual machine changes it at any time.",
    ),
    ("slice", "A few milliseconds of measuring one contender. Slices of all contenders take turns."),
    (
        "to floor",
        "The test over the frame floor, which is an echo of bare frames without an engine. One call at a time \
                  compares medians. Calls in flight compare rates, with the floor's at one frame at a time.",
    ),
    (
        "test / other",
        "The number of the test over that of the other. Below 1 is better for times, above 1 for rates.",
    ),
    (
        "95 %",
        "The interval in which the ratio lies with 95 % confidence. Two ratios differ if their intervals do not meet.",
    ),
    (
        "frames per doorbell",
        "Messages that left together. More than one means that notifications were saved.",
    ),
];

/// What is wrong with the numbers, each with its remedy, and what in them asks for tuning.
pub(super) fn problems(reports: &[&Report]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let broken: Vec<String> =
        reports.iter().filter(|report| !report.is_complete).map(|report| label(report)).collect();
    if !broken.is_empty() {
        let what = format!("{} broke off, and its numbers are those from before", broken.join("; "));
        found.push((what, "run it again; the program says on standard error why it ended".to_owned()));
    }
    if !are_of_one_place(reports) {
        let what = "these records come from different machines or builds".to_owned();
        found.push((what, "compare ratios, and no times".to_owned()));
    }
    found.extend(report::warnings(reports.iter().copied()).into_iter().map(|warning| {
        let (what, remedy) = warning.split_once(": ").unwrap_or((&warning, ""));
        (what.to_owned(), remedy.to_owned())
    }));
    found
}

/// Sections of `tuning.md` that the records point to, with the reason and the tests.
fn hints(reports: &[&Report]) -> Vec<(&'static str, Vec<String>)> {
    let mut found: Vec<(&'static str, Vec<String>)> = Vec::new();
    for report in reports {
        for advice in advise::advise(report) {
            let why = format!("{}: {}", label(report), advice.why);
            match found.iter_mut().find(|(section, _)| *section == advice.section) {
                Some((_, reasons)) => reasons.push(why),
                None => found.push((advice.section, vec![why])),
            }
        }
    }
    found
}

/// A text as a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.is_empty() || text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

/// The warnings, then hints for tuning.
pub(super) fn warnings(page: &mut String, reports: &[&Report]) {
    let found = problems(reports);
    if found.is_empty() {
        page.push_str("<p>Nothing that is known to spoil the numbers was found.</p>");
    } else {
        page.push_str("<ul class=\"warnings\">");
        for (what, remedy) in found {
            let (what, remedy) = (escaped(&sentence(&what)), escaped(&sentence(&remedy)));
            let _ = write!(page, "<li><strong>{what}</strong> {remedy}</li>");
        }
        page.push_str("</ul>");
    }
    let hints = hints(reports);
    if hints.is_empty() {
        return;
    }
    page.push_str(
        "<h3>Hints for tuning</h3><p>What these numbers point to, by sections of tuning.md:</p><dl>",
    );
    for (section, reasons) in hints {
        let reasons: Vec<String> = reasons.iter().map(|reason| escaped(reason)).collect();
        let _ =
            write!(page, "<dt>{}</dt><dd>{}</dd>", escaped(&section.replace('`', "")), reasons.join("<br>"));
    }
    page.push_str("</dl>");
}

/// Whether two records may be compared in time.
fn are_of_same_place(one: &Report, other: &Report) -> bool {
    let (one, other) = (&one.environment, &other.environment);
    (&one.cpu, &one.kernel, &one.build, &one.commit, one.cores)
        == (&other.cpu, &other.kernel, &other.build, &other.commit, other.cores)
}

fn are_of_one_place(reports: &[&Report]) -> bool {
    reports.iter().all(|report| are_of_same_place(report, reports[0]))
}

/// When the records were made: a time, or the first and the last.
fn dates(reports: &[&Report]) -> String {
    let all = || reports.iter().map(|report| report.date.as_str()).filter(|date| !date.is_empty());
    match (all().min(), all().max()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(date), _) => date.to_owned(),
        _ => "not recorded".to_owned(),
    }
}

/// One line about the whole: how much, when, where, of which build.
pub(super) fn summary(reports: &[&Report]) -> String {
    let Some(first) = reports.first() else { return "No records.".to_owned() };
    let at = &first.environment;
    let count = if reports.len() == 1 { "1 result".to_owned() } else { format!("{} results", reports.len()) };
    let place = if are_of_one_place(reports) {
        let guest = if at.is_guest { ", virtual machine" } else { "" };
        format!("{}, {} cores{guest}; {} build of {}", at.cpu, at.cores, at.build, at.commit)
    } else {
        "several machines or builds".to_owned()
    };
    format!("{count}, {}. {place}.", dates(reports))
}

/// When, where and by which commands the numbers were made.
pub(super) fn method(page: &mut String, reports: &[&Report]) {
    page.push_str(
        "<p>Client and server are two processes, each on a core of its own. The test, the baselines and the other programs \
         take turns of a few milliseconds on these cores, and only neighbouring turns are compared.</p>",
    );
    let mut told: Vec<&Report> = Vec::new();
    for report in reports {
        if !told.iter().any(|other| are_of_same_place(other, report)) {
            told.push(report);
            let of: Vec<&Report> =
                reports.iter().copied().filter(|other| are_of_same_place(report, other)).collect();
            machine(page, report, &dates(&of));
        }
    }
    let mut commands: Vec<&str> = Vec::new();
    for report in reports {
        if !report.command.is_empty() && !commands.contains(&report.command.as_str()) {
            commands.push(&report.command);
        }
    }
    if !commands.is_empty() {
        let lines = escaped(&commands.join("\n"));
        let _ = write!(page, "<h3>Command lines</h3><pre>{lines}</pre>");
    }
}

fn machine(page: &mut String, report: &Report, dates: &str) {
    let at = &report.environment;
    let [total, free, kib] = at.huge_pages;
    let [client, server] = report.cpus;
    let guest = if at.is_guest { ", of a virtual machine" } else { "" };
    let devices = if at.devices.is_empty() { "none".to_owned() } else { at.devices.join(", ") };
    let lines = [
        ("Date", dates.to_owned()),
        ("Build", format!("{} build of {}", at.build, at.commit)),
        ("Processor", format!("{}, {} cores{guest}", at.cpu, at.cores)),
        ("Cores used", format!("{client} (client) and {server} (server)")),
        ("Kernel", format!("Linux {}", at.kernel)),
        ("Frequency governor", at.governor.clone().unwrap_or_else(|| "none".to_owned())),
        ("Huge pages", format!("{} of {} free, {kib} KiB each", number_of(free), number_of(total))),
        ("RDMA devices", devices),
        ("Load before", format!("{:.2} runnable processes", at.load)),
    ];
    page.push_str("<dl>");
    for (name, text) in lines {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escaped(&text));
    }
    page.push_str("</dl>");
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn number_of(count: u64) -> String {
    number(count as f64, 0)
}

/// The terms of the page.
pub(super) fn glossary(page: &mut String) {
    page.push_str("<dl>");
    for (term, meaning) in GLOSSARY {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escaped(term), escaped(meaning));
    }
    page.push_str("</dl>");
}
