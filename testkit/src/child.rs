//! Child processes of tests.

use std::{
    fs, io,
    ops::{Deref, DerefMut},
    process::{Child, Command},
};

/// A child process that is killed and reaped when this is dropped, however the test ends.
#[derive(Debug)]
pub struct ChildGuard(Child);

impl ChildGuard {
    /// Starts `command`.
    ///
    /// # Errors
    /// The process could not be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }
}

impl Deref for ChildGuard {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ChildGuard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program, to run again as another process.
///
/// # Errors
/// The path of the program is unknown.
pub fn this_program() -> io::Result<Command> {
    std::env::current_exe().map(Command::new)
}

/// How many descriptors this process has open; a leaked socket or segment is one.
///
/// # Errors
/// `/proc` cannot be read.
pub fn descriptors() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}
