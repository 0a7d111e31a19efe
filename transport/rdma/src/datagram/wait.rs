//! Waiting with a deadline, and what the CM reports in between.

use std::time::Duration;

use super::{endpoint::Datagram, event::DatagramEvent};
use crate::{
    error::{DeviceError, system},
    id::event::{CmEvent, EventKind},
    wait::{Deadline, readable},
};

/// Events kept until they are fetched, besides look-ups.
const EVENTS_KEPT: usize = 256;

impl Datagram {
    /// The next event, if there is one. Never waits.
    ///
    /// # Errors
    /// The event channel is broken.
    pub fn event(&mut self) -> Result<Option<DatagramEvent>, DeviceError> {
        while let Some(event) = CmEvent::next(&self.channel).map_err(system("rdma_get_cm_event"))? {
            self.note(event);
        }
        self.forget_old_requests();
        Ok(self.events.pop_front())
    }

    /// Waits at most `timeout` until there is a message to [receive](Self::receive) or an
    /// [event](Self::event); `false`: there is none.
    ///
    /// # Errors
    /// The completion queue or the event channel is broken.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        if !self.events.is_empty() || self.queue.arm()? {
            return Ok(true);
        }
        let arrivals = self.queue.arrivals();
        let ready = readable(&[arrivals.fd(), self.channel.fd()], &Deadline::after(timeout));
        arrivals.quiet();
        ready.map_err(system("poll"))
    }

    /// The first event that `is_mine`, before the deadline; the others are noted.
    pub(super) fn await_event(
        &mut self,
        deadline: Deadline,
        is_mine: impl Fn(&CmEvent) -> bool,
    ) -> Result<Option<CmEvent>, DeviceError> {
        loop {
            // Nothing comes from a device that is gone, except for what is here already.
            let limit = if self.gone { Deadline::after(Duration::ZERO) } else { deadline };
            let Some(event) = CmEvent::before(&self.channel, &limit)? else { return Ok(None) };
            if is_mine(&event) {
                return Ok(Some(event));
            }
            self.note(event);
        }
    }

    /// What nobody waits for.
    fn note(&mut self, event: CmEvent) {
        match note(event.kind, self.gone) {
            Note::Request => self.note_request(event),
            Note::GroupLost => {
                if let Some(group) = self.lose_group(event.join) {
                    let _ = self.keep(DatagramEvent::GroupLost { group, status: event.status });
                }
            }
            Note::DeviceRemoved => self.removed(),
            Note::AddressChanged => {
                let _ = self.keep(DatagramEvent::AddressChanged);
            }
            Note::Nothing => {}
            Note::Stray => {
                tracing::debug!(event = event.kind.name(), status = event.status, "stray datagram event");
                self.queue.counters.events_stray += 1;
            }
        }
    }

    pub(super) fn removed(&mut self) {
        self.gone = true;
        let _ = self.keep(DatagramEvent::DeviceRemoved);
    }

    /// Keeps it for [`Datagram::event`]; `false`: there is no room, it is counted and gone.
    pub(super) fn keep(&mut self, event: DatagramEvent) -> bool {
        let room = self.events.len() < EVENTS_KEPT + usize::from(self.config.requests);
        if room {
            self.events.push_back(event);
        } else {
            self.queue.counters.events_dropped += 1;
        }
        room
    }
}

/// What an event means that no call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Note {
    /// Somebody looks us up.
    Request,
    /// A group that was joined is lost.
    GroupLost,
    /// Everything on the device must be destroyed.
    DeviceRemoved,
    /// A hint.
    AddressChanged,
    /// Known, and without consequence.
    Nothing,
    /// A late answer to what was given up, or newer than this program: counted.
    Stray,
}

/// The table; `gone`: the device was removed.
const fn note(event: EventKind, gone: bool) -> Note {
    use EventKind as E;
    match (event, gone) {
        // One id after the other reports it.
        (E::DeviceRemoval, true) | (E::TimewaitExit, _) => Note::Nothing,
        (E::DeviceRemoval, false) => Note::DeviceRemoved,
        (E::ConnectRequest, _) => Note::Request,
        (E::MulticastError, _) => Note::GroupLost,
        (E::AddrChange, _) => Note::AddressChanged,
        _ => Note::Stray,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every event, before and after the removal of the device, as a table that a reader can check by eye.
    #[test]
    fn every_event_that_nobody_waits_for() {
        let line = |event: EventKind| {
            let [before, after] = [false, true].map(|gone| note(event, gone));
            format!("{} {before:?} {after:?}\n", event.name())
        };
        let table: String = EventKind::ALL.into_iter().map(line).collect();
        let expected = "\
ADDR_RESOLVED Stray Stray
ADDR_ERROR Stray Stray
ROUTE_RESOLVED Stray Stray
ROUTE_ERROR Stray Stray
CONNECT_REQUEST Request Request
CONNECT_RESPONSE Stray Stray
CONNECT_ERROR Stray Stray
UNREACHABLE Stray Stray
REJECTED Stray Stray
ESTABLISHED Stray Stray
DISCONNECTED Stray Stray
DEVICE_REMOVAL DeviceRemoved Nothing
MULTICAST_JOIN Stray Stray
MULTICAST_ERROR GroupLost GroupLost
ADDR_CHANGE AddressChanged AddressChanged
TIMEWAIT_EXIT Nothing Nothing
ADDRINFO_RESOLVED Stray Stray
ADDRINFO_ERROR Stray Stray
USER Stray Stray
INTERNAL Stray Stray
UNKNOWN Stray Stray
";
        assert_eq!(table, expected);
    }
}
