//! A worker's sleep as one descriptor that any event loop can wait for: what the port waits for, and a time.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use gimmal_transport::{Time, sync::timer};
use rustix::event::epoll;

/// A worker's sleep as one descriptor ([`AsFd`]) that any event loop can wait for: it can be read when the port has something to
/// do, or when the time that was set is over. It is only waited for, never read from.
#[derive(Debug)]
pub struct Alarm {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer rings.
    due: Cell<Time>,
}

impl Alarm {
    /// For a port that waits by `port`.
    pub(crate) fn new(port: BorrowedFd<'_>) -> io::Result<Self> {
        let timer = timer::timer()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, port, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(Self { epoll, timer, due: Cell::new(Time::NEVER) })
    }

    /// Makes the descriptor readable after this time at the latest. An earlier time that was set before and has not come stays, so
    /// that a thousand short sleeps within a second make one system call. A time that has come is forgotten. Does not block.
    ///
    /// # Errors
    /// Those of timerfd_settime(2).
    pub fn set(&self, after: Duration) -> io::Result<()> {
        let now = Time::now();
        let due = now.plus(after);
        let set = self.due.get();
        if now < set && set <= due && set < Time::NEVER {
            return Ok(());
        }
        timer::set(&self.timer, after)?;
        self.due.set(due);
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::{
        event::{PollFd, PollFlags, Timespec, eventfd, poll},
        time::timerfd_gettime,
    };

    use super::*;

    fn rings_within(alarm: &Alarm, ms: i64) -> bool {
        let mut fds = [PollFd::new(alarm, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 })).unwrap() == 1
    }

    #[test]
    fn it_rings_by_the_port_and_by_the_time() {
        let port = eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let alarm = Alarm::new(port.as_fd()).unwrap();
        assert!(!rings_within(&alarm, 1));
        alarm.set(Duration::from_millis(5)).unwrap();
        assert!(rings_within(&alarm, 900));
        alarm.set(Duration::from_secs(100)).unwrap();
        assert!(!rings_within(&alarm, 1), "what it rang before is forgotten");
        alarm.set(Duration::from_secs(10)).unwrap();
        alarm.set(Duration::from_secs(100)).unwrap();
        assert!(timerfd_gettime(&alarm.timer).unwrap().it_value.tv_sec <= 10, "the sooner one stays");
        for never in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            alarm.set(never).unwrap();
            assert!(!rings_within(&alarm, 1));
        }
        for soon in [Duration::ZERO, Duration::from_nanos(1)] {
            alarm.set(soon).unwrap();
            assert!(rings_within(&alarm, 900));
        }
        alarm.set(Duration::MAX).unwrap();
        rustix::io::write(&port, &1u64.to_ne_bytes()).unwrap();
        assert!(rings_within(&alarm, 900));
    }
}
