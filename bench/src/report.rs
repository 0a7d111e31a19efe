//! What was measured: a table for people, one JSON object for programs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    cost::Cost,
    environment::Environment,
    record::{HostState, Part, Row, Soaked, time},
    states::SLICES_MIN,
};

const fn one() -> usize {
    1
}

/// The result of one run. Times are round trips, in nanoseconds; `None` where there were no floors.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Which test: lat, rate, bw, load, stream, conn, scale, soak.
    pub test: String,
    /// How the bytes travelled.
    pub provider: String,
    /// What was measured.
    pub layer: String,
    /// The kind of client: inline, handoff, driven.
    pub mode: String,
    /// Of one body, each way; of one loan for bw.
    pub bytes: usize,
    /// Calls outstanding, of all threads.
    pub window: usize,
    /// Threads that called.
    #[serde(default = "one")]
    pub threads: usize,
    /// Calls measured.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Half of the calls took at most this.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// 99.99 %.
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The mean.
    #[serde(default)]
    pub mean_ns: f64,
    /// The standard deviation.
    #[serde(default)]
    pub stdev_ns: f64,
    /// Half of `p50_ns`: what others print as latency.
    pub half_p50_ns: u64,
    /// Over all slices of the test, what lies between calls included.
    pub calls_per_s: f64,
    /// Of `bw`: bytes of loans that were read, over all slices of the test.
    #[serde(default)]
    pub bytes_per_s: Option<f64>,
    /// Median of one cache line bounced.
    pub line_floor_p50_ns: Option<u64>,
    /// Median of a bare frame and its echo.
    pub frame_floor_p50_ns: Option<u64>,
    /// Window 1: the median over the frame floor's. Else: the calls per second over those of the bare frame at window
    /// 1.
    /// Of each slice with the frames before it; the median of the slices of the first of `states`.
    pub ratio_to_frame_floor: Option<f64>,
    /// Where it lies with 95 % confidence (all slices, of less than six).
    #[serde(default)]
    pub ratio_to_frame_floor_interval: Option<[f64; 2]>,
    /// The widest difference between slices of one floor, but for the lowest and the highest slice, percent. It is
    /// large where the host moves the cores about; what is compared is compared within one of `states`.
    pub floor_drift_pct: Option<f64>,
    /// The core placements that were seen, by their cache-line round trip; the one with most slices first.
    #[serde(default)]
    pub states: Vec<HostState>,
    /// Slices in no state: the lines before and after them differ, or hardly any other slice is like them.
    #[serde(default)]
    pub slices_left_out: usize,
    /// The server was started so often, each time for a part of the calls.
    #[serde(default)]
    pub starts: u32,
    /// Handed off: what it costs more than inline, over a bare thread exchange; the median of the slices.
    pub handoff_per_exchange: Option<f64>,
    /// The contenders, measured in turns with the test.
    pub rows: Vec<Row>,
    /// What a call cost besides time, of tests with slices; in the last start.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// Named parts: steps of a connection, numbers of connections, loads.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// What became of the calls of a soak.
    #[serde(default)]
    pub soak: Option<Soaked>,
    /// The client's core and the server's.
    pub cpus: [usize; 2],
    /// False: it broke off, and this is what was measured before.
    pub is_complete: bool,
    /// When the run began, in UTC: 2026-11-29 09:20.
    #[serde(default)]
    pub date: String,
    /// The command line, without what only says how results are printed.
    #[serde(default)]
    pub command: String,
    /// What was built.
    pub commit: String,
    /// Where.
    pub environment: Environment,
    /// What spoils the numbers, each with what to do about it.
    pub warnings: Vec<String>,
}

impl Report {
    /// What was measured, in few words.
    pub(crate) fn name(&self) -> String {
        let Self { test, provider, layer, mode, bytes, window, .. } = self;
        if test == "instructions" {
            return format!("instructions of a round: {layer}");
        }
        format!("{test} {provider} {layer} {mode}, {bytes} B, window {window}")
    }

