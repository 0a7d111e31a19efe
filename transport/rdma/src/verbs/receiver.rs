//! A receiver of the news of devices.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use crate::{
    error::DeviceError,
    verbs::{
        events::{DeviceNews, Inbox},
        held,
    },
};

/// Receives the asynchronous events of every device that this process has open, and news of their removal
/// (`ibv_get_async_event(3)`).
///
/// All contexts of a device have one descriptor, whose events one thread of the process reads and acks. Each receiver
/// has all news since it was made.
#[derive(Debug)]
pub struct DeviceEvents {
    inbox: Arc<Inbox>,
}

impl DeviceEvents {
    /// Makes a receiver.
    ///
    /// # Errors
    /// [`DeviceError::System`]: no descriptor is left.
    pub fn new() -> Result<Self, DeviceError> {
        let inbox = Arc::new(Inbox::new()?);
        held::subscribe(&inbox);
        Ok(Self { inbox })
    }

    /// Readable while news wait.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inbox.bell.as_fd()
    }

    /// Returns the next news, without waiting. The device has its ack already: destroying a queue pair does not wait for
    /// this receiver. All news of a queue pair are here when its destruction returns.
    #[must_use]
    pub fn next(&self) -> Option<DeviceNews> {
        self.inbox.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        verbs::{
            events::{AsyncEvent, DeviceEvent, INBOX_NEWS},
            key::DeviceKey,
        },
        wait::{Deadline, readable},
    };

    #[test]
    fn every_receiver_has_all_news_and_is_readable_while_some_wait() {
        let receivers = [(); 2].map(|()| DeviceEvents::new().unwrap());
        let event = AsyncEvent { device: DeviceKey::made_up(1), kind: DeviceEvent::SrqLimit, element: 7 };
        let all = [DeviceNews::Event(event), DeviceNews::Removed(DeviceKey::made_up(1))];
        let is_readable =
            |receiver: &DeviceEvents| readable(&[receiver.fd()], &Deadline::after(std::time::Duration::ZERO));
        for receiver in &receivers {
            assert_eq!(is_readable(receiver), Ok(false));
            all.into_iter().for_each(|news| receiver.inbox.push(news));
            assert_eq!(is_readable(receiver), Ok(true));
            assert_eq!(receiver.next(), Some(all[0]));
            assert_eq!(is_readable(receiver), Ok(true));
            assert_eq!([receiver.next(), receiver.next()], [Some(all[1]), None]);
            assert_eq!(is_readable(receiver), Ok(false));
        }
    }

    #[test]
    fn a_receiver_that_reads_nothing_holds_a_bounded_number() {
        let receiver = DeviceEvents::new().unwrap();
        for _ in 0..2 * INBOX_NEWS {
            receiver.inbox.push(DeviceNews::Removed(DeviceKey::made_up(1)));
        }
        assert_eq!(std::iter::from_fn(|| receiver.next()).count(), INBOX_NEWS);
    }
}
