//! The structure of the page.

use super::*;
use crate::record::{HostState, Part, Row};

fn report(bytes: usize, ratio: f64) -> Report {
    Report {
        test: "lat".to_owned(),
        provider: "shm".to_owned(),
        layer: "engine".to_owned(),
        mode: "inline".to_owned(),
        bytes,
        window: 1,
        threads: 1,
        p50_ns: 500,
        p99_ns: 900,
        max_ns: 10_000_000,
        calls_per_s: 1_999_000.0,
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
            what: "RTT p50".to_owned(),
            value: Some(1000.0),
            ratio: Some(ratio),
            ratio_interval: Some([ratio * 0.9, ratio * 1.1]),
            note: Some("a <note>".to_owned()),
            commands: vec!["rival --to 'a <place>'".to_owned()],
            ..Row::default()
        }],
        date: "2026-11-29 09:20".to_owned(),
        command: "gimmal-bench lat --loopback -s '<any>'".to_owned(),
        warnings: vec!["this is a <debug> build: use ./x bench".to_owned()],
        is_complete: true,
        ..Report::default()
    }
}

fn of(test: &str) -> Report {
    Report { test: test.to_owned(), ..report(64, 1.0) }
}

/// A record of each kind, with everything that a record may have.
fn all_kinds() -> Vec<Report> {
    let part = |name: &str, at: f64| Part {
        name: name.to_owned(),
        at,
        p50_ns: 9_000,
        per_s: 10.0,
        ..Part::default()
    };
    let parts = vec![part("offered <10> per s", 10.0), part("offered 20 per s", 20.0)];
    let mut found: Vec<Report> = label::KINDS.iter().map(|kind| of(kind.test)).collect();
    for report in &mut found {
        if matches!(&*report.test, "load" | "stream" | "conn" | "scale") {
            report.parts.clone_from(&parts);
        }
        if report.test == "soak" {
            report.soak = Some(crate::record::Soaked { verified: 7, ..Default::default() });
        }
        if report.test == "bw" {
            report.bytes_per_s = Some(5e9);
            report.rows[0].what = "bytes per second".to_owned();
        }
    }
    found
}

/// What stands between the heading of a section and that of the next one.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let start = page.find(&format!("<section id=\"{id}\">")).unwrap();
    &page[start..start + page[start..].find("</section>").unwrap()]
}

#[test]
fn sections_are_in_order_and_nothing_is_fetched() {
    let page = page(&[all_kinds()]).unwrap();
    let places: Vec<usize> = ["plots", "tables", "warnings", "method", "glossary"]
        .map(|id| page.find(&format!("<section id=\"{id}\">")).unwrap())
        .to_vec();
    assert!(places.is_sorted(), "{places:?}");
    for id in ["plots", "tables", "warnings", "method", "glossary"] {
        assert!(page.contains(&format!("href=\"#{id}\"")), "{id}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    for tag in ["figure", "table", "section", "dl", "div", "ul", "p"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // The only address is the name of SVG's language, which no browser opens.
    let addresses =
        page.match_indices("://").filter(|(at, _)| !page[*at..].starts_with("://www.w3.org/2000/svg"));
    assert_eq!(addresses.count(), 0);
    for word in ["<script", "<img", "url(", "@import"] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn each_column_has_one_unit() {
    let page = page(&[all_kinds()]).unwrap();
    let tables = section(&page, "tables");
    for heading in
        ["p50<small>µs", "max<small>µs", "calls<small>per second", "bytes<small>MB/s", "cache line<small>ns"]
    {
        assert!(tables.contains(heading), "{heading}");
    }
    // A number stands alone in its cell; that of calls has commas.
    assert!(tables.contains("<td>1,999,000</td>") && tables.contains("<td>5,000</td>"), "{tables}");
    for cell in tables.split("<td>").skip(1) {
        let cell = &cell[..cell.find("</td>").unwrap()];
        let is_number =
            |text: &str| text.chars().all(|letter| letter.is_ascii_digit() || ",.".contains(letter));
        assert!(cell == "–" || cell.split(" to ").all(is_number), "{cell}");
    }
}

#[test]
fn names_are_no_markup() {
    let page = page(&[all_kinds()]).unwrap();
    for text in
        ["a &lt;rival&gt;", "a &lt;note&gt;", "offered &lt;10&gt; per s", "&lt;any&gt;", "a &lt;place&gt;"]
    {
        assert!(page.contains(text), "{text}");
    }
    for text in ["<rival", "<note", "<10>", "<any", "<place", "<debug"] {
        assert!(!page.contains(text), "{text}");
    }
}

#[test]
fn warnings_say_what_to_do_and_the_method_is_complete() {
    let broken = Report { is_complete: false, ..of("rate") };
    let page = page(&[vec![report(64, 1.0), broken]]).unwrap();
    let warnings = section(&page, "warnings");
    assert!(
        warnings.contains("<strong>This is a &lt;debug&gt; build.</strong> Use ./x bench."),
        "{warnings}"
    );
    assert!(warnings.contains("broke off") && warnings.contains("Run it again"), "{warnings}");
    assert!(page.contains("Warnings (2)"));
    let method = section(&page, "method");
    for text in ["2026-11-29 09:20", "gimmal-bench lat --loopback", "Processor", "Frequency governor"] {
        assert!(method.contains(text), "{text}: {method}");
    }
    assert_eq!(method.matches("gimmal-bench lat").count(), 1, "a command is told once");
    let fine = super::page(&[vec![Report { warnings: Vec::new(), ..report(64, 1.0) }]]).unwrap();
    assert!(section(&fine, "warnings").contains("Nothing that is known to spoil the numbers"));
}

#[test]
fn terms_of_the_page_are_in_the_glossary() {
    let page = page(&[all_kinds()]).unwrap();
    let glossary = section(&page, "glossary");
    for term in [
        "round trip",
        "p99",
        "µs",
        "MB/s",
        "KiB",
        "in flight",
        "open loop",
        "inline",
        "loan",
        "cache line",
        "core placement",
        "to floor",
        "test / other",
        "95 %",
        "knee",
        "frames per doorbell",
    ] {
        assert!(page.contains(term) && glossary.contains(term), "{term}");
    }
}

#[test]
fn rates_and_times_are_drawn_apart() {
    let page = page(&[vec![of("bw")]]).unwrap();
    assert!(section(&page, "plots").contains("Times beside others"));
    let page = super::page(&[all_kinds()]).unwrap();
    assert!(section(&page, "plots").contains("Rates beside others"));
    let sizes: Vec<Report> = [64, 512, 4096].map(|bytes| report(bytes, 1.0)).to_vec();
    let page = super::page(&[sizes]).unwrap();
    assert!(page.contains("Round trips over the size"));
}

#[test]
fn two_runs_are_compared_by_ratios() {
    let page = page(&[vec![report(64, 1.0)], vec![report(64, 1.5)]]).unwrap();
    let plots = section(&page, "plots");
    assert!(plots.contains("Newer run over older run") && plots.contains("1.50 x"), "{plots}");
    assert!(plots.contains("(1.23 to 1.83)"), "{plots}");
    let page = super::page(&[vec![report(64, 1.0)], vec![report(65, 1.5)]]).unwrap();
    assert!(page.contains("no test in common"));
}

#[test]
fn nothing_is_a_page_too() {
    assert!(page(&[vec![]]).unwrap().contains("No records."));
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
