//! Metrics in Prometheus' text format, read by a parser as strict as promtool.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Stdio},
};

use gimmal_rpc::{
    Client, Cx, Server,
    layer::{Guarded, Layered, Metrics},
};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Sums {
    async fn add(&self, cx: &Cx, a: u32, b: u32) -> u32;
    async fn halve(&self, cx: &Cx, a: u32) -> Result<u32, String>;
    async fn last(&self, cx: &Cx) -> u32;
}

struct Adder;

impl Sums for Adder {
    async fn add(&self, _: &Cx, a: u32, b: u32) -> u32 {
        a + b
    }

    async fn halve(&self, _: &Cx, a: u32) -> Result<u32, String> {
        if a.is_multiple_of(2) { Ok(a / 2) } else { Err("odd".to_owned()) }
    }

    async fn last(&self, _: &Cx) -> u32 {
        7
    }
}

type Labels = BTreeMap<String, String>;

#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    samples: Vec<(String, Labels, f64)>,
}

fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    first && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// The labels between braces, with their escapes undone.
fn labels(mut text: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").ok_or("no value")?;
        let (mut value, mut letters) = (String::new(), rest.char_indices());
        let end = loop {
            match letters.next().ok_or("no closing quote")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, letter @ ('\\' | '"'))) => letter,
                    other => return Err(format!("no escape: {other:?}")),
                }),
                (_, letter) => value.push(letter),
            }
        };
        if !is_name(name) || labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("label {name}"));
        }
        text = &rest[end + 1..];
        text = text.strip_prefix(',').unwrap_or(text);
    }
    Ok(labels)
}

/// Reads a text; an error where a scraper would have one, or a linter a complaint.
fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# HELP ") {
            let (name, help) = head.split_once(' ').ok_or("HELP without text")?;
            if families.contains_key(name) {
                return Err(format!("{name} has two groups"));
            }
            if help.contains(['`', '[']) {
                return Err(format!("{name} is explained for rustdoc: {help}"));
            }
            name.clone_into(&mut current);
            families.insert(current.clone(), Family { help: help.to_owned(), ..Family::default() });
        } else if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').ok_or("TYPE without a type")?;
            let family = families.get_mut(name).filter(|family| family.kind.is_empty() && name == current);
            kind.clone_into(&mut family.ok_or_else(|| format!("TYPE of {name} out of place"))?.kind);
        } else {
            let (series, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
            let (name, rest) = series.split_once('{').ok_or("no labels")?;
            let labels = labels(rest.strip_suffix('}').ok_or("no closing brace")?)?;
            let family = families.get_mut(&current).ok_or("a sample before its family")?;
            let part =
                name.strip_prefix(&*current).ok_or_else(|| format!("{name} is among those of {current}"))?;
            let allowed: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let is_well_named = family.kind != "counter" || name.ends_with("_total");
            if !is_name(name) || !allowed.contains(&part) || !is_well_named || !seen.insert(series.to_owned())
            {
                return Err(format!("{line} in a {}", family.kind));
            }
            let value = value.parse().map_err(|_| format!("no number: {line}"))?;
            family.samples.push((part.to_owned(), labels, value));
        }
    }
    for (name, family) in &families {
        if family.kind.is_empty() || family.help.is_empty() {
            return Err(format!("{name} has no HELP or TYPE"));
        }
        if family.kind == "histogram" {
            buckets(family)?;
        }
    }
    Ok(families)
}

/// Buckets grow up to +Inf, which is the count.
fn buckets(family: &Family) -> Result<(), String> {
    let without_le = |labels: &Labels| {
        let mut labels = labels.clone();
        let le = labels.remove("le");
        (labels, le)
    };
    let counts = family.samples.iter().filter(|(part, ..)| part == "_count");
    for (_, labels, count) in counts {
        let mut last = (f64::NEG_INFINITY, 0.0);
        for (_, bucket, value) in family.samples.iter().filter(|(part, ..)| part == "_bucket") {
            let (others, le) = without_le(bucket);
            if others != *labels {
                continue;
            }
            let le = le.ok_or("a bucket without le")?.parse::<f64>().map_err(|error| error.to_string())?;
            if le <= last.0 || *value < last.1 {
                return Err(format!("buckets of {labels:?} go back"));
            }
            last = (le, *value);
        }
        if last != (f64::INFINITY, *count) {
            return Err(format!("{labels:?} ends at {last:?}, not at {count}"));
        }
    }
    Ok(())
}

