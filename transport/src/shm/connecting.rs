//! The active side: connects, says hello, takes the server's segment and passes its own.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rustix::{fs::FileType, io::Errno};

use super::{
    denied,
    gate::ShmGate,
    link::{End, ShmLink, hello, settle},
    mirror::mirror,
    place::{self, Dial},
    segment::{AttachError, Segment},
    socket::{self, Packet},
};
use crate::{
    Address, ConnectError, ConnectOptions, Connecting, Hello, Instant, Key, Refusal, RejectReason,
    address::runtime_folders,
    hello::REJECT_LEN,
    kernel::{self, system},
    peer,
    proof::{Label, Session, random, request},
};

/// How long to wait for a place in the server's backlog before trying again: nothing tells us.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// An attempt to connect. Dropping it gives it up.
#[derive(Debug)]
pub struct ShmConnecting {
    step: Step,
    address: Address,
    gate: ShmGate,
    options: Box<ConnectOptions>,
    until: Instant,
}

#[derive(Debug)]
enum Step {
    /// The server's backlog is full.
    Dialing(Dial),
    /// Our hello is sent, and what a key asks for. While there is a key, the server must prove first that it has it too.
    Greeting {
        socket: OwnedFd,
        ours: Hello,
        key: Option<Key>,
    },
    Done,
}

impl ShmConnecting {
    /// Starts the attempt.
    pub(super) fn start(
        address: &Address,
        gate: &ShmGate,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let mut attempt = Self {
            step: Step::Dialing(Dial::new(address)?),
            address: address.clone(),
            gate: gate.clone(),
            options: Box::new(options.clone()),
            until: Instant::now() + options.connect_timeout,
        };
        attempt.advance()?;
        Ok(attempt)
    }

