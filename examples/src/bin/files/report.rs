//! The table at the end, and what must hold in it.

use std::{fmt, fs, process::Command, time::Duration};

use anyhow::ensure;
use gimmal::info::{DataPath, Negotiated, PortCounters};
use hdrhistogram::Histogram;

/// What fetching came to.
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    pub(crate) bulk_bytes: u64,
    /// The server reads files.
    pub(crate) reading: Duration,
    /// Files move from the server's memory to the client's, or become readable there.
    pub(crate) moving: Duration,
    /// The client computes digests of the fetched files and of the originals.
    pub(crate) hashing: Duration,
    /// Of each fetch, without reading and hashing.
    pub(crate) latency_ns: Histogram<u64>,
}

/// What a run came to.
pub(crate) struct Report<'a> {
    pub(crate) files: usize,
    pub(crate) compared: bool,
    /// Calls of `list` and `stat`, one after the other, and how long they took.
    pub(crate) calls: u64,
    pub(crate) listing: Duration,
    pub(crate) tally: Tally,
    pub(crate) counters: PortCounters,
    pub(crate) rnr: Option<u64>,
    pub(crate) queue_pairs: Vec<String>,
    pub(crate) negotiated: &'a Negotiated,
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
impl Report<'_> {
    fn calls_per_s(&self) -> f64 {
        self.calls as f64 / self.listing.as_secs_f64()
    }

    fn gigabytes_per_s(&self, part: Duration) -> f64 {
        self.tally.bytes as f64 / part.as_secs_f64() / 1e9
    }

    fn latency_us(&self, quantile: f64) -> f64 {
        self.tally.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// The counters must bear out the data path that was negotiated.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let counters = &self.counters;
        if self.negotiated.bulk_in_place {
            ensure!(
                counters.in_place_bytes >= self.tally.bulk_bytes,
                "bulk was not read in place: {counters:?}"
            );
            return Ok(());
        }
        ensure!(counters.read_bytes >= self.tally.bulk_bytes, "bulk did not come by READ: {counters:?}");
        // Over TCP the peer's port answers reads, and no device has counters.
        if self.negotiated.emulated {
            return Ok(());
        }
        match self.negotiated.path {
            DataPath::Ring => {
                ensure!(
                    counters.receives_with_imm > 0,
                    "nothing arrived by write-with-immediate: {counters:?}"
                );
            }
            DataPath::SendRecv => {
                ensure!(counters.sends > 0 && counters.receives > 0, "no sends: {counters:?}")
            }
        }
        ensure!(self.rnr.unwrap_or(0) == 0, "the device counted {:?} RNR", self.rnr);
        Ok(())
    }

    /// For programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "files": self.files, "bytes": self.tally.bytes, "bulk_bytes": self.tally.bulk_bytes, "calls": self.calls,
            "listing_s": self.listing.as_secs_f64(), "reading_s": self.tally.reading.as_secs_f64(),
            "moving_s": self.tally.moving.as_secs_f64(), "hashing_s": self.tally.hashing.as_secs_f64(),
            "calls_per_s": self.calls_per_s(), "gb_per_s": self.gigabytes_per_s(self.tally.moving),
            "p50_us": self.latency_us(0.5), "p99_us": self.latency_us(0.99), "digests_equal": self.compared,
            "provider": self.negotiated.provider, "path": self.negotiated.path.to_string(),
            "receives_with_imm": self.counters.receives_with_imm, "write_imms": self.counters.write_imms,
            "sends": self.counters.sends, "receives": self.counters.receives,
            "read_bytes": self.counters.read_bytes, "rnr": self.rnr,
        })
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<20} {value}");
        let counters = &self.counters;
        row("files", self.files.to_string())?;
        row("digests", if self.compared { "all equal to the originals" } else { "not compared" }.to_owned())?;
        row("bytes", format!("{} ({} as bulk)", self.tally.bytes, self.tally.bulk_bytes))?;
        let part = |time| format!("{time:.2?}, {:.2} GB/s", self.gigabytes_per_s(time));
        row(
            "listing",
            format!("{:.2?}, {} calls, {:.0} a second", self.listing, self.calls, self.calls_per_s()),
        )?;
        row("reading files", part(self.tally.reading))?;
        row("moving", part(self.tally.moving))?;
        row("hashing", part(self.tally.hashing))?;
        row(
            "fetch latency",
            format!("p50 {:.1} us, p99 {:.1} us", self.latency_us(0.5), self.latency_us(0.99)),
        )?;
        row("doorbells", format!("{} for {} frames", counters.doorbells, counters.frames_sent))?;
        if self.negotiated.provider == "verbs" {
            row(
                "write-with-imm",
                format!("{} sent, {} received", counters.write_imms, counters.receives_with_imm),
            )?;
            row("send/recv", format!("{} sent, {} received", counters.sends, counters.receives))?;
            row("RDMA READ", format!("{} work requests, {} bytes", counters.reads, counters.read_bytes))?;
            row("RNR", self.rnr.map_or_else(|| "not applicable".to_owned(), |rnr| rnr.to_string()))?;
            for line in &self.queue_pairs {
                row("queue pair", line.clone())?;
            }
        } else {
            row("bulk in place", format!("{} bytes", counters.in_place_bytes))?;
        }
        writeln!(f, "{}", self.negotiated)
    }
}

/// The sum of a device's RNR counters; `None` where it has none.
pub(crate) fn rnr(device: &str) -> Option<u64> {
    let name = device.split(' ').next().filter(|name| !name.is_empty())?;
    let entries = fs::read_dir(format!("/sys/class/infiniband/{name}/ports/1/hw_counters")).ok()?.flatten();
    let rnr = entries.filter(|entry| entry.file_name().to_string_lossy().contains("rnr"));
    Some(rnr.filter_map(|entry| fs::read_to_string(entry.path()).ok()?.trim().parse::<u64>().ok()).sum())
}

/// What the kernel shows of our queue pairs now; empty where there is no `rdma` program or no device.
pub(crate) fn queue_pairs() -> Vec<String> {
    let shown = Command::new("rdma").args(["resource", "show", "qp"]).output();
    let text = shown.map(|shown| String::from_utf8_lossy(&shown.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| line.contains("type RC")).map(|line| line.trim().to_owned()).collect()
}
