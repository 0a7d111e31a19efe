//! What the doctor found, as text and as JSON.

use std::{
    fmt,
    io::{self, Write},
};

use serde::Serialize;

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(crate) enum Verdict {
    Fine {
        detail: String,
    },
    Wrong {
        detail: String,
        /// The command that fixes it.
        fix: String,
        /// Whether connections need it: something else may do.
        needed: bool,
    },
    /// It cannot be judged before something else is fixed.
    NotChecked {
        needs: &'static str,
    },
}

impl Check {
    pub(crate) fn fine(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fine { detail: detail.into() } }
    }

    pub(crate) fn wrong(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Wrong { detail: detail.into(), fix: fix.into(), needed: true } }
    }

    pub(crate) fn not_checked(name: &'static str, needs: &'static str) -> Self {
        Self { name, verdict: Verdict::NotChecked { needs } }
    }

    pub(crate) fn is_fine(&self) -> bool {
        matches!(self.verdict, Verdict::Fine { .. })
    }

    pub(crate) fn is_wrong(&self) -> bool {
        matches!(self.verdict, Verdict::Wrong { needed: true, .. })
    }

    /// Something else does what this would.
    pub(crate) fn not_needed(mut self) -> Self {
        if let Verdict::Wrong { needed, .. } = &mut self.verdict {
            *needed = false;
        }
        self
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.verdict {
            Verdict::Fine { detail } => write!(f, "fine         {name:<15} {detail}"),
            Verdict::Wrong { detail, fix, needed } => {
                let word = if *needed { "WRONG" } else { "unused" };
                write!(f, "{word:<12} {name:<15} {detail}\n{:28} fix: {fix}", "")
            }
            Verdict::NotChecked { needs } => write!(f, "not checked  {name:<15} needs {needs}"),
        }
    }
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Report {
    /// Nothing needed is wrong.
    pub(crate) ok: bool,
    pub(crate) checks: Vec<Check>,
}

impl Report {
    pub(crate) fn new(checks: Vec<Check>) -> Self {
        Self { ok: !checks.iter().any(Check::is_wrong), checks }
    }

    pub(crate) fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if json {
            return writeln!(out, "{}", serde_json::to_string_pretty(self)?);
        }
        for check in &self.checks {
            writeln!(out, "{check}")?;
        }
        let wrong = self.checks.iter().filter(|check| check.is_wrong()).count();
        match wrong {
            0 => writeln!(out, "nothing needed is wrong"),
            1 => writeln!(out, "1 thing is wrong"),
            _ => writeln!(out, "{wrong} things are wrong"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json() {
        let wrong = Check::wrong("link", "rxe0 is DOWN", "ip link set v0 up");
        let text = wrong.to_string();
        assert!(text.starts_with("WRONG        link") && text.ends_with("fix: ip link set v0 up"), "{text}");
        let report = Report::new(vec![
            Check::fine("cores", "2"),
            wrong.clone(),
            Check::not_checked("route", "a link"),
        ]);
        assert!(!report.ok);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["checks"][0]["verdict"], "fine");
        assert_eq!(json["checks"][1]["fix"], "ip link set v0 up");
        assert_eq!(json["checks"][2]["needs"], "a link");
        assert!(Report::new(vec![wrong.not_needed()]).ok);
    }
}
