//! A peer that owns its segment and its socket and writes anything into both: the attacker of the hostile tests.
//!
//! ```text
//!   Away ── connect, a hello true or false ──► Greeting ── a grant true or false ──► Attached ── deeds … ──► Away
//! ```
//! Most deeds are honest, so that rings fill, wrap and empty, credit moves and bulk is lent; some are odd but
//! allowed; some break the protocol. How often it does what, it draws anew for each connection. It writes nothing but
//! its own memory and its own socket, as the kernel has it.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use gimmal_transport::{
    FrameWord, Hello, PortConfig, Tag,
    frame::{FRAME_ALIGN, FRAME_WORD_BYTES, span},
    hello::Feature,
    mem::Access,
};
use rustix::{fs::SealFlags, io::Errno, net::Shutdown};

use crate::{
    Choices,
    raw::{
        ARMED, CLOSING, CONSUMED, EXPOSED, GRANT, POOL, PULSE, SEALS, Segment, connect, memfd, receive, send,
        send_memory, send_with,
    },
};

/// What the attacker's layers above would say and hear.
pub trait Script: std::fmt::Debug {
    /// A connection begins.
    fn connected(&mut self) {}
    /// A pool segment of `bytes` was passed as `id`: bulk may be offered in it.
    fn passed(&mut self, id: u64, bytes: u64) {
        let _ = (id, bytes);
    }
    /// Appends a payload and says its tag.
    fn write(&mut self, choices: &mut Choices, payload: &mut Vec<u8>) -> Tag;
    /// The victim sent this.
    fn hear(&mut self, tag: Tag, payload: &[u8]);
}

/// What it can do; each is one operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Deed {
    /// Connects, with a hello that is true.
    Connect,
    /// Connects, with one that is not, or with other packets.
    FalseHello,
    /// Grants its segment.
    Grant,
    /// Grants what is none.
    FalseGrant,
    /// Publishes frames of the script, within its credit.
    Frames,
    /// Reads what the victim sent.
    Hear,
    /// Gives back what it read.
    Credit,
    /// Gives back more, less, or nonsense.
    FalseCredit,
    /// A word that no frame can have, where the next one is expected.
    FalseWord,
    /// Any bits into the word of any place.
    Scribble,
    /// Any bytes into payloads, published ones too.
    Payload,
    /// Frames beyond its credit.
    Overrun,
    /// Takes a published word back, or shows it in two steps.
    Unpublish,
    /// Writes its word of sleep.
    Arm,
    /// Writes its closing word.
    Closing,
    /// Rings.
    Doorbell,
    /// Sends any packet.
    Packet,
    /// Grants a second time.
    SecondGrant,
    /// Passes a pool segment.
    Pool,
    /// Passes what is none.
    FalsePool,
    /// Reads its socket.
    Drain,
    /// Shuts its socket down, without a word.
    HangUp,
}

use Deed as D;

/// What does not end a connection, as often as it stands here.
const ODD: [Deed; 20] = [
    D::Frames,
    D::Frames,
    D::Frames,
    D::Frames,
    D::Frames,
    D::Frames,
    D::Hear,
    D::Hear,
    D::Hear,
    D::Hear,
    D::Credit,
    D::Credit,
    D::Credit,
    D::Payload,
    D::Arm,
    D::Doorbell,
    D::Drain,
    D::Scribble,
    D::Unpublish,
    D::Pool,
];
/// What the victim must not take.
const WRONG: [Deed; 12] = [
    D::FalseCredit,
    D::FalseCredit,
    D::FalseWord,
    D::Overrun,
    D::Overrun,
    D::Overrun,
    D::Overrun,
    D::Closing,
    D::Packet,
    D::SecondGrant,
    D::FalsePool,
    D::HangUp,
];
/// Pool segments passed on one connection, at most.
const POOLS_MAX: u64 = 48;

/// The attacker.
#[derive(Debug)]
pub struct Attacker<S> {
    path: PathBuf,
    choices: Choices,
    script: S,
    stage: Stage,
    counts: BTreeMap<Deed, u64>,
}

#[derive(Debug)]
enum Stage {
    Away,
    Greeting { socket: OwnedFd, ours: Hello },
    Attached(Box<Attached>),
}

/// An established connection, as far as the attacker knows.
#[derive(Debug)]
struct Attached {
    socket: OwnedFd,
    own: Segment,
    peer: Segment,
    tx: u64,
    frame_bytes_max: usize,
    rx: u64,
    epoch: u64,
    pools: u64,
    /// It gave back what it had not read, so what lies in the victim's ring need not be whole.
    lied: bool,
    /// A wrong deed once in so many; 0: never.
    wrong_once_in: u64,
    /// Reads nothing and gives nothing back.
    deaf: bool,
}

