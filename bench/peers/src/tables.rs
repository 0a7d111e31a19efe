//! The tables: for people, and kept for RESULTS.md.

use std::path::Path;

use anyhow::{Context as _, Result};
use gimmal_bench::{
    results::{Table, Tables},
    slices::Estimate,
};

use crate::{
    case::{BLOCK, Case, WINDOW},
    compare::{Comparison, Reached},
    list::{Line, Section},
};

impl Comparison {
    /// Those of all sections, and what the targets came to.
    pub(crate) fn tables(&self) -> Tables {
        let shown = self.over.sections().iter().filter(|section| !section.title.is_empty());
        let mut table: Vec<Table> = shown.map(|section| self.section(section)).collect();
        table.retain(|table| !table.rows.is_empty());
        let targets = self.reached().into_iter().map(|Reached { name, estimate, is_met }| {
            let Estimate { median, low, high } = estimate;
            let verdict = if is_met { "met" } else { "**missed**" };
            vec![name, format!("{median:.3}"), format!("{low:.3}..{high:.3}"), verdict.to_owned()]
        });
        let method = "The same run. A ratio is the median of the pairs, with its 95 % interval.".to_owned();
        let columns = ["target", "ratio", "interval", "is"].map(str::to_owned).to_vec();
        table.push(self.table(self.over.title(), method, columns, targets.collect()));
        Tables { table }
    }

    fn table(&self, title: &str, method: String, columns: Vec<String>, rows: Vec<Vec<String>>) -> Table {
        let guest = if self.environment.is_guest { "virtual " } else { "" };
        let date = std::process::Command::new("date").args(["-u", "+%F"]).output();
        let date = date.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
        Table {
            machine: format!("{}, {} {guest}cores", self.environment.cpu, self.environment.cores),
            date: date.unwrap_or_default(),
            build: self.environment.commit.clone(),
            title: title.to_owned(),
            method,
            columns,
            rows,
            notes: vec![],
        }
    }

    fn section(&self, section: &Section) -> Table {
        let (reference, pins) = (section.reference, self.pins);
        let method = format!(
            "`bench/peers`: two processes on cores {} and {}, medians of {} slices of {} calls, in turns; glibc keeps freed memory. Ratios are medians of pairs; \
             below 1 is better for a round trip, above 1 for a rate. Processor time is that of a call, client + server. The load was \
             {} before and {} after.",
            pins.client,
            pins.server,
            self.rounds,
            reference.calls(self.calls),
            self.load.0,
            self.load.1
        );
        let to = format!("to {}", format!("{:?}", reference.way).to_lowercase());
        let windows: Vec<usize> = [1, WINDOW]
            .into_iter()
            .filter(|at| section.lines.iter().any(|line| line.windows.contains(at)))
            .collect();
        let mut columns = vec!["client".to_owned()];
        for window in &windows {
            let value = match (*window, reference.bytes) {
                (1, _) => "round trip, ns".to_owned(),
                (_, BLOCK) => "MB/s".to_owned(),
                _ => format!("calls/s, {WINDOW} in flight"),
            };
            columns.extend([value, to.clone(), "CPU, ns".to_owned()]);
        }
        let lines =
            section.lines.iter().filter(|line| line.windows.iter().any(|at| self.has(line.case.with(*at))));
        let rows = lines.map(|line| self.line(line, reference, &windows)).collect();
        self.table(section.title, method, columns, rows)
    }

    fn line(&self, line: &Line, reference: Case, windows: &[usize]) -> Vec<String> {
        let cells = |window: &usize| {
            let window = *window;
            let (case, reference) = (line.case.with(window), reference.with(window));
            let ratio = self.ratio(case, reference).filter(|_| case != reference);
            let cpu = self.cpu_ns(case).map(|[client, server]| format!("{client:.0} + {server:.0}"));
            let megabytes = if case.bytes == BLOCK { BLOCK as f64 / 1e6 } else { 1.0 };
            let value = self.value(case).map(|value| format!("{:.0}", value * megabytes));
            [value, ratio.map(|ratio| format!("{:.3}", ratio.median)), cpu].map(Option::unwrap_or_default)
        };
        [line.what.to_owned()].into_iter().chain(windows.iter().flat_map(cells)).collect()
    }
}

/// Puts `tables` into a file, in place of those that have their titles.
pub(crate) fn record(tables: Tables, path: &Path) -> Result<()> {
    let mut all = Tables { table: vec![] };
    if path.exists() {
        let text = std::fs::read_to_string(path)?;
        all = Tables::parse(&text).with_context(|| format!("the tables of {}", path.display()))?;
    }
    for table in tables.table {
        match all.table.iter_mut().find(|old| (&old.title, &old.machine) == (&table.title, &table.machine)) {
            Some(old) => *old = table,
            None => all.table.push(table),
        }
    }
    Ok(std::fs::write(path, all.to_toml())?)
}
