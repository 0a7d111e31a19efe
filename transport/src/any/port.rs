//! The sub-ports of one poll thread, behind one descriptor.
//!
//! A sub-port without connections costs a load and a branch a turn, once nothing is left of those that it had: it is
//! neither polled nor armed, and its descriptor is not in the epoll. With one that has some, a poll is that one's poll and
//! a look at its new events.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use rustix::event::epoll;

use super::{
    gate::{AnyGate, Gates},
    have::{Have, PROVIDERS, Providers, SHM, Shm, TCP, Tcp, VERBS, Verbs, inner, number, outer},
    used::{Used, watch},
};
use crate::{
    AccessError, Batch, CloseReason, ConnId, Credit, CreditView, Exposed, Limit, Loan, Look, Offer, OneSided,
    Port, PortConfig, PortCounters, PortError, Position, Provider, Pulled, Pulse, Refused, Remote, Run,
    RxFrame, Staged, Time, Transfer, Violation, Wait, Waker, sync::Doorbell,
};

/// An established connection of some provider.
#[derive(Debug)]
pub enum AnyLink {
    /// Shared memory.
    Shm(<Shm as Provider>::Link),
    /// Verbs.
    Verbs(<Verbs as Provider>::Link),
    /// TCP.
    Tcp(<Tcp as Provider>::Link),
}

impl AnyLink {
    /// Closes because this process has no place for it.
    fn tell_lack(self) {
        match self {
            Self::Shm(link) => link.tell_lack(),
            // Its end is told by the device, without a cause.
            Self::Verbs(_) => {}
            Self::Tcp(link) => link.tell_lack(),
        }
    }
}

/// The data side of [`Any`](super::Any); see [`Port`].
#[derive(Debug)]
pub struct AnyPort {
    shm: Option<<Shm as Provider>::Port>,
    verbs: Option<<Verbs as Provider>::Port>,
    tcp: Option<<Tcp as Provider>::Port>,
    pub(super) used: Used,
    /// The provider that is polled first; changed when a batch was too small for all.
    first: usize,
    gate: AnyGate,
    config: PortConfig,
    /// Rung by the owner's other threads; the sub-ports have doorbells of their own, behind their descriptors.
    doorbell: Waker,
}

/// Does something with the sub-port of a connection. Shared memory comes first, since there it counts: its ids are
/// its own, and its calls cost a few nanoseconds.
macro_rules! route {
    ($self:ident.$access:ident, $conn:expr, |$port:ident, $id:ident| $then:expr, else $otherwise:expr) => {
        if number($conn) == SHM {
            let $id = $conn;
            if let Some($port) = $self.shm.$access() { $then } else { $otherwise }
        } else {
            let $id = inner($conn);
            moves!($self.$access, number($conn));
            match number($conn) {
                VERBS => {
                    if let Some($port) = $self.verbs.$access() {
                        $then
                    } else {
                        $otherwise
                    }
                }
                TCP => {
                    if let Some($port) = $self.tcp.$access() {
                        $then
                    } else {
                        $otherwise
                    }
                }
                _ => $otherwise,
            }
        }
    };
}

/// What is done with a connection begins something at its provider.
macro_rules! moves {
    ($self:ident.as_mut, $number:expr) => {
        $self.used.stir($number)
    };
    ($self:ident.as_ref, $number:expr) => {};
}

/// Does something with every sub-port that is in use, or with the sole one.
macro_rules! for_used {
    ($sole:expr; $self:ident.$access:ident, |$port:ident, $number:ident| $then:expr) => {
        match $sole {
            SHM => for_one!($self.shm.$access, |$port, $number| $then, SHM),
            VERBS => for_one!($self.verbs.$access, |$port, $number| $then, VERBS),
            TCP => for_one!($self.tcp.$access, |$port, $number| $then, TCP),
            _ => {
                if $self.used.is_used(SHM) {
                    for_one!($self.shm.$access, |$port, $number| $then, SHM);
                }
                if $self.used.is_used(VERBS) {
                    for_one!($self.verbs.$access, |$port, $number| $then, VERBS);
                }
                if $self.used.is_used(TCP) {
                    for_one!($self.tcp.$access, |$port, $number| $then, TCP);
                }
            }
        }
    };
}

macro_rules! for_one {
    ($self:ident.$sub:ident.$access:ident, |$port:ident, $number:ident| $then:expr, $value:expr) => {
        if let Some($port) = $self.$sub.$access() {
            let $number = $value;
            $then;
        }
    };
}

/// The sub-port and its gate, or the same error for both.
fn open<P: Provider>(provider: &Have<P>, config: &PortConfig) -> (Option<P::Port>, Have<P::Gate>) {
    match provider.as_ref().map_err(Clone::clone).and_then(|provider| provider.open_port(config)) {
        Ok(port) => {
            let gate = port.gate();
            (Some(port), Ok(gate))
        }
        Err(error) => (None, Err(error)),
    }
}