impl<S: Script> Attacker<S> {
    /// One that will connect to the server at `path`.
    #[must_use]
    pub fn new(path: &Path, choices: Choices, script: S) -> Self {
        Self { path: path.to_owned(), choices, script, stage: Stage::Away, counts: BTreeMap::new() }
    }

    /// How often it did what.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<Deed, u64> {
        &self.counts
    }

    /// Everything it did.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Whether it has no choices left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.choices.is_over()
    }

    /// Whether nothing can be done before the victim has acted.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self.stage, Stage::Greeting { .. })
    }

    /// One operation, if the victim let it come so far.
    pub fn operate(&mut self) {
        let deed = match std::mem::replace(&mut self.stage, Stage::Away) {
            Stage::Away => self.connect(),
            Stage::Greeting { socket, ours } => self.greet(socket, &ours),
            Stage::Attached(attached) => self.attack(attached),
        };
        if let Some(deed) = deed {
            *self.counts.entry(deed).or_default() += 1;
        }
    }

    fn connect(&mut self) -> Option<Deed> {
        let socket = connect(&self.path).ok()?;
        let choices = &mut self.choices;
        let ring_bytes = choices.pick(&[4096, 8192, 16 << 10, 64 << 10]);
        let mut ours = hello(ring_bytes, choices.number().into());
        let mut bytes = ours.encode().to_vec();
        let mut deed = D::Connect;
        if choices.once_in(16) {
            deed = D::FalseHello;
            choices.spoil(&mut bytes);
        }
        if choices.once_in(128) {
            deed = D::FalseHello;
            let _ = send_with(&socket, &bytes, socket.as_fd());
        } else {
            let _ = send(&socket, &bytes);
        }
        // What it says is what it is held to.
        ours = Hello::decode(&bytes).unwrap_or(ours);
        self.stage = Stage::Greeting { socket, ours };
        Some(deed)
    }

    fn greet(&mut self, socket: OwnedFd, ours: &Hello) -> Option<Deed> {
        let (packet, fd) = match receive(&socket) {
            Ok(received) => received,
            Err(Errno::AGAIN) => {
                self.stage = Stage::Greeting { socket, ours: *ours };
                return None;
            }
            Err(_) => return None,
        };
        let theirs = Hello::decode(&packet).ok()?;
        let peer = Segment::map(fd?.as_fd(), ours.ring_bytes, Access::ReadOnly).ok()?;
        let (own, fd) = Segment::create(theirs.ring_bytes).ok()?;
        let deed = if self.choices.once_in(16) {
            self.grant_falsely(&socket, theirs.ring_bytes);
            D::FalseGrant
        } else {
            send_with(&socket, GRANT, fd.as_fd()).ok()?;
            D::Grant
        };
        self.script.connected();
        self.stage = Stage::Attached(Box::new(Attached {
            socket,
            own,
            peer,
            tx: 0,
            frame_bytes_max: theirs.ring_bytes as usize / 4,
            rx: 0,
            epoch: 0,
            pools: 0,
            lied: false,
            wrong_once_in: self.choices.pick(&[0, 8, 200, 2000, 20_000]),
            deaf: self.choices.once_in(16),
        }));
        Some(deed)
    }

    fn grant_falsely(&mut self, socket: &OwnedFd, ring_bytes: u32) {
        let bytes = rustix::param::page_size() + ring_bytes as usize;
        let _ = match self.choices.below(6) {
            0 => grant(socket, &memfd(bytes, SealFlags::SEAL, true)),
            1 => grant(socket, &memfd(bytes + 4096, SEALS, true)),
            2 => grant(socket, &memfd(bytes, SEALS, false)),
            3 => send_with(socket, GRANT, socket.as_fd()),
            4 => send(socket, GRANT),
            _ => {
                let packet = self.choices.bytes(64);
                send(socket, &packet)
            }
        };
    }

    fn attack(&mut self, mut attached: Box<Attached>) -> Option<Deed> {
        if attached.peer.load(CLOSING) != 0 {
            return None;
        }
        // Its process runs.
        attached.own.store(PULSE, attached.own.load(PULSE) + 1);
        let once_in = attached.wrong_once_in;
        let deed = if once_in > 0 && self.choices.once_in(once_in) {
            self.choices.pick(&WRONG)
        } else {
            self.choices.pick(&ODD)
        };
        let Self { choices, script, .. } = self;
        // Each is a memfd; a few are enough.
        let deed = if deed == D::Pool && (attached.pools == POOLS_MAX || !choices.once_in(8)) {
            D::Payload
        } else {
            deed
        };
        match deed {
            D::Hear | D::Credit if attached.deaf => {}
            D::Frames => attached.frames(choices, script),
            D::Overrun => attached.overrun(choices),
            D::Hear => attached.hear(script),
            D::Credit => attached.own.store(CONSUMED, attached.rx),
            D::FalseCredit => attached.credit_falsely(choices),
            D::FalseWord => {
                let bits = choices.pick(&[1, 7, 0xffff_ffff, choices_word(attached.frame_bytes_max)]);
                attached.own.set(attached.tx, bits);
            }
            D::Scribble => attached.scribble(choices),
            D::Payload => attached.spoil_payload(choices),
            D::Unpublish => attached.unpublish(choices),
            D::Arm => attached.arm(choices),
            D::Closing => attached.own.store(CLOSING, choices.number()),
            D::Pool | D::FalsePool => attached.pool(choices, script, deed == D::FalsePool),
            D::HangUp => {
                let _ = rustix::net::shutdown(&attached.socket, Shutdown::Both);
            }
            _ => attached.say(choices, deed),
        }
        if deed != D::HangUp {
            self.stage = Stage::Attached(attached);
        }
        Some(deed)
    }
}