    /// What is wrong with the run itself, if anything.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        self.floor_drift_pct?;
        let held = self.states.iter().map(|state| state.slices);
        let (most, all) = (held.clone().max().unwrap_or(0), held.sum::<usize>() + self.slices_left_out);
        (all >= SLICES_MIN && most < SLICES_MIN).then(|| {
            format!(
                "too few comparable samples: the host kept moving the virtual cores, and of {all} slices no core placement \
                 has {SLICES_MIN} (the most: {most}); run it again"
            )
        })
    }
}

/// The warnings of all, those once that differ in a number only.
#[must_use]
pub fn warnings<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Vec<String> {
    let mut told: Vec<(String, String)> = Vec::new();
    for report in reports {
        for warning in report.warning().into_iter().chain(report.warnings.clone()) {
            let words: String = warning.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            if told.iter().all(|(other, _)| *other != words) {
                told.push((words, warning));
            }
        }
    }
    told.into_iter().map(|(_, warning)| warning).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [client, server] = self.cpus;
        writeln!(f, "test               {} on {}, {}, {}", self.test, self.provider, self.layer, self.mode)?;
        write!(f, "body               {} bytes, window {}", self.bytes, self.window)?;
        match self.threads {
            0 | 1 => writeln!(f)?,
            threads => writeln!(f, ", of {threads} threads")?,
        }
        let starts = if self.starts > 1 { format!(" in {} starts", self.starts) } else { String::new() };
        writeln!(
            f,
            "calls              {}{starts}, cores {client} (client) and {server} (server)",
            self.count
        )?;
        if self.count > 0 {
            self.times(f)?;
        }
        if let Some(soak) = &self.soak {
            write!(f, "{soak}")?;
        }
        if let Some(cost) = &self.cost {
            write!(f, "{cost}")?;
        }
        self.floors(f)?;
        if let Some(ratio) = self.handoff_per_exchange {
            writeln!(f, "hand-over          {ratio:.2} x of a bare thread exchange above the inline RTT")?;
        }
        for (title, is_empty) in [("beside it", self.rows.is_empty()), ("parts", self.parts.is_empty())] {
            if !is_empty {
                writeln!(f, "{title}")?;
            }
            match title {
                "parts" => self.parts.iter().try_for_each(|part| writeln!(f, "{part}"))?,
                _ => self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?,
            }
        }
        if !self.is_complete {
            writeln!(f, "INCOMPLETE         it broke off; this is what was measured before")?;
        }
        for warning in self.warning().iter().chain(&self.warnings) {
            writeln!(f, "WARNING            {warning}")?;
        }
        write!(f, "commit             {}", self.commit)
    }
}