impl AnyPort {
    pub(super) fn open(any: &Providers, config: &PortConfig) -> Result<Self, PortError> {
        let limit = ConnId::POOL_SLOTS;
        if config.connections > limit {
            let (field, value) = ("connections", config.connections.into());
            return Err(PortError::Limit { field, value, limit: limit.into() });
        }
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let doorbell =
            Doorbell::new().map_err(|error| PortError::System { step: "eventfd", errno: errno(error) })?;
        let doorbell = Arc::new(doorbell);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| PortError::System { step: "epoll_create1", errno: errno.raw_os_error() })?;
        watch(&epoll, doorbell.as_fd())?;
        let (shm, shm_gate) = open(&any.shm, config);
        let (verbs, verbs_gate) = open(&any.verbs, config);
        let (tcp, tcp_gate) = open(&any.tcp, config);
        let gates = Gates { shm: shm_gate, verbs: verbs_gate, tcp: tcp_gate };
        gates.check()?;
        let used = Used::new(epoll);
        Ok(Self {
            shm,
            verbs,
            tcp,
            used,
            first: 0,
            gate: AnyGate { gates: Arc::new(gates) },
            config: config.clone(),
            doorbell,
        })
    }

    /// Polls the sub-ports from `from` to before `to`.
    fn poll_some(&mut self, from: usize, to: usize, now: Time, batch: &mut Batch) {
        for_used!(self.used.sole; self.as_mut, |port, number| {
            if number >= from && number < to && batch.room() > 0 && self.used.wants_poll(number) {
                self.used.poll(number, port, now, batch);
            }
        });
    }

    /// Polls several, beginning with another one after a batch that was too small for all.
    fn poll_several(&mut self, now: Time, batch: &mut Batch) {
        let first = self.first;
        self.used.begin_poll();
        self.poll_some(first, PROVIDERS, now, batch);
        self.poll_some(0, first, now, batch);
        if batch.room() == 0 {
            self.first = (first + 1) % PROVIDERS;
        }
        if self.used.has_leavers {
            for_used!(PROVIDERS; self.as_mut, |port, number| self.used.forget(number, port));
        }
    }

    /// The next run of one that is not shared memory.
    fn next_of(&mut self, sole: usize, limit: Limit) -> Look {
        for_used!(sole; self.as_mut, |port, number| {
            let mut look = port.next_run(limit);
            if let Look::Run(run) = &mut look {
                run.name(outer(number, run.conn()));
            }
            return look;
        });
        Look::Nothing
    }

    /// The next run of any, beginning with another one after each; events, when one has some.
    fn next_of_several(&mut self, limit: Limit) -> Look {
        let (first, mut look, mut looked) = (self.first, Look::Nothing, 0);
        'looks: for (from, to) in [(first, PROVIDERS), (0, first)] {
            for_used!(self.used.sole; self.as_mut, |port, number| if number >= from && number < to {
                looked += 1;
                match port.next_run(limit) {
                    Look::Run(mut run) => {
                        self.used.stir(number);
                        self.first = (number + 1) % PROVIDERS;
                        run.name(outer(number, run.conn()));
                        look = Look::Run(run);
                        break 'looks;
                    }
                    Look::Events => {
                        self.used.stir(number);
                        look = Look::Events;
                    }
                    // Room for no frame is no look.
                    Look::Nothing if matches!(limit, Limit::Frames(0)) => {}
                    Look::Nothing => self.used.in_vain(number),
                }
            });
        }
        if !matches!(limit, Limit::Frames(0)) {
            self.used.looked_at(looked);
        }
        look
    }

    fn disarm_subs(&mut self) {
        for_used!(self.used.sole; self.as_mut, |port, _number| port.disarm());
    }
}

impl Port for AnyPort {
    type Link = AnyLink;
    type Gate = AnyGate;
    type Direct = <Shm as Provider>::Port;

    #[inline]
    fn direct(&mut self) -> Option<&mut Self::Direct> {
        if self.used.sole == SHM { self.shm.as_mut() } else { None }
    }

    fn gate(&self) -> AnyGate {
        self.gate.clone()
    }

    fn adopt(&mut self, link: AnyLink, now: Time) -> Result<ConnId, PortError> {
        let (live, limit) = (self.used.connections(), self.config.connections);
        if live >= limit {
            link.tell_lack();
            let (value, limit) = (u64::from(live) + 1, limit.into());
            return Err(PortError::Limit { field: "connections", value, limit });
        }
        match link {
            AnyLink::Shm(link) => {
                self.used.adopt(SHM, self.shm.as_mut(), link, now, |link| AnyLink::Shm(link).tell_lack())
            }
            AnyLink::Verbs(link) => self
                .used
                .adopt(VERBS, self.verbs.as_mut(), link, now, |link| AnyLink::Verbs(link).tell_lack()),
            AnyLink::Tcp(link) => {
                self.used.adopt(TCP, self.tcp.as_mut(), link, now, |link| AnyLink::Tcp(link).tell_lack())
            }
        }
    }