/// The word of a frame that is a little too long.
fn choices_word(frame_bytes_max: usize) -> u64 {
    frame_bytes_max as u64 + 1
}

impl Attached {
    /// How far the victim lets it write.
    fn limit(&self) -> u64 {
        self.peer.load(CONSUMED) + self.own.ring_bytes - FRAME_ALIGN as u64
    }

    /// Writes `payload` behind the word at `position`.
    fn put(&self, position: u64, payload: &[u8]) {
        let payload = &payload[..payload.len().min(self.frame_bytes_max)];
        self.own.write(position, payload);
    }

    fn frames<S: Script>(&mut self, choices: &mut Choices, script: &mut S) {
        let limit = self.limit();
        let (first, mut first_word) = (self.tx, 0);
        for _ in 0..=choices.below(8) {
            let mut payload = Vec::new();
            let tag = script.write(choices, &mut payload);
            payload.truncate(self.frame_bytes_max - FRAME_WORD_BYTES);
            let end = self.tx + span(payload.len()) as u64;
            if end > limit {
                break;
            }
            self.put(self.tx, &payload);
            let word = FrameWord::new(payload.len(), tag).bits();
            self.own.set(end, 0);
            if self.tx == first {
                first_word = word;
            } else {
                self.own.set(self.tx, word);
            }
            self.tx = end;
        }
        if self.tx != first {
            self.own.set(first, first_word);
        }
    }

    /// As many large frames as it takes, and one more. A victim that keeps up has given the place back meanwhile.
    fn overrun(&mut self, choices: &mut Choices) {
        let limit = self.limit() + FRAME_ALIGN as u64;
        let payload = vec![0; self.frame_bytes_max / 2 + choices.index(self.frame_bytes_max / 2 - 8)];
        while self.tx <= limit {
            let end = self.tx + span(payload.len()) as u64;
            self.put(self.tx, &payload);
            self.own.set(end, 0);
            // A pong, which nobody minds.
            self.own.set(self.tx, FrameWord::new(payload.len(), Tag(7)).bits());
            self.tx = end;
        }
    }

    fn hear<S: Script>(&mut self, script: &mut S) {
        let frame_bytes_max = usize::try_from(self.peer.ring_bytes / 4).expect("at most 1 GiB");
        let word = match FrameWord::parse(self.peer.word(self.rx), frame_bytes_max) {
            Ok(Some(word)) => word,
            Ok(None) => return,
            Err(violation) => {
                assert!(self.lied, "the victim wrote a word that cannot be: {violation}");
                return;
            }
        };
        let mut payload = vec![0; word.payload_bytes()];
        self.peer.read(self.rx, &mut payload);
        self.rx += span(payload.len()) as u64;
        script.hear(word.tag(), &payload);
    }

    fn credit_falsely(&mut self, choices: &mut Choices) {
        self.lied = true;
        let lie = match choices.below(4) {
            0 => self.rx.wrapping_add(choices.below(2 * self.peer.ring_bytes)),
            1 => self.rx.wrapping_sub(choices.below(4096)),
            2 => self.rx | 1,
            _ => choices.number(),
        };
        self.own.store(CONSUMED, lie);
    }

