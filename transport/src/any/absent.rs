//! A provider that is not compiled in.

use std::{os::fd::BorrowedFd, sync::Arc, time::Duration};

use crate::{
    AcceptError, AccessError, Address, Batch, CloseReason, ConnId, ConnectError, ConnectOptions, Connecting,
    Credit, CreditView, Exposed, Gate, Hello, Incoming, Limit, ListenError, ListenOptions, Listener, Loan,
    LoanError, Look, MemoryNode, Offer, OneSided, Port, PortConfig, PortCounters, PortError, Position,
    Provider, Pulled, Refusal, Refused, Remote, Run, RxFrame, Staged, Time, Transfer, UserBytes, UserMemory,
    Wait, Waker, rejected::Rejected,
};

/// Every type of a provider that is not compiled in. It has no values, so no code comes of it.
#[derive(Clone, Copy, Debug)]
pub enum Absent {}

// Links of verbs end without a word.
#[cfg(not(all(feature = "shm", feature = "tcp")))]
impl Absent {
    /// Closes because this process has no place for it.
    pub(crate) fn tell_lack(self) {
        match self {}
    }
}

impl Provider for Absent {
    type Port = Self;
    type Gate = Self;
    type Link = Self;
    type Listener = Self;
    type Connecting = Self;

    fn open_port(&self, _: &PortConfig) -> Result<Self, PortError> {
        match *self {}
    }

    fn listen(&self, _: &Address, _: &ListenOptions) -> Result<Self, ListenError> {
        match *self {}
    }

    fn connect(&self, _: &Address, _: &Self, _: &ConnectOptions) -> Result<Self, ConnectError> {
        match *self {}
    }
}

impl Gate for Absent {
    fn allocate(&self, _: ConnId, _: usize) -> Result<Loan, LoanError> {
        match *self {}
    }

    fn lend(&self, _: ConnId, _: &UserBytes) -> Result<Loan, LoanError> {
        match *self {}
    }

    fn user_memory(&self) -> UserMemory {
        match *self {}
    }

    fn expose(&self, _: ConnId, _: usize) -> Result<Exposed, LoanError> {
        match *self {}
    }

    fn memory_node(&self) -> MemoryNode {
        match *self {}
    }
}

impl Listener for Absent {
    type Gate = Self;
    type Link = Self;
    type Incoming = Self;

    fn address(&self) -> Address {
        match *self {}
    }

    fn accept(&mut self, _: Duration) -> Result<Option<Self>, ListenError> {
        match *self {}
    }

    fn rejections(&self) -> &Arc<Rejected> {
        match *self {}
    }
}

impl Incoming for Absent {
    type Gate = Self;
    type Link = Self;

    fn hello(&self) -> &Hello {
        match *self {}
    }

    fn peer(&self) -> String {
        match *self {}
    }

    fn accept(self, _: &Self) -> Result<Self, AcceptError> {
        match self {}
    }

    fn refuse(self, _: Refusal) {
        match self {}
    }
}

impl Connecting for Absent {
    type Link = Self;

    fn poll(&mut self, _: Duration) -> Option<Result<Self, ConnectError>> {
        match *self {}
    }
}

impl Port for Absent {
    type Link = Self;
    type Gate = Self;
    type Direct = Self;

    fn gate(&self) -> Self {
        match *self {}
    }

    fn adopt(&mut self, _: Self, _: Time) -> Result<ConnId, PortError> {
        match *self {}
    }

    fn compose(
        &mut self,
        _: ConnId,
        _: usize,
        _: impl FnOnce(&mut [u8]) -> Option<Staged>,
    ) -> Result<Option<Position>, Refused> {
        match *self {}
    }

    fn flush(&mut self) {
        match *self {}
    }

    fn credit(&mut self, _: ConnId) -> CreditView {
        match *self {}
    }

    fn return_credit(&mut self, _: ConnId, _: Credit) {
        match *self {}
    }

    fn release(&mut self, _: ConnId, _: RxFrame) {
        match *self {}
    }

    fn poll(&mut self, _: Time, _: &mut Batch) {
        match *self {}
    }

    fn next_run(&mut self, _: Limit) -> Look {
        match *self {}
    }

    fn end_run(&mut self, _: &mut Run, _: bool) -> bool {
        match *self {}
    }

    fn close(&mut self, _: ConnId, _: CloseReason, _: Time) {
        match *self {}
    }

    fn counters(&self, _: ConnId) -> PortCounters {
        match *self {}
    }
}

impl Transfer for Absent {
    fn offer(&mut self, _: ConnId, _: &Loan) -> Result<Offer, Refused> {
        match *self {}
    }

    fn pull(&mut self, _: ConnId, _: Offer, _: u64) -> Result<Option<Pulled>, Refused> {
        match *self {}
    }

    fn show(&mut self, _: ConnId, _: &Exposed) -> Result<Remote, AccessError> {
        match *self {}
    }

    fn access(&mut self, _: ConnId, _: Remote, _: OneSided, _: u64) -> Result<(), (AccessError, OneSided)> {
        match *self {}
    }
}

impl Wait for Absent {
    fn arm(&mut self) -> bool {
        match *self {}
    }

    fn disarm(&mut self) {
        match *self {}
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    fn waker(&self) -> Waker {
        match *self {}
    }
}
