//! What a record says about the configuration and the machine, and which section of `tuning.md` to read.

use serde_json::{Value, json};

use crate::{error::BenchError, out, record::time, report::Report};

/// A section of `tuning.md`, and what in the record points to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Its heading.
    pub section: &'static str,
    /// The numbers.
    pub why: String,
}

/// Above this many times the median, a p99 is a tail.
const TAIL: u64 = 10;
/// Sends that found no room, of a hundred.
const BLOCKED_PCT: u64 = 1;

/// All that a record gives reason for, the most likely first.
#[must_use]
pub fn advise(report: &Report) -> Vec<Advice> {
    let mut advice = Vec::new();
    let mut add = |is_so: bool, section: &'static str, why: String| {
        advice.extend(is_so.then_some(Advice { section, why }));
    };
    let at = &report.environment;
    let restless = report.warning();
    add(restless.is_some(), "When a number is bad", restless.unwrap_or_default());
    add(
        report.cpus[0] == report.cpus[1] && at.cores > 1,
        "`placement`",
        format!("client and server shared core {}", report.cpus[0]),
    );
    let cost = report.cost.clone().unwrap_or_default();
    let (blocked, frames) = (cost.count("blocked"), cost.count("frames_sent"));
    let is_short = blocked > 0 && blocked * 100 >= frames * BLOCKED_PCT;
    let found = format!("{blocked} sends found no room beside {frames} that left");
    add(is_short, "`port.ring_bytes`", found.clone());
    add(is_short && cost.negotiated.as_deref().is_some_and(counts_receives), "`port.arrivals`", found);
    let coalesced = cost.frames_per_doorbell.unwrap_or(f64::MAX);
    add(
        report.window > 1 && coalesced < 1.5,
        "When a number is bad",
        format!("{coalesced:.2} frames a doorbell at window {}: little was ready in one turn", report.window),
    );
    for count in &cost.counters {
        let is_device = count.name.contains('/');
        let is = |words: &[&str]| is_device && words.iter().any(|word| count.name.contains(word));
        add(
            is(&["rnr"]),
            "`port.arrivals`",
            format!("{} grew by {}: credit must prevent it", count.name, count.value),
        );
        add(
            is(&["retry", "retransmit", "out_of_seq"]),
            "`connect.ack_timeout` and `listen.ack_timeout`",
            format!("{} grew by {}", count.name, count.value),
        );
    }
    let sleeps = cost.count("sleeps");
    add(
        report.mode == "handoff" && sleeps > 0 && sleeps * 10 > report.count,
        "`idle`",
        format!("the worker slept {sleeps} times in {} calls", report.count),
    );
    let is_tail = report.p99_ns > report.p50_ns.saturating_mul(TAIL) && report.window == 1;
    let tail = format!("p99 {} is far above p50 {}", time(report.p99_ns), time(report.p50_ns));
    add(is_tail, "Core isolation", tail.clone());
    add(
        is_tail && at.governor.as_deref().is_some_and(|name| name != "performance"),
        "Frequency governor",
        tail,
    );
    let granted_less = cost.negotiated.as_deref().and_then(clamped);
    add(
        report.test == "bw" && granted_less.is_some(),
        "`port.initiator_depth`",
        granted_less.unwrap_or_default(),
    );
    add(
        report.bytes >= 2 << 20
            && at.huge_pages[1] == 0
            && at.huge_shared.as_deref() == Some("never")
            && report.provider == "shm",
        "Huge pages",
        format!("{} bytes at a time, and shared memory gets no huge pages", report.bytes),
    );
    advice
}

/// Whether the terms count receives.
fn counts_receives(negotiated: &str) -> bool {
    line(negotiated, "arrivals").is_some_and(|line| !line.contains("not applicable"))
}

/// The READ depth, when somebody clamped it.
fn clamped(negotiated: &str) -> Option<String> {
    line(negotiated, "initiator_depth")
        .filter(|line| line.contains("gives") || line.contains("device"))
        .map(str::to_owned)
}

fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find(|line| line.starts_with(name))
}

/// Prints advice about a record as a line of JSON.
pub(crate) fn print(report: &Report) -> Result<(), BenchError> {
    let advice: Vec<Value> = (advise(report).into_iter())
        .map(|Advice { section, why }| json!({ "section": section.replace('`', ""), "why": why }))
        .collect();
    out::json(&json!({ "test": report.name(), "advice": advice }))
}

/// Advice about all records, for people.
#[must_use]
pub fn tell(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let found = advise(report);
        text += &report.name();
        text.push('\n');
        for Advice { section, why } in &found {
            text += &format!("  read \"{section}\" in tuning.md: {why}\n");
        }
        if found.is_empty() {
            text += "  nothing in it asks for tuning\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Cost, Count};

    fn sections(report: &Report) -> Vec<&'static str> {
        advise(report).into_iter().map(|advice| advice.section).collect()
    }

    fn counted(counts: &[(&str, u64)]) -> Report {
        let counters = counts.iter().map(|(name, value)| Count { name: (*name).to_owned(), value: *value });
        let negotiated = Some("arrivals             64 out, 64 in\ninitiator_depth      16".to_owned());
        let cost = Cost { counters: counters.collect(), negotiated, ..Cost::default() };
        Report { cost: Some(cost), cpus: [0, 1], window: 1, p50_ns: 500, p99_ns: 600, ..Report::default() }
    }

    #[test]
    fn each_symptom_has_its_section() {
        assert_eq!(sections(&counted(&[("frames_sent", 1000)])), Vec::<&str>::new());
        let blocked = counted(&[("frames_sent", 1000), ("blocked", 50)]);
        assert_eq!(sections(&blocked), ["`port.ring_bytes`", "`port.arrivals`"]);
        assert_eq!(sections(&counted(&[("rxe0/rcvd_rnr_err", 1)])), ["`port.arrivals`"]);
        let mut slow = counted(&[]);
        slow.p99_ns = 50_000;
        slow.environment.governor = Some("powersave".to_owned());
        assert_eq!(sections(&slow), ["Core isolation", "Frequency governor"]);
        let mut moved = counted(&[]);
        (moved.floor_drift_pct, moved.slices_left_out) = (Some(40.0), 9);
        assert_eq!(sections(&moved), ["When a number is bad"]);
        let mut sleepy = counted(&[("sleeps", 90)]);
        (sleepy.mode, sleepy.count) = ("handoff".to_owned(), 100);
        assert_eq!(sections(&sleepy), ["`idle`"]);
        let text = tell(&[blocked, counted(&[])]);
        assert!(text.contains("50 sends found no room") && text.contains("nothing in it asks"), "{text}");
    }

    #[test]
    fn sections_exist() {
        let tuning = include_str!("../../tuning.md");
        let source = include_str!("advise.rs");
        for section in [
            "When a number is bad",
            "`placement`",
            "`port.ring_bytes`",
            "`port.arrivals`",
            "`connect.ack_timeout` and `listen.ack_timeout`",
            "`idle`",
            "Core isolation",
            "Frequency governor",
            "`port.initiator_depth`",
            "Huge pages",
        ] {
            assert!(tuning.lines().any(|line| line.trim_start_matches('#').trim() == section), "{section}");
            assert!(source.contains(section));
        }
    }
}