    /// One step, without waiting.
    fn advance(&mut self) -> Result<Option<ShmLink>, ConnectError> {
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Dialing(dial) => {
                match dial.connect() {
                    Ok(socket) => self.step = self.greet(socket)?,
                    Err((Errno::AGAIN, dial)) => self.step = Step::Dialing(dial),
                    Err((errno, _)) => return Err(self.dial_error(errno)),
                }
                Ok(None)
            }
            Step::Greeting { socket, ours, key } => {
                let key = match (self.receive(&socket)?, key) {
                    (None, key) => key,
                    (Some(packet), Some(key)) => {
                        self.challenged(&socket, &ours, &key, &packet)?;
                        None
                    }
                    (Some(packet), None) => return self.answered(socket, &ours, packet).map(Some),
                };
                self.step = Step::Greeting { socket, ours, key };
                Ok(None)
            }
            Step::Done => Ok(None),
        }
    }

    /// What the server sent, if anything; a refusal is an error.
    fn receive(&self, socket: &OwnedFd) -> Result<Option<Packet>, ConnectError> {
        let packet = match socket::receive(socket) {
            Ok(packet) if packet.is_end() => return Err(self.nobody()),
            Ok(packet) => packet,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(self.nobody()),
            Err(errno) => return Err(system("recvmsg")(errno).into()),
        };
        if packet.fd.is_none()
            && packet.bytes().get(5) == Some(&REJECT_LEN)
            && let Some(refusal) = Refusal::decode(packet.bytes())
        {
            return Err(ConnectError::Rejected {
                address: self.address.to_string(),
                reason: refusal.reason(),
                data: refusal.into_data(),
            });
        }
        Ok(Some(packet))
    }

    /// The server's proof; ours is the answer.
    fn challenged(
        &self,
        socket: &OwnedFd,
        ours: &Hello,
        key: &Key,
        packet: &Packet,
    ) -> Result<(), ConnectError> {
        // Its hello comes later, over this socket, which nobody else can write to.
        let session = packet.challenge().and_then(|challenge| Session::active(key, ours, ours, challenge));
        let session = session.ok_or_else(|| ConnectError::Unproven { address: self.address.to_string() })?;
        match socket::send_proof(socket, &session.prove(Label::ActiveGrant, &[])) {
            // Then it says why, or is gone: both are read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(system("send")(errno).into()),
        }
    }

    fn greet(&self, socket: OwnedFd) -> Result<Step, ConnectError> {
        let peer = peer::of(&socket).map_err(system("SO_PEERCRED"))?;
        if !place::admits(&self.address, &peer, &self.options.allow) {
            return Err(ConnectError::NotAllowed { address: self.address.to_string(), uid: peer.uid });
        }
        let mut ours = hello(&self.gate.shared.config, u128::from_le_bytes(random()?));
        let request = request(&mut ours, self.options.key.as_ref());
        match socket::send(&socket, &request) {
            // Then it says why, or is gone: both are read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {
                Ok(Step::Greeting { socket, ours, key: self.options.key.clone() })
            }
            Err(errno) => Err(system("send")(errno).into()),
        }
    }

    /// The server's hello and its segment.
    fn answered(&self, socket: OwnedFd, ours: &Hello, packet: Packet) -> Result<ShmLink, ConnectError> {
        let theirs = Hello::decode(packet.bytes()).map_err(|reason| self.foreign(reason))?;
        let Packet { fd: Some(fd), flawed: false, .. } = packet else {
            return Err(self.foreign(RejectReason::NotOurs));
        };
        let cred = peer::of(&socket).map_err(system("SO_PEERCRED"))?;
        let negotiated = settle(
            &self.gate.shared.config,
            ours,
            &theirs,
            place::device(&self.address),
            Some(&cred),
            self.options.trust,
        )
        .map_err(|reason| self.foreign(reason))?;
        let peer = Segment::attach(fd.as_fd(), ours.ring_bytes).map_err(|error| match error {
            AttachError::Peer(violation) => {
                tracing::debug!(address = %self.address, %violation, "the server's segment was refused");
                self.foreign(RejectReason::NotOurs)
            }
            AttachError::Port(error) => ConnectError::Port(error),
        })?;
        let node = self.gate.shared.node;
        let (own, fd) = node.place(|| Segment::create(theirs.ring_bytes))?;
        let mirror = node.place(|| mirror(self.options.trust, negotiated.rx_ring_bytes))?;
        let end = End { socket, own: own.pulsing(), mirror };
        socket::send_grant(&end.socket, fd.as_fd()).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => self.nobody(),
            errno => ConnectError::Port(system("sendmsg")(errno)),
        })?;
        Ok(ShmLink {
            end,
            peer: Some(peer),
            negotiated: Arc::new(negotiated),
            handshake_timeout: self.options.handshake_timeout,
        })
    }

    fn nobody(&self) -> ConnectError {
        ConnectError::NobodyListens { address: self.address.to_string() }
    }

    fn foreign(&self, reason: RejectReason) -> ConnectError {
        ConnectError::Foreign { address: self.address.to_string(), reason }
    }

    fn dial_error(&self, errno: Errno) -> ConnectError {
        match errno {
            Errno::NOENT | Errno::CONNREFUSED => match other_folder(&self.address, &runtime_folders()) {
                Some(found) => ConnectError::OtherFolder { address: self.address.to_string(), found },
                None => self.nobody(),
            },
            Errno::ACCESS | Errno::PERM => {
                let address = self.address.to_string();
                ConnectError::Denied { address, why: denied::owner(place::path(&self.address)) }
            }
            Errno::PROTOTYPE => self.foreign(RejectReason::NotOurs),
            errno => ConnectError::Port(system("connect")(errno)),
        }
    }

    fn wait(&self, until: Instant) {
        match &self.step {
            Step::Dialing(_) => {
                std::thread::sleep(BACKLOG_RETRY.min(until.remaining()));
            }
            // An error of poll(2) is found again by the next step, at the latest by the deadline.
            Step::Greeting { socket, .. } => {
                let _ = kernel::wait_readable(socket.as_fd(), until);
            }
            Step::Done => {}
        }
    }

    fn step_name(&self) -> &'static str {
        match self.step {
            Step::Dialing(_) => "waiting for a place in its backlog",
            Step::Greeting { key: Some(_), .. } => "waiting for its proof of the shared key",
            Step::Greeting { key: None, .. } => "waiting for its hello",
            Step::Done => "done",
        }
    }
}

/// The folder of `folders` that has a socket of the same name, for a name in the first of them.
pub(super) fn other_folder(address: &Address, folders: &[PathBuf]) -> Option<PathBuf> {
    let (path, ours) = (place::path(address), folders.first()?);
    let name = path.file_name().filter(|_| path.parent() == Some(ours))?;
    let has_it = |folder: &&PathBuf| {
        let stat = rustix::fs::lstat(folder.join(name));
        *folder != ours && stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
    };
    folders.iter().find(has_it).cloned()
}

impl Connecting for ShmConnecting {
    type Link = ShmLink;

    fn poll(&mut self, timeout: Duration) -> Option<Result<ShmLink, ConnectError>> {
        let until = self.until.min(Instant::now() + timeout);
        loop {
            if matches!(self.step, Step::Done) {
                return None;
            }
            if let Some(outcome) = self.advance().transpose() {
                self.step = Step::Done;
                return Some(outcome);
            }
            let now = Instant::now();
            if now >= self.until {
                let step = self.step_name();
                self.step = Step::Done;
                let timeout = self.options.connect_timeout;
                return Some(Err(ConnectError::Timeout { address: self.address.to_string(), step, timeout }));
            }
            if now >= until {
                return None;
            }
            self.wait(until);
        }
    }
}