impl Report {
    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, per_second) = match &*self.test {
            "conn" => ("whole", "connections/s     "),
            "stream" => ("gap", "items per second  "),
            _ => ("RTT", "calls per second  "),
        };
        let mut line = |name: &str, text: String| writeln!(f, "{:<18} {text}", format!("{what} {name}"));
        line("p50", format!("{} (half: {})", time(self.p50_ns), time(self.half_p50_ns)))?;
        line("min, p90", format!("{}, {}", time(self.min_ns), time(self.p90_ns)))?;
        line("p99", time(self.p99_ns))?;
        line("p99.9", time(self.p999_ns))?;
        line("p99.99", time(self.p9999_ns))?;
        line("max", time(self.max_ns))?;
        writeln!(f, "{per_second} {:.0}", self.calls_per_s)?;
        self.bytes_per_s.map_or(Ok(()), |bytes| writeln!(f, "bytes per second   {bytes:.0}"))
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn floors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(frame)) = (self.line_floor_p50_ns, self.frame_floor_p50_ns) {
            writeln!(f, "line floor         {} RTT p50", time(line))?;
            let rate = 1e9 / frame.max(1) as f64;
            writeln!(f, "frame floor        {} RTT p50, {rate:.0} per second at window 1", time(frame))?;
        } else if matches!(&*self.test, "lat" | "rate") {
            writeln!(f, "floors             none: the two processes share no file (use --loopback)")?;
        }
        if let Some(ratio) = self.ratio_to_frame_floor {
            let of =
                if self.window == 1 { "of the RTT p50" } else { "of the rates, the floor's at window 1" };
            write!(f, "to frame floor     {ratio:.2} x, {of}")?;
            match self.ratio_to_frame_floor_interval {
                Some([low, high]) => writeln!(f, " ({low:.2} to {high:.2})")?,
                None => writeln!(f)?,
            }
        }
        for state in &self.states {
            writeln!(f, "host state         {state}")?;
        }
        if self.slices_left_out > 0 {
            let left_out = self.slices_left_out;
            writeln!(
                f,
                "left out           {left_out} slices: the host moved the cores, or hardly any other was like them"
            )?;
        }
        match self.floor_drift_pct {
            Some(drift) => writeln!(f, "floors moved by    {drift:.1} %, all states together"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StateRow;

    fn report() -> Report {
        Report {
            test: "lat".to_owned(),
            provider: "shm".to_owned(),
            layer: "engine".to_owned(),
            mode: "inline".to_owned(),
            bytes: 64,
            window: 1,
            count: 100,
            p50_ns: 500,
            half_p50_ns: 250,
            p99_ns: 700,
            p999_ns: 20_000,
            max_ns: 30_000_000,
            calls_per_s: 1.9e6,
            line_floor_p50_ns: Some(300),
            frame_floor_p50_ns: Some(400),
            ratio_to_frame_floor: Some(1.25),
            floor_drift_pct: Some(3.5),
            cpus: [0, 1],
            is_complete: true,
            rows: vec![Row {
                name: "ucx_perftest".to_owned(),
                what: "RTT p50".to_owned(),
                value: Some(1000.0),
                slices: 7,
                ratio: Some(0.5),
                ratio_interval: Some([0.45, 0.55]),
                note: None,
                commands: vec![],
            }],
            ..Report::default()
        }
    }

    #[test]
    fn json_comes_back() {
        let text = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
    }

    #[test]
    fn the_table_says_rtt_and_what_the_ratio_is() {
        let mut report = report();
        let table = report.to_string();
        assert!(table.contains("RTT p50            500 ns (half: 250 ns)"), "{table}");
        assert!(table.contains("RTT p99.9          20.0 us") && table.contains("RTT max            30.0 ms"));
        assert!(table.contains("1.25 x, of the RTT p50") && !table.contains("WARNING"));
        assert!(table.contains("1000 ns RTT p50; ours is 0.50 x (0.45 to 0.55, 7 pairs)"), "{table}");
        report.window = 32;
        assert!(report.to_string().contains("of the rates, the floor's at window 1"));
        report.is_complete = false;
        assert!(report.to_string().contains("INCOMPLETE"));
    }

    fn state(line_ns: f64, slices: usize, ratio: f64) -> HostState {
        HostState {
            line_ns,
            slices,
            starts: 1,
            p50_ns: 640.0,
            per_s: 1.5e6,
            ratio_to_frame_floor: Some(ratio),
            ratio_to_frame_floor_interval: Some([ratio, ratio]),
            rows: vec![StateRow { name: "a ring".to_owned(), ratio: 0.7, ..StateRow::default() }],
        }
    }

    #[test]
    fn states_restless_hosts_and_missing_floors_are_said() {
        let mut report = report();
        (report.states, report.slices_left_out) = (vec![state(402.3, 31, 1.21), state(66.0, 4, 2.1)], 12);
        let table = report.to_string();
        assert!(
            table.contains(
                "host state         line 402 ns in 31 slices: p50 640 ns, 1500000 per s; 1.21 x frame"
            ),
            "{table}"
        );
        assert!(table.contains("0.70 x a ring") && table.contains(" [few]"), "{table}");
        assert!(table.contains("left out           12 slices") && report.warning().is_none());
        report.states.remove(0);
        assert!(report.to_string().contains("and of 16 slices no core placement has 7"));
        report.slices_left_out = 2;
        assert!(report.warning().is_none(), "few slices were asked for");
        report.floor_drift_pct = None;
        report.line_floor_p50_ns = None;
        assert!(report.warning().is_none());
        assert!(report.to_string().contains("floors             none"));
    }

    #[test]
    fn a_warning_is_told_once() {
        let one = Report { slices_left_out: 8, warnings: vec!["load 1.5".to_owned()], ..report() };
        let other = Report { slices_left_out: 9, warnings: vec!["load 2.5".to_owned()], ..report() };
        let told = warnings([&one, &other]);
        assert_eq!((told.len(), &*told[1]), (2, "load 1.5"), "{told:?}");
    }
}