    fn scribble(&self, choices: &mut Choices) {
        // Not before the next word: what is published there decides, and `FalseWord` spoils that one.
        let ahead = FRAME_ALIGN as u64 * (1 + choices.below(64));
        self.own.set(self.tx + ahead, choices.number());
    }

    fn spoil_payload(&self, choices: &mut Choices) {
        let bytes = choices.bytes(24);
        // Behind a word, so that words stay what they are, wherever frames begin.
        let back = FRAME_ALIGN as u64 * choices.below(64);
        self.put(self.tx.saturating_sub(back), &bytes[..bytes.len().min(FRAME_WORD_BYTES)]);
    }

    fn unpublish(&mut self, choices: &mut Choices) {
        let next = self.tx + span(8) as u64;
        if next > self.limit() {
            return;
        }
        // A pong, then perhaps nothing, or a ping.
        let [pong, ping] = [7, 6].map(|kind| FrameWord::new(8, Tag(kind)).bits());
        self.own.set(next, 0);
        self.own.set(self.tx, pong);
        if choices.once_in(2) {
            self.own.set(self.tx, 0);
        } else {
            self.own.set(self.tx, ping);
            self.tx = next;
        }
    }

    fn arm(&mut self, choices: &mut Choices) {
        self.epoch += 1;
        let epoch = if choices.once_in(4) { choices.number() } else { self.epoch };
        self.own.store(ARMED, epoch);
    }

    fn pool<S: Script>(&mut self, choices: &mut Choices, script: &mut S, falsely: bool) {
        if self.pools == POOLS_MAX {
            return;
        }
        let bytes = 4096 * (1 + choices.below(4));
        let size = usize::try_from(bytes).unwrap_or(4096);
        let (socket, id) = (&self.socket, self.pools);
        if !falsely {
            let Ok(fd) = memfd(size, SEALS, true) else { return };
            if send_memory(socket, POOL, (id, bytes), fd.as_fd()).is_ok() {
                self.pools += 1;
                script.passed(id, bytes);
            }
            return;
        }
        let fd = match choices.below(3) {
            0 => memfd(size, SEALS.difference(SealFlags::FUTURE_WRITE), true),
            1 => memfd(size, SEALS, false),
            _ => memfd(size, SEALS, true),
        };
        let Ok(fd) = fd else { return };
        let (id, bytes) = match choices.below(3) {
            0 => (id.saturating_sub(1), bytes),
            1 => (choices.number(), choices.number()),
            _ => (id, bytes + 1),
        };
        // Which of the two it says does not matter to its falsehood.
        let what = if choices.below(2) == 0 { POOL } else { EXPOSED };
        let _ = send_memory(socket, what, (id, bytes), fd.as_fd());
    }

    /// What only the socket hears.
    fn say(&self, choices: &mut Choices, deed: Deed) {
        let socket = &self.socket;
        match deed {
            D::Doorbell => {
                for _ in 0..=choices.below(4) {
                    let _ = send(socket, &[0]);
                }
            }
            D::Packet => {
                let packet = choices.bytes(300);
                let _ = send(socket, &packet);
            }
            D::SecondGrant => {
                let _ = grant(socket, &memfd(4096, SEALS, true));
            }
            D::Drain => {
                for _ in 0..64 {
                    if receive(socket).map_or(true, |(packet, _)| packet.is_empty()) {
                        return;
                    }
                }
            }
            _ => {}
        }
    }
}

/// Closes in the orderly way, unless it has closed in another.
impl Drop for Attached {
    fn drop(&mut self) {
        if self.own.load(CLOSING) == 0 {
            self.own.store(CLOSING, 1);
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// The hello of an honest peer.
fn hello(ring_bytes: u32, nonce: u128) -> Hello {
    let config = PortConfig::default();
    Hello {
        features: Feature::RING
            .and(Feature::ATTENDED, config.attended)
            .and(Feature::NUMBERED, true)
            .and(Feature::CHECKSUM, config.checksum),
        ring_bytes,
        slot_bytes: config.slot_bytes,
        arrivals: config.arrivals,
        responder_resources: config.responder_resources,
        initiator_depth: config.initiator_depth,
        lane: 0,
        service: 0,
        nonce,
    }
}

fn grant(socket: &OwnedFd, file: &Result<OwnedFd, Errno>) -> Result<(), Errno> {
    send_with(socket, GRANT, file.as_ref().map_err(|errno| *errno)?.as_fd())
}
