//! The passive side: whose clients they are, and what they say before they are handed out.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::io::Errno;

use super::{
    gate::ShmGate,
    incoming::ShmIncoming,
    link::ShmLink,
    place::{self, Place},
    socket,
};
use crate::{
    Address, Hello, Key, ListenError, ListenOptions, Listener, RejectReason, peer,
    proof::{Label, Session, admit, random},
    reception::{Door, Reception},
    rejected::Rejected,
    strangers::{PLACES, PLACES_OF_ONE, Stranger},
};

/// Listens on `shm://name` or `mem://name`.
#[derive(Debug)]
pub struct ShmListener {
    pub(super) reception: Reception<ShmDoor>,
}

/// The socket in a folder, or the name of this process.
#[derive(Debug)]
pub(super) struct ShmDoor {
    place: Place,
    options: ListenOptions,
}

/// A client that has not said hello, or has a key to prove.
#[derive(Debug)]
pub(super) struct ShmClient {
    socket: OwnedFd,
    /// It said hello with a key, and was asked to prove it.
    proving: Option<Box<(Hello, Session)>>,
}

impl From<OwnedFd> for ShmClient {
    fn from(socket: OwnedFd) -> Self {
        Self { socket, proving: None }
    }
}

impl Stranger for ShmClient {
    fn read(&mut self, keys: &[Key]) -> Result<Option<Hello>, Option<RejectReason>> {
        let packet = match socket::receive(&self.socket) {
            Ok(packet) if !packet.is_end() => packet,
            Err(Errno::AGAIN) => return Ok(None),
            _ => return Err(None),
        };
        if let Some(proving) = self.proving.take() {
            let (hello, session) = *proving;
            let proof = packet.proof().filter(|proof| session.is_proved(Label::ActiveGrant, &[], proof));
            return proof.map(|_| Some(hello)).ok_or(Some(RejectReason::Authentication));
        }
        if packet.flawed || packet.fd.is_some() {
            return Err(Some(RejectReason::NotOurs));
        }
        let (hello, key) = admit(packet.bytes(), keys)?;
        let Some(key) = key else { return Ok(Some(hello)) };
        // The client is asked to prove its key, and has it proved. Which port takes it is not known yet; our hello comes later, over
        // this socket.
        let nonce = random().map_err(|_| RejectReason::Overloaded)?;
        let session = Session::passive(key, &hello, &hello, nonce);
        socket::send_challenge(&self.socket, &session.challenge()).map_err(|_| None)?;
        self.proving = Some(Box::new((hello, session)));
        Ok(None)
    }

    fn is_silent(&self) -> bool {
        self.proving.is_none()
    }

    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn name(&self) -> String {
        peer::describe(peer::of(&self.socket).ok().as_ref())
    }

    fn refuse(self, reason: RejectReason) {
        socket::refuse(&self.socket, &reason.into());
    }
}

impl AsFd for ShmDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.place.as_fd()
    }
}

impl Door for ShmDoor {
    type Client = ShmClient;
    /// A user.
    type Source = u32;

    fn address(&self) -> Address {
        self.place.address()
    }

    fn options(&self) -> &ListenOptions {
        &self.options
    }

    fn accept(&self) -> Result<OwnedFd, Errno> {
        self.place.accept()
    }

    fn source(&self, socket: &OwnedFd) -> Result<u32, RejectReason> {
        let peer = peer::of(socket).map_err(|_| RejectReason::NotOurs)?;
        if !place::admits(&self.place.address(), &peer, &self.options.allow) {
            return Err(RejectReason::NotAllowed { uid: peer.uid });
        }
        Ok(peer.uid)
    }

    fn let_in(&self, socket: OwnedFd) -> Option<ShmClient> {
        Some(socket.into())
    }
}

impl ShmListener {
    pub(super) fn new(place: Place, options: ListenOptions) -> Self {
        // Where others than this user are let in, nobody's silence keeps the others out.
        let places_of_one = if options.allow.is_default() { PLACES } else { PLACES_OF_ONE };
        Self { reception: Reception::new(ShmDoor { place, options }, places_of_one) }
    }
}

impl Listener for ShmListener {
    type Gate = ShmGate;
    type Link = ShmLink;
    type Incoming = ShmIncoming;

    fn address(&self) -> Address {
        self.reception.door.address()
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<ShmIncoming>, ListenError> {
        let Some((client, hello)) = self.reception.next(timeout)? else { return Ok(None) };
        let ShmDoor { place, options } = &self.reception.door;
        Ok(Some(ShmIncoming::new(client.socket, hello, place::device(&place.address()), options)))
    }

    fn rejections(&self) -> &Arc<Rejected> {
        &self.reception.rejected
    }
}
