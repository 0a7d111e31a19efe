//! Prometheus' text format: families of samples, each in one group behind its HELP and TYPE.

use std::fmt::Write as _;

/// What a family is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A text in the making.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

impl Exposition {
    /// Begins a family; all its samples follow.
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = unlinked(help.trim()).replace('\\', "\\\\").replace('\n', " ");
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample of the family that was begun last.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// A doc comment without the marks of rustdoc: of a link its text stays.
fn unlinked(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, behind)) = after.split_once("`]") else { break };
        let target = behind.strip_prefix('(').and_then(|target| target.split_once(')'));
        (out, rest) = (out + before + name, target.map_or(behind, |(_, behind)| behind));
    }
    (out + rest).replace('`', "")
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Joins texts that may have the same families: each becomes one group, behind its first HELP and TYPE.
pub(crate) fn joined(parts: &[String]) -> String {
    let mut families: Vec<(&str, Vec<&str>)> = Vec::new();
    for part in parts {
        let mut at = None;
        for line in part.lines() {
            let head = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
            if let Some(name) = head.and_then(|head| head.split(' ').next()) {
                at = families.iter().position(|(family, _)| *family == name).or_else(|| {
                    families.push((name, Vec::new()));
                    Some(families.len() - 1)
                });
            }
            if let Some((_, lines)) = at.and_then(|at: usize| families.get_mut(at))
                && (head.is_none() || !lines.contains(&line))
            {
                lines.push(line);
            }
        }
    }
    let lines = families.into_iter().flat_map(|(_, lines)| lines);
    lines.fold(String::new(), |text, line| text + line + "\n")
}
