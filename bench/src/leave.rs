//! What ends with the program when a signal ends it: folders of sockets, and the programs that it runs.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use tempfile::TempDir;

use crate::error::BenchError;

/// Folders that exist.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A new folder that goes with this value, and with the program.
#[derive(Debug)]
pub(crate) struct Folder(TempDir);

impl Folder {
    /// Makes it.
    pub(crate) fn new() -> Result<Self, BenchError> {
        // Locked before: nothing is made once a signal has been taken.
        let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new().prefix("gimmal-bench-").tempdir();
        let folder = folder.map_err(BenchError::system("creating a folder for sockets"))?;
        folders.push(folder.path().to_owned());
        Ok(Self(folder))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|folder| folder != self.path());
    }
}

/// From now on SIGHUP, SIGINT and SIGTERM end the program with what it started.
///
/// # Errors
/// The signals or the thread that waits for them cannot be had.
pub fn on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let wait = move || {
        let Some(signal) = signals.forever().next() else { return };
        let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        for child in children() {
            // It may have ended by itself.
            let _ = kill_process(child, Signal::TERM);
        }
        for folder in &*folders {
            // Its owner may be removing it.
            let _ = fs::remove_dir_all(folder);
        }
        process::exit(128 + signal);
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

/// The processes that this one started and did not wait for.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |list: String| -> Vec<Pid> {
        list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    };
    lists.flat_map(pids).collect()
}
