//! Starts every thread of the product. Signals stay with the application's threads.
//!
//! The kernel gives a signal of the process to any thread that does not block it. An application that blocks a signal
//! and takes it with `sigwait` or a signalfd would lose it to a thread of ours, so ours block them all. A new thread has
//! the mask of its creator: it is set around the start, and no signal can come between.

use std::{
    io,
    mem::MaybeUninit,
    ptr,
    thread::{Builder, JoinHandle},
};

/// Signals that a thread causes itself, or that measure it: a fault while blocked would end the process without its
/// handler, and a profiler would not see the thread.
const OWN: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGPROF];

/// Starts a thread that takes no signal sent to the process.
///
/// Threads that it starts by other means inherit its mask. `std::process::Command` clears the mask of a new process.
///
/// # Errors
/// The operating system's, when it starts no more threads.
pub(crate) fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let _blocked = Blocked::new()?;
    Builder::new().name(name.into()).spawn(run)
}

/// The calling thread takes no signal while this lives.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn new() -> io::Result<Self> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: sigfillset(3) writes a whole set to the place that it is given.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: written by sigfillset, which fails for a null pointer only.
        let mut all: libc::sigset_t = unsafe { all.assume_init() };
        for signal in OWN {
            // SAFETY: `all` is a set, borrowed for this call; each of `OWN` is a signal's number.
            unsafe { libc::sigdelset(&raw mut all, signal) };
        }
        let mut before = MaybeUninit::uninit();
        // SAFETY: reads the set `all`, and writes the thread's mask to `before`; both are on this stack.
        let errno = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, before.as_mut_ptr()) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        // SAFETY: pthread_sigmask(3) succeeded, so it wrote the mask.
        Ok(Self { before: unsafe { before.assume_init() } })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: `before` is this thread's mask as `new` found it, and the guard stays on its thread: it is never sent.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::spawn;

    /// The signals that a thread blocks, as the kernel has them.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn a_thread_blocks_all_signals_but_its_own_and_its_creator_none() {
        let before = blocked();
        let theirs = spawn("test", blocked).unwrap().join().unwrap();
        assert_eq!(blocked(), before, "the creator's mask is as it was");
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD, libc::SIGALRM, libc::SIGUSR1]
        {
            assert_ne!(theirs & bit(signal), 0, "signal {signal} reaches the thread");
        }
        for signal in super::OWN {
            assert_eq!(theirs & bit(signal), 0, "signal {signal} is blocked");
        }
    }
}
