//! `tuning.md` and the program say the same: fields, counters, and the worked example.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeSet;

use gimmal::Stats;
use gimmal_engine::{Config, proto::window, transport::frame::span};

const TUNING: &str = include_str!("../../tuning.md");
const ENGINE: &str = include_str!("../../engine/src/config.rs");
const PORT: &str = include_str!("../../transport/src/config.rs");
const RPC: &str = include_str!("../../rpc/src/config.rs");
const DATAGRAM: &str = include_str!("../../transport/rdma/src/datagram/config.rs");
const USER_BYTES: &str = include_str!("../../transport/src/mem/user_bytes.rs");
const COUNTERS: &str = include_str!("../../transport/src/counters.rs");
const DUTY: &str = include_str!("../../engine/src/worker/duty.rs");

/// The public fields of a struct, as its source says; without the hidden ones.
fn fields(source: &str, name: &str) -> Vec<String> {
    let body = source.split(&format!("pub struct {name} {{")).nth(1).unwrap_or_else(|| panic!("{name}"));
    let body = &body[..body.find("\n}").unwrap()];
    let lines: Vec<&str> = body.lines().map(str::trim).collect();
    let shown = lines.iter().enumerate().filter(|(at, _)| *at == 0 || lines[at - 1] != "#[doc(hidden)]");
    let names = shown.filter_map(|(_, line)| Some(line.strip_prefix("pub ")?.split_once(':')?.0.to_owned()));
    names.collect()
}

fn prefixed(prefix: &str, names: Vec<String>) -> impl Iterator<Item = String> {
    names.into_iter().map(move |name| format!("{prefix}{name}"))
}

#[test]
fn every_field_has_a_section_and_every_section_a_field() {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let groups = ["port", "connect", "listen", "engine"].map(str::to_owned);
    known.extend(fields(ENGINE, "Config").into_iter().filter(|name| !groups.contains(name)));
    known.extend(prefixed("port.", fields(PORT, "PortConfig")));
    known.extend(prefixed("port.shared.", fields(PORT, "SharedReceives")));
    known.extend(prefixed("connect.", fields(PORT, "ConnectOptions")));
    known.extend(prefixed("listen.", fields(PORT, "ListenOptions")));
    known.extend(prefixed("rpc.", fields(RPC, "Config")).filter(|name| name != "rpc.engine"));
    known.extend(prefixed("datagram.", fields(DATAGRAM, "DatagramConfig")));
    let headings = TUNING.lines().filter_map(|line| line.strip_prefix("### "));
    let written: BTreeSet<String> =
        headings.flat_map(|heading| heading.split('`').skip(1).step_by(2).map(str::to_owned)).collect();
    assert_eq!(
        known.difference(&written).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "fields without a section"
    );
    assert_eq!(
        written.difference(&known).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "sections without a field"
    );
}

#[test]
fn every_section_has_its_shape() {
    for section in TUNING.split("\n### `").skip(1) {
        let section = section.split("\n## ").next().unwrap();
        for part in
            ["- **Bounds**", "- **Default**", "- **Cost**", "- **How to see it is wrong**", "- **Related**"]
        {
            assert_eq!(section.matches(part).count(), 1, "{part} of {}", section.lines().next().unwrap());
        }
    }
    let host = TUNING.split("\n## The host").nth(1).unwrap().split("\n## ").next().unwrap();
    assert!(host.matches("\n### ").count() >= 10);
    for section in host.split("\n### ").skip(1) {
        for part in ["- **Command**", "- **Reason**", "- **Check**", "- **Undo**"] {
            assert_eq!(section.matches(part).count(), 1, "{part} of {}", section.lines().next().unwrap());
        }
    }
}

/// All counters that a program can read.
fn counters() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = fields(COUNTERS, "PortCounters").into_iter().collect();
    known.extend(fields(USER_BYTES, "UserMemory"));
    let words = ["device", "slot_bytes"].map(str::to_owned);
    known.extend(fields(COUNTERS, "SharedState").into_iter().filter(|name| !words.contains(name)));
    known.extend(fields(DUTY, "DutySnapshot"));
    known.extend(fields(DATAGRAM, "DatagramCounters"));
    let stats = format!("{:?}", Stats::default());
    known.extend(stats.split([' ', '{']).filter_map(|word| word.strip_suffix(':').map(str::to_owned)));
    known
}

#[test]
fn every_counter_is_explained_and_every_one_that_is_named_exists() {
    let table = TUNING.split("\n## The counters").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let explained: BTreeSet<String> =
        rows.filter_map(|row| Some(row.split('`').nth(1)?.to_owned())).collect();
    let known = counters();
    assert_eq!(known.difference(&explained).collect::<Vec<_>>(), Vec::<&String>::new(), "not explained");
    assert_eq!(explained.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "no such counter");
    // What "How to see it is wrong" and the last table name in small letters is a counter, a field or a device's.
    let others = [
        "rcvd_rnr_err",
        "spin_us",
        "initiator_depth",
        "subscribe",
        "tcpdump",
        "migrations",
        "first",
        "max",
        "attempt",
    ];
    let lines = TUNING.lines().filter(|line| line.contains("How to see it is wrong"));
    let symptoms = TUNING.split("\n## When a number is bad").nth(1).unwrap().lines();
    for line in lines.chain(symptoms) {
        for name in line.split('`').skip(1).step_by(2) {
            let is_word = name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
            let is_field = TUNING.contains(&format!("### `{name}`"));
            assert!(!is_word || is_field || known.contains(name) || others.contains(&name), "{name}: {line}");
        }
    }
}

/// The number behind `words` in the worked example.
fn given(example: &str, words: &str) -> u64 {
    let rest = example.split(words).nth(1).unwrap_or_else(|| panic!("{words}"));
    let digits: String = rest
        .chars()
        .take_while(|letter| letter.is_ascii_digit() || *letter == ',')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or_else(|_| panic!("{words}"))
}

#[test]
fn the_worked_example_followed_literally_gives_what_the_plan_prints() {
    let example = TUNING.split("\n## Worked example").nth(1).unwrap().split("\n## ").next().unwrap();
    let (rate, body) = (given(example, "Wanted: "), given(example, "bodies of "));
    let (trip_us, turn_us) = (given(example, "round trip is "), given(example, "longest turn is "));
    // Step by step, with no other numbers than those given and the program's own constants.
    let bytes = span(usize::try_from(8 + body).unwrap()) as u64;
    let back_us = trip_us + turn_us;
    let in_flight = rate * back_us / 1_000_000;
    let ring = (2 * in_flight * bytes + window::CONTROL_SPAN + window::NEXT_WORD).next_power_of_two();
    let arrivals = (2 * in_flight + window::CONTROL_ARRIVALS).next_multiple_of(16);
    let mut config = Config::default();
    let sends = rate * back_us / 1_000_000 + u64::from(config.port.signal_interval);
    config.port.ring_bytes = u32::try_from(ring).unwrap();
    config.port.arrivals = u16::try_from(arrivals).unwrap();
    config.port.sends = u16::try_from(sends.next_multiple_of(64)).unwrap();
    for (field, value) in
        [("ring_bytes", ring), ("arrivals", arrivals), ("sends", sends.next_multiple_of(64))]
    {
        assert_eq!(given(example, &format!("`port.{field}` = ")), value, "{field}");
    }
    let plan = config.validate().unwrap().to_string();
    assert!(example.contains(&plan), "the example must show what the plan prints:\n{plan}");
}
