//! The client: lists, stats, fetches every file with several calls at once, compares digests; each part is timed by
//! itself.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use gimmal::{Client, Instant};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    report::{Report, Tally, queue_pairs, rnr},
    service::{AHEAD_BYTES, AHEAD_FILES, Entry, FilesClient},
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
    /// Files fetched at once, and threads that compute digests.
    #[arg(long, default_value_t = 8)]
    pub(crate) at_once: usize,
    /// Print one JSON object in place of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(address: &str, options: &Options) -> anyhow::Result<()> {
    let client = Client::connect(address).with_context(|| format!("connecting to {address}"))?;
    let rnr_before = rnr(&client.negotiated().context("it is connected")?.device);
    let files = FilesClient::new(client.clone());
    let (mut calls, started) = (0, Instant::now());
    let list = list(&files, options.bytes_max, &mut calls)?;
    let listing = started.elapsed();
    let total = list.iter().map(|entry| entry.bytes).sum();
    let bar = progress(total, options.json);
    let queue_pairs = queue_pairs();
    let mut tally = Tally {
        bytes: 0,
        bulk_bytes: 0,
        reading: Duration::ZERO,
        moving: Duration::ZERO,
        hashing: Duration::ZERO,
        latency_ns: Histogram::new(3)?,
    };
    let mut rest = &list[..];
    while !rest.is_empty() {
        let (batch, behind) = rest.split_at(batch_len(rest));
        fetch(&files, batch, options, &mut tally, &bar)?;
        rest = behind;
    }
    bar.finish_and_clear();
    ensure!(tally.bytes == total, "{} bytes of {total} came", tally.bytes);
    let negotiated = &client.negotiated().context("it is connected")?;
    let report = Report {
        files: list.len(),
        compared: options.original.is_some(),
        calls,
        listing,
        tally,
        counters: client.port_counters().unwrap_or_default(),
        rnr: rnr(&negotiated.device).zip(rnr_before).map(|(after, before)| after - before),
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

/// Every file, breadth first, up to `bytes_max` in all; each is also asked for by `stat`.
fn list(files: &FilesClient, bytes_max: u64, calls: &mut u64) -> anyhow::Result<Vec<Entry>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut folders = VecDeque::from([String::new()]);
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

/// How many of the first files are read ahead, fetched and compared together, at least one.
fn batch_len(list: &[Entry]) -> usize {
    let sums = list.iter().scan(0, |bytes, entry| {
        *bytes += entry.bytes;
        Some(*bytes)
    });
    sums.take(AHEAD_FILES).take_while(|bytes| *bytes <= AHEAD_BYTES).count().max(1)
}

/// Has the server read files, fetches them, then compares digests: one after the other, so that each can be timed by
/// itself.
fn fetch(
    files: &FilesClient,
    batch: &[Entry],
    options: &Options,
    tally: &mut Tally,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let paths = batch.iter().map(|entry| entry.path.clone()).collect();
    files.read_ahead(paths).wait().with_context(|| format!("reading '{}' and others", batch[0].path))?;
    tally.reading = tally.reading.saturating_add(started.elapsed());

    let started = Instant::now();
    let (mut waiting, mut flying, mut came) = (batch.iter(), VecDeque::new(), Vec::new());
    loop {
        while flying.len() < options.at_once.max(1)
            && let Some(entry) = waiting.next()
        {
            flying.push_back((entry, Instant::now(), files.fetch(entry.path.clone())));
        }
        let Some((entry, since, call)) = flying.pop_front() else { break };
        let got = call.wait().with_context(|| format!("fetching '{}'", entry.path))?;
        tally.latency_ns.record(u64::try_from(since.elapsed().as_nanos())?)?;
        tally.bulk_bytes += got.len() as u64;
        came.push((entry, got));
    }
    tally.moving = tally.moving.saturating_add(started.elapsed());

    let started = Instant::now();
    let bodies: Vec<(&Entry, &[u8])> = came
        .iter()
        .map(|(entry, got)| (*entry, if got.is_empty() { &got.value.bytes[..] } else { &got[..] }))
        .collect();
    compare_all(&bodies, options, bar)?;
    tally.hashing = tally.hashing.saturating_add(started.elapsed());
    tally.bytes += bodies.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
    Ok(())
}

/// Compares files with what the server said of them and with the originals, several at once.
fn compare_all(bodies: &[(&Entry, &[u8])], options: &Options, bar: &ProgressBar) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let compare_some = || -> anyhow::Result<()> {
        while let Some((entry, bytes)) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
            compare(entry, bytes, options.original.as_deref())?;
            bar.inc(entry.bytes);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.at_once.max(1)).map(|_| scope.spawn(compare_some)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a comparing thread panicked"))??;
        }
        Ok(())
    })
}

fn compare(entry: &Entry, bytes: &[u8], original: Option<&Path>) -> anyhow::Result<()> {
    let path = &entry.path;
    ensure!(bytes.len() as u64 == entry.bytes, "'{path}': {} bytes of {}", bytes.len(), entry.bytes);
    let digest = *blake3::hash(bytes).as_bytes();
    if let Some(original) = original {
        let path = original.join(path);
        let wanted = tree::digest(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(digest == wanted, "'{}' arrived with other bytes than it has", entry.path);
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
