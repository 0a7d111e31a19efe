//! Copies a growing file to this program's stdout or stderr, as it grows and to its end.
//!
//! The guest writes its output into a file of the host, which holds any amount of it; a slow reader of ours delays
//! nobody but this thread.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;

const POLL: Duration = Duration::from_millis(20);
const CHUNK: usize = 64 * 1024;

/// A longer line is cut in two.
const LINE_MAX: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
    /// Not read any further. The file stays on disk.
    Nowhere,
}

#[derive(Debug)]
pub(crate) struct Follower {
    complete: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Follower {
    /// With a `prefix`, output comes in whole lines, each after the prefix.
    pub(crate) fn start(path: &Path, sink: Sink, prefix: &'static str) -> Result<Self> {
        let mut file = File::create_new(path).and_then(|_| File::open(path))?;
        let complete = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&complete);
        let thread = thread::spawn(move || {
            let mut lines = Lines { prefix, rest: Vec::new() };
            // A reader that went away is no fault of the guest: the rest is dropped.
            let _ = follow(&mut file, &stop, |bytes| emit(sink, &lines.push(bytes)));
            let _ = emit(sink, &lines.finish());
        });
        Ok(Self { complete, thread })
    }

    /// The file grows no more: returns when all of it is copied.
    pub(crate) fn finish(self) {
        self.complete.store(true, Ordering::Release);
        let _ = self.thread.join();
    }
}

fn follow(
    file: &mut File,
    stop: &AtomicBool,
    mut emit: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        // Asked before reading: what was written before it was set is then read.
        let last = stop.load(Ordering::Acquire);
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                length => emit(&chunk[..length])?,
            }
        }
        if last {
            return Ok(());
        }
        thread::sleep(POLL);
    }
}

fn emit(sink: Sink, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match sink {
        Sink::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        Sink::Stderr => io::stderr().lock().write_all(bytes),
        Sink::Nowhere => Ok(()),
    }
}

#[derive(Debug)]
struct Lines {
    prefix: &'static str,
    rest: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.prefix.is_empty() {
            return bytes.to_vec();
        }
        self.rest.extend_from_slice(bytes);
        let whole = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => self.rest.drain(..=end).collect(),
            None if self.rest.len() > LINE_MAX => std::mem::take(&mut self.rest),
            None => return Vec::new(),
        };
        self.prefixed(&whole)
    }

    fn finish(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.rest);
        self.prefixed(&rest)
    }

    fn prefixed(&self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len() + 64);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            text.extend_from_slice(self.prefix.as_bytes());
            text.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                text.push(b'\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_prefixed() {
        let mut lines = Lines { prefix: "a| ", rest: Vec::new() };
        assert_eq!(lines.push(b"on"), b"");
        assert_eq!(lines.push(b"e\ntwo\nth"), b"a| one\na| two\n");
        assert_eq!(lines.finish(), b"a| th\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn without_prefix_bytes_pass() {
        let mut lines = Lines { prefix: "", rest: Vec::new() };
        assert_eq!(lines.push(b"\x00x"), b"\x00x");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn a_growing_file_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut writer = File::create(&path).unwrap();
        let mut reader = File::open(&path).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut all = Vec::new();
            follow(&mut reader, &flag, |bytes| {
                all.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            all
        });
        for part in 0..50_u8 {
            writer.write_all(&[part; 5000]).unwrap();
        }
        stop.store(true, Ordering::Release);
        assert_eq!(thread.join().unwrap().len(), 250_000);
    }
}
