//! A descriptor that is readable when its time has come.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Makes a timer that is not set.
///
/// # Errors
/// The system call's, when there is no descriptor.
pub fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Has `timer` be readable after this time, and not before.
///
/// # Errors
/// The system call's.
pub fn set(timer: impl AsFd, after: Duration) -> io::Result<()> {
    // 0 would turn it off.
    let after = after.max(Duration::from_nanos(1));
    let it_value = Timespec {
        tv_sec: after.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: after.subsec_nanos().into(),
    };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
    Ok(())
}