/// What the python client's parser makes of it, where it is installed: names of families and their samples.
fn by_python(text: &str) -> Option<String> {
    const READ: &str = "import sys\nfrom prometheus_client.parser import text_string_to_metric_families as read\n\
        for family in read(sys.stdin.read()): print(family.name, family.type, len(family.samples))";
    let mut python = Command::new("python3")
        .args(["-c", READ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // Without the package it ends at once.
    let _ = std::io::Write::write_all(&mut python.stdin.take().unwrap(), text.as_bytes());
    let output = python.wait_with_output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn metrics_are_a_valid_exposition() {
    let [at_server, at_client] = [Metrics::default(), Metrics::default()];
    let service = Guarded::new(serve_sums(Adder), at_server.clone());
    let server = Server::builder().service(service).listen("mem://exposition").unwrap();
    let client = Client::connect("mem://exposition").unwrap();
    let sums = SumsClient::new(Layered::new(client.clone(), at_client.clone()));
    assert_eq!(sums.add(1, 2).wait().unwrap(), 3);
    assert!(sums.halve(3).wait().is_err());
    assert_eq!(sums.last().wait().unwrap(), 7);
    let odd = "a \"side\" with \\ and\nlines";
    let text = Metrics::joined(&[
        at_server.prometheus("server"),
        server.stats().prometheus("server"),
        at_client.prometheus("client"),
        client.stats().prometheus("client"),
        client.stats().prometheus(odd),
    ]);
    let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let times = &families["gimmal_call_seconds"];
    assert_eq!((&*times.kind, times.samples.len()), ("histogram", 2 * 3 * 15));
    let failed = &families["gimmal_call_failed_total"];
    assert_eq!((&*failed.kind, failed.samples.len()), ("counter", 2 * 3));
    let sides: BTreeSet<_> =
        families["gimmal_calls_total"].samples.iter().map(|(_, labels, _)| &*labels["side"]).collect();
    assert_eq!(sides, BTreeSet::from(["server", "client", odd]));
    assert_eq!(families["gimmal_serving"].kind, "gauge");
    let calls =
        families["gimmal_calls_total"].samples.iter().find(|(_, labels, _)| labels["side"] == "client");
    assert!(calls.unwrap().2 >= 3.0);
    for part in [at_server.prometheus("x"), server.stats().prometheus("x")] {
        parse(&part).unwrap_or_else(|error| panic!("{error}\n{part}"));
    }
    if let Some(said) = by_python(&text) {
        assert!(said.contains("gimmal_call_seconds histogram 90"), "{said}");
        assert!(!said.contains("unknown") && !said.contains("untyped"), "{said}");
    }
}

/// The parser finds what was wrong before: groups that are torn apart, families without a type, counts that do not fit.
#[test]
fn the_parser_complains() {
    let family = "# HELP a_total A.\n# TYPE a_total counter\n";
    let bucket = "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"}";
    for (text, why) in [
        ("a{} 1\n".to_owned(), "before its family"),
        (format!("{family}b_total{{}} 1\n"), "among those of"),
        (format!("{family}a_total{{}} 1\na_total{{}} 1\n"), "in a counter"),
        (format!("{family}a_total{{b=\"\\x\"}} 1\n"), "no escape"),
        (format!("{family}{family}"), "two groups"),
        (format!("{bucket} 1\n"), "go back"),
        (format!("{bucket} 3\na_sum{{}} 1\na_count{{}} 4\n"), "ends at"),
        ("# HELP a A.\n".to_owned(), "no HELP or TYPE"),
        ("# HELP a As [`B`](crate::B).\n".to_owned(), "for rustdoc"),
    ] {
        let text = if why == "go back" { text + "a_count{} 1\n" } else { text };
        let error = parse(&text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}
