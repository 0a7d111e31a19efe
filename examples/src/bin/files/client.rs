//! The client: lists, stats, fetches every file with several calls at once, compares digests.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use gimmal::{Client, Instant};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    report::{Report, queue_pairs},
    service::{Entry, FilesClient},
    tree,
};

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The folder to compare with; without it digests are only counted.
    #[arg(long)]
    pub(crate) original: Option<PathBuf>,
    /// Stop taking files above this many bytes in all.
    #[arg(long, default_value_t = 1 << 30)]
    pub(crate) bytes_max: u64,
    /// Files fetched at once.
    #[arg(long, default_value_t = 8)]
    pub(crate) at_once: usize,
    /// Print one JSON object in place of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What fetching came to, for all threads.
struct Tally {
    bytes: u64,
    bulk_bytes: u64,
    calls: u64,
    latency_ns: Histogram<u64>,
}

pub(crate) fn run(address: &str, options: &Options) -> anyhow::Result<()> {
    let client = Client::connect(address).with_context(|| format!("connecting to {address}"))?;
    let rnr_before = crate::report::rnr(&client.negotiated().device);
    let files = FilesClient::new(client.clone());
    let mut calls = 0;
    let list = list(&files, options.bytes_max, &mut calls)?;
    let total = list.iter().map(|entry| entry.bytes).sum();
    let bar = progress(total, options.json);
    let tally = Mutex::new(Tally { bytes: 0, bulk_bytes: 0, calls, latency_ns: Histogram::new(3)? });
    let (next, started) = (AtomicUsize::new(0), Instant::now());
    let queue_pairs = std::thread::scope(|scope| -> anyhow::Result<_> {
        let workers: Vec<_> = (0..options.at_once.max(1))
            .map(|_| {
                scope.spawn(|| fetch_all(&files, &list, &next, &tally, options.original.as_deref(), &bar))
            })
            .collect();
        let queue_pairs = queue_pairs();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a fetching thread panicked"))??;
        }
        Ok(queue_pairs)
    })?;
    let elapsed = started.elapsed();
    bar.finish_and_clear();
    let tally = tally.into_inner().map_err(|_| anyhow::anyhow!("a fetching thread panicked"))?;
    ensure!(tally.bytes == total, "{} bytes of {total} came", tally.bytes);
    let negotiated = &client.negotiated();
    let report = Report {
        files: list.len(),
        compared: options.original.is_some(),
        bytes: tally.bytes,
        bulk_bytes: tally.bulk_bytes,
        calls: tally.calls,
        seconds: elapsed.as_secs_f64(),
        p50_us: micros(tally.latency_ns.value_at_quantile(0.5)),
        p99_us: micros(tally.latency_ns.value_at_quantile(0.99)),
        counters: client.port_counters().unwrap_or_default(),
        rnr: crate::report::rnr(&negotiated.device).zip(rnr_before).map(|(after, before)| after - before),
        queue_pairs,
        negotiated,
    };
    if options.json {
        println!("{}", report.json())
    } else {
        print!("{report}")
    }
    report.check()?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Every file, breadth first, up to `bytes_max` in all; each is also asked for by `stat`.
fn list(files: &FilesClient, bytes_max: u64, calls: &mut u64) -> anyhow::Result<Vec<Entry>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut folders = std::collections::VecDeque::from([String::new()]);
    while let Some(folder) = folders.pop_front() {
        let mut skip = 0;
        loop {
            let page =
                files.list(folder.clone(), skip).wait().with_context(|| format!("listing '{folder}'"))?;
            *calls += 1;
            skip += u32::try_from(page.entries.len())?;
            for entry in page.entries {
                if entry.is_folder {
                    folders.push_back(entry.path);
                } else if bytes + entry.bytes <= bytes_max {
                    bytes += entry.bytes;
                    found.push(entry);
                }
            }
            if !page.more {
                break;
            }
        }
    }
    for entry in &found {
        let stat =
            files.stat(entry.path.clone()).wait().with_context(|| format!("stat of '{}'", entry.path))?;
        *calls += 1;
        ensure!(stat == *entry, "'{}' changed between list and stat", entry.path);
    }
    if found.is_empty() {
        bail!("the server has no files");
    }
    Ok(found)
}

fn fetch_all(
    files: &FilesClient,
    list: &[Entry],
    next: &AtomicUsize,
    tally: &Mutex<Tally>,
    original: Option<&Path>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    while let Some(entry) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
        let started = Instant::now();
        let got =
            files.fetch(entry.path.clone()).wait().with_context(|| format!("fetching '{}'", entry.path))?;
        let ns = u64::try_from(started.elapsed().as_nanos())?;
        let bytes: &[u8] = if got.is_empty() { &got.value.bytes } else { &got };
        ensure!(
            bytes.len() as u64 == entry.bytes,
            "'{}': {} bytes of {}",
            entry.path,
            bytes.len(),
            entry.bytes
        );
        let digest = *blake3::hash(bytes).as_bytes();
        if let Some(original) = original {
            let path = original.join(&entry.path);
            let wanted = tree::digest(&path).with_context(|| format!("reading {}", path.display()))?;
            ensure!(digest == wanted, "'{}' arrived with other bytes than it has", entry.path);
        }
        bar.inc(entry.bytes);
        let mut tally = tally.lock().map_err(|_| anyhow::anyhow!("another thread panicked"))?;
        tally.bytes += entry.bytes;
        tally.bulk_bytes += got.len() as u64;
        tally.calls += 1;
        tally.latency_ns.record(ns)?;
    }
    Ok(())
}

fn progress(bytes: u64, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
