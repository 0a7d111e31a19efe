//! How tests are called on the page.

use crate::report::Report;

/// A kind of test.
pub(super) struct Kind {
    /// As in a record.
    pub(super) test: &'static str,
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    /// What is counted per second.
    pub(super) counted: &'static str,
}

/// In the order of the page.
pub(super) const KINDS: [Kind; 9] = [
    kind(
        "lat",
        "Round trips, one call at a time",
        "Each call starts when the one before has ended.",
        "calls",
    ),
    kind(
        "rate",
        "Calls in flight",
        "A window of calls is kept in flight, so times include waiting behind each other.",
        "calls",
    ),
    kind(
        "load",
        "Open loop",
        "Calls start when they are due, as independent callers make them. Their times count from then.",
        "calls",
    ),
    kind("bw", "Bulk data", "One side lends memory, the other fetches and reads it.", "loans"),
    kind("stream", "Streams", "Times are those between two items.", "items"),
    kind("conn", "Connecting", "From the start of a connection until its first answer.", "connections"),
    kind("scale", "Many connections", "What a call costs beside other connections.", "calls"),
    kind("soak", "Soak", "Every byte of every answer was compared.", "calls"),
    kind(
        "instructions",
        "Instructions",
        "Instructions that both ends run for one round, counted by valgrind.",
        "",
    ),
];

const fn kind(test: &'static str, title: &'static str, about: &'static str, counted: &'static str) -> Kind {
    Kind { test, title, about, counted }
}

/// The kinds that `reports` have, with their reports. A record of an unknown kind is left out.
pub(super) fn grouped<'a>(reports: &[&'a Report]) -> Vec<(&'static Kind, Vec<&'a Report>)> {
    let of = |kind: &Kind| reports.iter().copied().filter(|report| report.test == kind.test).collect();
    KINDS.iter().map(|kind| (kind, of(kind))).filter(|(_, of): &(_, Vec<_>)| !of.is_empty()).collect()
}

/// Bytes with their unit.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

fn medium(provider: &str) -> &str {
    match provider {
        "shm" => "shared memory",
        "tcp" => "TCP",
        "verbs" => "RDMA",
        other => other,
    }
}

/// What distinguishes a test from others of its kind, but for its size.
pub(super) fn without_size(report: &Report) -> String {
    let Report { test, provider, layer, mode, window, threads, .. } = report;
    if test == "instructions" {
        return layer.clone();
    }
    let mut text = format!("{layer}, {mode}, {}", medium(provider));
    if *window > 1 {
        text += &format!(", {window} in flight");
    }
    if *threads > 1 {
        text += &format!(", {threads} threads");
    }
    text
}

/// What distinguishes a test from others of its kind.
pub(super) fn label(report: &Report) -> String {
    let text = without_size(report);
    let has_size = !matches!(&*report.test, "instructions" | "stream" | "soak");
    let broken = if report.is_complete { "" } else { " (incomplete)" };
    if has_size { format!("{text}, {}{broken}", size(report.bytes)) } else { text + broken }
}

/// Nanoseconds as microseconds; none for a time that was not measured.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn micros(nanos: u64) -> Option<f64> {
    (nanos > 0).then_some(nanos as f64 / 1e3)
}

/// Bytes of bodies per second one way, where the test moves any.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn bytes_per_s(report: &Report) -> Option<f64> {
    let of_calls =
        || matches!(&*report.test, "lat" | "rate").then(|| report.calls_per_s * report.bytes as f64);
    report.bytes_per_s.or_else(of_calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_what_differs() {
        let report = Report {
            test: "rate".to_owned(),
            provider: "shm".to_owned(),
            layer: "rpc".to_owned(),
            mode: "inline".to_owned(),
            bytes: 4096,
            window: 32,
            threads: 2,
            calls_per_s: 1e6,
            is_complete: true,
            ..Report::default()
        };
        assert_eq!(label(&report), "rpc, inline, shared memory, 32 in flight, 2 threads, 4 KiB");
        assert_eq!(bytes_per_s(&report), Some(4.096e9));
        assert_eq!((size(100), size(3 << 20), size(1025)), ("100 B".into(), "3 MiB".into(), "1025 B".into()));
        let one = Report { test: "instructions".to_owned(), layer: "engine".to_owned(), ..report };
        assert_eq!((&*without_size(&one), grouped(&[&one]).len()), ("engine", 1));
    }
}
