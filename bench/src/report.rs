//! What was measured: a table for people, one JSON object for programs.

use std::fmt;

use serde::Serialize;

/// Floors that moved by more than this make a run worthless, percent.
pub const DRIFT_MAX_PCT: f64 = 15.0;

/// The result of one run. Times are round trips, in nanoseconds; `None` where there were no floors.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// How the bytes travelled.
    pub provider: &'static str,
    /// What was measured.
    pub layer: &'static str,
    /// Who ran the caller's turns.
    pub mode: &'static str,
    /// Of one body, each way.
    pub bytes: usize,
    /// Calls outstanding.
    pub window: usize,
    /// Calls measured.
    pub count: u64,
    /// Half of the calls took at most this.
    pub p50_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Over all slices of the test, what lies between calls included.
    pub calls_per_s: f64,
    /// Median of one cache line bounced.
    pub line_floor_p50_ns: Option<u64>,
    /// Median of a bare frame and its echo.
    pub frame_floor_p50_ns: Option<u64>,
    /// Window 1: the median over the frame floor's. Else: the calls per second over those of the bare frame at window 1.
    pub ratio_to_frame_floor: Option<f64>,
    /// The widest difference between slices of one floor, but for the lowest and the highest slice, percent.
    pub floor_drift_pct: Option<f64>,
    /// The client's core and the server's.
    pub cpus: [usize; 2],
    /// What was built.
    pub commit: &'static str,
}

impl Report {
    /// What is wrong with the run, if anything.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let drift = self.floor_drift_pct?;
        (drift > DRIFT_MAX_PCT).then(|| {
            format!("the floors moved by {drift:.0} % (limit {DRIFT_MAX_PCT:.0} %): the machine was not still, run it again")
        })
    }
}

/// Nanoseconds with three digits and a unit.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn time(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        _ => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

impl fmt::Display for Report {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [client, server] = self.cpus;
        writeln!(f, "provider           {}", self.provider)?;
        writeln!(f, "layer              {}, {}", self.layer, self.mode)?;
        writeln!(f, "body               {} bytes each way", self.bytes)?;
        writeln!(f, "window             {}", self.window)?;
        writeln!(f, "calls              {}", self.count)?;
        writeln!(f, "cores              {client} client, {server} server")?;
        writeln!(f, "RTT p50            {}", time(self.p50_ns))?;
        writeln!(f, "RTT p99            {}", time(self.p99_ns))?;
        writeln!(f, "RTT p99.9          {}", time(self.p999_ns))?;
        writeln!(f, "RTT max            {}", time(self.max_ns))?;
        writeln!(f, "calls per second   {:.0}", self.calls_per_s)?;
        if let (Some(line), Some(frame)) = (self.line_floor_p50_ns, self.frame_floor_p50_ns) {
            writeln!(f, "line floor         {} RTT p50", time(line))?;
            let rate = 1e9 / frame.max(1) as f64;
            writeln!(f, "frame floor        {} RTT p50, {rate:.0} per second at window 1", time(frame))?;
        } else {
            writeln!(f, "floors             none: the two processes share no file (use --loopback)")?;
        }
        if let Some(ratio) = self.ratio_to_frame_floor {
            let of =
                if self.window == 1 { "of the RTT p50" } else { "of the rates, the floor's at window 1" };
            writeln!(f, "to frame floor     {ratio:.2} x, {of}")?;
        }
        if let Some(drift) = self.floor_drift_pct {
            writeln!(f, "floors moved by    {drift:.1} %")?;
        }
        if let Some(warning) = self.warning() {
            writeln!(f, "WARNING            {warning}")?;
        }
        write!(f, "commit             {}", self.commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            provider: "shm",
            layer: "engine",
            mode: "inline",
            bytes: 64,
            window: 1,
            count: 100,
            p50_ns: 500,
            p99_ns: 700,
            p999_ns: 20_000,
            max_ns: 30_000_000,
            calls_per_s: 1.9e6,
            line_floor_p50_ns: Some(300),
            frame_floor_p50_ns: Some(400),
            ratio_to_frame_floor: Some(1.25),
            floor_drift_pct: Some(3.5),
            cpus: [0, 1],
            commit: "abc1234",
        }
    }

    #[test]
    fn golden_json() {
        let golden = concat!(
            r#"{"provider":"shm","layer":"engine","mode":"inline","bytes":64,"window":1,"count":100,"#,
            r#""p50_ns":500,"p99_ns":700,"p999_ns":20000,"max_ns":30000000,"calls_per_s":1900000.0,"#,
            r#""line_floor_p50_ns":300,"frame_floor_p50_ns":400,"ratio_to_frame_floor":1.25,"#,
            r#""floor_drift_pct":3.5,"cpus":[0,1],"commit":"abc1234"}"#
        );
        assert_eq!(serde_json::to_string(&report()).unwrap(), golden);
    }

    #[test]
    fn the_table_says_rtt_and_what_the_ratio_is() {
        let mut report = report();
        let table = report.to_string();
        assert!(table.contains("RTT p50            500 ns"), "{table}");
        assert!(table.contains("RTT p99.9          20.0 us") && table.contains("RTT max            30.0 ms"));
        assert!(table.contains("1.25 x, of the RTT p50") && !table.contains("WARNING"));
        report.window = 32;
        assert!(report.to_string().contains("of the rates, the floor's at window 1"));
    }

    #[test]
    fn moved_and_missing_floors_are_said() {
        let mut report = report();
        report.floor_drift_pct = Some(15.1);
        assert!(report.to_string().contains("WARNING            the floors moved by 15 %"));
        report.floor_drift_pct = None;
        report.line_floor_p50_ns = None;
        assert!(report.warning().is_none());
        assert!(report.to_string().contains("floors             none"));
    }
}