    #[inline]
    fn compose(
        &mut self,
        conn: ConnId,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        route!(self.as_mut, conn, |port, id| port.compose(id, payload_bytes, fill), else Err(Refused::Closed))
    }

    #[inline]
    fn flush(&mut self) {
        for_used!(self.used.attended(); self.as_mut, |port, _number| port.flush());
    }

    #[inline]
    fn credit(&mut self, conn: ConnId) -> CreditView {
        route!(self.as_mut, conn, |port, id| port.credit(id), else CreditView::default())
    }

    #[inline]
    fn return_credit(&mut self, conn: ConnId, credit: Credit) {
        route!(self.as_mut, conn, |port, id| port.return_credit(id, credit), else ());
    }

    fn take_back(&mut self, conn: ConnId, receives: u64) -> Result<(), Violation> {
        route!(self.as_mut, conn, |port, id| port.take_back(id, receives), else Ok(()))
    }

    #[inline]
    fn release(&mut self, conn: ConnId, frame: RxFrame) {
        route!(self.as_mut, conn, |port, id| port.release(id, frame), else drop(frame));
    }

    #[inline]
    fn next_run(&mut self, limit: Limit) -> Look {
        if self.used.sole == SHM {
            return self.shm.as_mut().map_or(Look::Nothing, |port| port.next_run(limit));
        }
        match self.used.next() {
            SHM => self.shm.as_mut().map_or(Look::Nothing, |port| port.next_run(limit)),
            PROVIDERS => self.next_of_several(limit),
            sole => self.next_of(sole, limit),
        }
    }

    #[inline]
    fn end_run(&mut self, run: &mut Run, may_leave: bool) -> bool {
        let conn = run.conn();
        route!(self.as_mut, conn, |port, id| {
            run.name(id);
            let left = port.end_run(run, may_leave);
            run.name(conn);
            left
        }, else false)
    }

    #[inline]
    fn poll(&mut self, now: Time, batch: &mut Batch) {
        match self.used.sole {
            SHM => {
                if let Some(port) = &mut self.shm {
                    self.used.poll(SHM, port, now, batch);
                }
            }
            _ => self.poll_several(now, batch),
        }
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason, now: Time) {
        route!(self.as_mut, conn, |port, id| port.close(id, reason, now), else ());
    }

    fn pulse(&mut self, conn: ConnId, now: Time) -> Option<Pulse> {
        route!(self.as_mut, conn, |port, id| port.pulse(id, now), else None)
    }

    fn counters(&self, conn: ConnId) -> PortCounters {
        route!(self.as_ref, conn, |port, id| port.counters(id), else PortCounters::default())
    }
}

impl Transfer for AnyPort {
    fn offer(&mut self, conn: ConnId, loan: &Loan) -> Result<Offer, Refused> {
        route!(self.as_mut, conn, |port, id| port.offer(id, loan), else Err(Refused::Closed))
    }

    fn pull(&mut self, conn: ConnId, offer: Offer, token: u64) -> Result<Option<Pulled>, Refused> {
        route!(self.as_mut, conn, |port, id| port.pull(id, offer, token), else Err(Refused::Closed))
    }

    fn show(&mut self, conn: ConnId, exposed: &Exposed) -> Result<Remote, AccessError> {
        route!(self.as_mut, conn, |port, id| port.show(id, exposed), else Err(AccessError::Closed))
    }

    fn access(
        &mut self,
        conn: ConnId,
        remote: Remote,
        op: OneSided,
        token: u64,
    ) -> Result<(), (AccessError, OneSided)> {
        route!(self.as_mut, conn, |port, id| port.access(id, remote, op, token), else Err((AccessError::Closed, op)))
    }
}

impl Wait for AnyPort {
    fn arm(&mut self) -> bool {
        self.doorbell.arm();
        let mut quiet = true;
        for_used!(self.used.sole; self.as_mut, |port, _number| quiet = quiet && port.arm());
        if !quiet {
            self.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        self.doorbell.disarm();
        self.used.woke();
        self.disarm_subs();
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.used.epoll.as_fd()
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.doorbell)
    }

    #[inline]
    fn deadline(&self) -> Time {
        let mut least = Time::NEVER;
        for_used!(self.used.sole; self.as_ref, |port, _number| least = least.min(port.deadline()));
        least
    }
}
