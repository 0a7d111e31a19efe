//! One running guest: a QEMU process, the folder it works in, and its output.
//!
//! Dropping it kills the process, by its id. Where `setpriv` is there, the kernel does that too when this program
//! is killed without a chance to clean up.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use gimmal_transport::Instant;

use crate::{
    cache::Cache,
    follow::{Follower, Sink},
    packages, qemu, script,
    spec::Spec,
    tool,
    wire::Wire,
};

/// How often the host looks at a guest.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// From the exit code to the end of the process: power off takes a fraction of it.
const OFF_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Guest {
    process: Process,
    folder: PathBuf,
    followers: Vec<Follower>,
    wire: Wire,
}

/// Everything a guest left behind.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Of the command; `None` when it did not get that far.
    pub exit: Option<u8>,
    /// The step of the boot that failed.
    pub failed: Option<String>,
    pub dmesg: String,
    pub console: String,
    /// QEMU's own complaints.
    pub qemu: String,
}

/// Where a guest's output goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sinks {
    pub stdout: Sink,
    pub stderr: Sink,
    pub prefix: &'static str,
}

impl Guest {
    /// Starts a guest in `folder`, which must be empty. `out` is the folder it may write to.
    pub(crate) fn start(spec: &Spec, cache: &Cache, folder: &Path, out: &Path, sinks: Sinks) -> Result<Self> {
        let ctl = folder.join("ctl");
        fs::create_dir(&ctl)?;
        tool::write(&ctl.join("boot.sh"), script::boot(spec).as_bytes())?;
        tool::write(&ctl.join("session"), script::session(spec).as_bytes())?;
        let followers = vec![
            Follower::start(&ctl.join("stdout"), sinks.stdout, sinks.prefix)?,
            Follower::start(&ctl.join("stderr"), sinks.stderr, sinks.prefix)?,
        ];
        let child = command()
            .args(qemu::args(spec, cache, out))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("qemu.log"))?)
            .spawn()
            .context("cannot start QEMU")?;
        Ok(Self { process: Process(child), folder: folder.to_owned(), followers, wire: Wire::new(folder) })
    }

    /// The command's exit code, as soon as it has one.
    pub(crate) fn exit(&self) -> Option<u8> {
        fs::read_to_string(self.folder.join("ctl/exit")).ok()?.trim().parse().ok()
    }

    /// Lets a guest of a pair go that waits for its peer to be done.
    pub(crate) fn release(&self) -> Result<()> {
        tool::write(&self.folder.join("ctl/off"), b"")
    }

    /// Pulls out or puts back the network cable, if the guest asked for it. Only a guest of a pair has one.
    pub(crate) fn follow_wire(&mut self) -> Result<()> {
        self.wire.follow()
    }

    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.process.0.try_wait()?.is_none())
    }

    /// Waits for a guest that is powering off, copies the rest of its output, and reports.
    pub(crate) fn finish(mut self) -> Result<Report> {
        let end = Instant::now() + OFF_LIMIT;
        while self.is_running()? && Instant::now() < end {
            thread::sleep(POLL);
        }
        Ok(self.stop())
    }

    /// Ends the guest now.
    pub(crate) fn stop(mut self) -> Report {
        self.process.end();
        for follower in self.followers.drain(..) {
            follower.finish();
        }
        let text = |name: &str| {
            fs::read(self.folder.join(name)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        Report {
            exit: self.exit(),
            failed: text("ctl/failed").map(|step| step.trim().to_owned()),
            dmesg: text("ctl/dmesg").unwrap_or_default(),
            console: text("console.log").unwrap_or_default(),
            qemu: text("qemu.log").unwrap_or_default(),
        }
    }
}

fn command() -> Command {
    let qemu = packages::find(packages::QEMU).unwrap_or_else(|| packages::QEMU.into());
    match packages::find("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(qemu);
            command
        }
        None => Command::new(qemu),
    }
}

/// A process that does not outlive this value.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn end(&mut self) {
        // It may have ended by itself; then there is nothing to kill, and `wait` returns what it was.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
