//! Everything a peer can write, as functions of bytes: one entry for each kind. A fuzzer looks for bytes that make one
//! panic, read what it must not, or run for ever; `rpc/tests/fuzz.rs` replays a corpus and seeded mutations of it.

use gimmal_rpc::{
    Postcard,
    batch::{ITEM_BYTES, Items},
    codec::Decode,
    engine::{
        proto::{
            Lane, RxLedger, TxWindow,
            wire::{self, Frame, control},
        },
        transport::{
            Clamp, Credit, DataPath, FrameWord, Hello, Negotiated, PortConfig, Position, Refusal,
            RejectReason, Tag, Term,
            frame::{FRAME_ALIGN, span},
            negotiated::Capabilities,
        },
    },
    frame::{Kind, RequestHead, ResponseHead, parse_number},
    id::CallId,
};
use gimmal_testkit::{Attacker, Choices};

use super::{
    script::Speaker,
    victim::{Victim, place},
};

/// A kind of bytes, what takes it apart, and a valid one to begin with.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Valid input, drawn from `Choices`: what a mutation starts from.
    pub valid: fn(&mut Choices) -> Vec<u8>,
    /// Inputs a test can afford, of 1,000.
    pub share: u64,
}

/// All of them.
pub const TARGETS: [Target; 9] = [
    Target { name: "hello", run: hello, valid: valid_hello, share: 1000 },
    Target { name: "refusal", run: refusal, valid: valid_refusal, share: 1000 },
    Target { name: "frame_words", run: frame_words, valid: valid_frame_words, share: 1000 },
    Target { name: "engine_wire", run: engine_wire, valid: valid_engine_wire, share: 1000 },
    Target { name: "rpc_frame", run: rpc_frame, valid: valid_rpc_frame, share: 1000 },
    Target { name: "codec", run: codec, valid: valid_codec, share: 1000 },
    Target { name: "credit", run: credit, valid: any_bytes, share: 300 },
    Target { name: "shm", run: shm, valid: any_bytes, share: 5 },
    Target { name: "tcp", run: super::stream::tcp, valid: super::stream::valid, share: 50 },
];

fn any_bytes(choices: &mut Choices) -> Vec<u8> {
    choices.bytes(2000)
}

/// Private data on a connect or an accept, and what two sides settle on.
pub fn hello(data: &[u8]) {
    let _ = Hello::decode_behind(data);
    let Ok(theirs) = Hello::decode(data) else { return };
    assert_eq!(Hello::decode(&theirs.encode()), Ok(theirs), "a hello that was taken travels");
    let config = PortConfig::default();
    let ours = Hello { ring_bytes: config.ring_bytes, ..theirs };
    let caps = Capabilities {
        ring: true,
        credit_words: false,
        arrivals: true,
        atomics: false,
        bulk_in_place: false,
        transfers_in_post: false,
        responder_resources: 128,
        initiator_depth: 16,
        inline_bytes: 64,
        message_bytes: 1 << 30,
        timers: true,
    };
    let Ok(settled) = Negotiated::settle("fuzz", &caps, &config, &ours, &theirs) else { return };
    assert!(settled.initiator_depth.granted <= 16);
    assert!(settled.initiator_depth.granted <= theirs.responder_resources.into());
    assert!(settled.frame_bytes_max <= settled.tx_ring_bytes / 4);
    assert!(settled.frame_bytes_max >= 64, "too small for a control frame");
    let _ = TxWindow::new(&settled, true).room(0, Lane::Data);
}

fn valid_hello(choices: &mut Choices) -> Vec<u8> {
    let hello = Hello {
        features: gimmal_rpc::engine::transport::hello::Feature(1),
        ring_bytes: 4096 << choices.below(8),
        slot_bytes: 4096,
        arrivals: 16,
        responder_resources: 16,
        initiator_depth: 16,
        lane: 0,
        service: 0,
        nonce: choices.number().into(),
    };
    hello.encode().to_vec()
}

/// Private data on a reject.
pub fn refusal(data: &[u8]) {
    let Some(refusal) = Refusal::decode(data) else { return };
    let again = Refusal::decode(&refusal.encode()).expect("a refusal that was read travels");
    assert_eq!(again.data(), refusal.data());
    // Each side reads a version as its own.
    let expected = match refusal.reason() {
        RejectReason::Version { ours, theirs } => RejectReason::Version { ours: theirs, theirs: ours },
        reason => reason,
    };
    assert_eq!(again.reason(), expected);
}

fn valid_refusal(choices: &mut Choices) -> Vec<u8> {
    let code = u32::try_from(choices.below(1000)).unwrap();
    let reason = RejectReason::Application { code };
    Refusal::with_data(reason, &choices.bytes(132)).unwrap().encode()
}

/// A chain: words, payloads and padding to its end.
pub fn frame_words(data: &[u8]) {
    let (limit, mut at) = (1024, 0);
    while let Some(word) = data.get(at..at + 8) {
        let bits = u64::from_le_bytes(word.try_into().unwrap());
        match FrameWord::parse(bits, limit) {
            Ok(Some(word)) => {
                assert!((8..=limit).contains(&word.frame_bytes()));
                assert_eq!(FrameWord::new(word.payload_bytes(), word.tag()).bits(), bits);
                let frame = span(word.payload_bytes());
                assert!(frame.is_multiple_of(FRAME_ALIGN) && frame >= word.frame_bytes());
                at += frame;
            }
            Ok(None) | Err(_) => return,
        }
    }
}

fn valid_frame_words(choices: &mut Choices) -> Vec<u8> {
    let mut chain = Vec::new();
    for _ in 0..=choices.below(6) {
        let payload = choices.bytes(100);
        chain.extend(FrameWord::new(payload.len(), Tag(1)).bits().to_le_bytes());
        chain.extend(&payload);
        chain.resize(chain.len().next_multiple_of(FRAME_ALIGN), 0);
    }
    chain
}

/// A frame of the engine: its tag, then its payload.
pub fn engine_wire(data: &[u8]) {
    let Some((tag, payload)) = data.split_first_chunk() else { return };
    let tag = Tag(u32::from_le_bytes(*tag));
    match Frame::parse(tag, payload) {
        Ok(Frame::Message { bulk, body, .. }) => {
            let front = if bulk.is_some() { 40 } else { 8 };
            assert_eq!(body.len() + front, payload.len());
        }
        Ok(Frame::Credit(credit)) => assert_eq!(payload[..16], control(credit.bytes.0, credit.arrivals)),
        Ok(Frame::Ping(token) | Frame::Pong(token) | Frame::Unused(token)) => {
            assert_eq!(payload[..8], token.to_le_bytes());
        }
        Ok(_) => assert!((3..=5).contains(&(tag.0 & 0xff))),
        Err(violation) => assert!(violation.to_string().contains("impossible")),
    }
}

fn valid_engine_wire(choices: &mut Choices) -> Vec<u8> {
    let mut payload = Vec::new();
    let tag = if choices.once_in(8) {
        payload.extend(control(choices.number(), choices.number()));
        wire::Kind::Credit.tag()
    } else {
        Speaker::default().frame(choices, &mut payload)
    };
    [&tag.0.to_le_bytes()[..], &payload].concat()
}

/// A message of the calls' layer: kind, then body.
pub fn rpc_frame(data: &[u8]) {
    let Some((head, body)) = data.split_first_chunk::<10>() else { return };
    let code = u16::from_le_bytes([head[0], head[1]]);
    if let Ok((kind, flags)) = Kind::parse(code) {
        assert_eq!(kind.with(flags), code);
    }
    let aux = u64::from_le_bytes(head[2..].try_into().unwrap());
    assert_eq!(CallId::from_aux(aux).aux(), aux);
    if let Ok((request, arguments)) = RequestHead::parse(body) {
        assert_eq!([&request.encode()[..], arguments].concat(), body);
        let now = gimmal_rpc::engine::transport::Time(u64::MAX - 5);
        assert!(request.deadline_at(now) >= now);
    }
    if let Ok((head, payload)) = ResponseHead::parse(body) {
        assert_eq!(payload.len() + 8, body.len());
        assert_eq!(ResponseHead::parse(&head.encode()).unwrap().0, head);
    }
    let mut bytes = 0;
    for (id, payload) in Items::new(body).map_while(Result::ok) {
        assert!(id.slot <= u32::from(u16::MAX));
        bytes += ITEM_BYTES + payload.len().next_multiple_of(ITEM_BYTES);
    }
    assert!(bytes <= body.len());
    let _ = parse_number(body);
}

fn valid_rpc_frame(choices: &mut Choices) -> Vec<u8> {
    let (kind, aux, body) = Speaker::default().message(choices);
    [&kind.to_le_bytes()[..], &aux.to_le_bytes(), &body].concat()
}

/// A type that contains itself in every way.
#[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum Tree {
    Leaf,
    Node(Box<Self>),
    Pair(Box<Self>, Option<Box<Self>>),
    List { inside: Vec<Self> },
    Map(std::collections::BTreeMap<u8, Self>),
}

/// What was read can be written, and read again.
fn tree<C: gimmal_rpc::codec::Encode<Tree> + for<'a> Decode<'a, Tree>>(data: &[u8]) {
    let Ok(tree) = C::decode(data) else { return };
    let mut out = vec![0; 2 * data.len() + 64];
    let bytes = C::encode(&tree, &mut out).expect("its bytes were taken");
    assert_eq!(C::decode(&out[..bytes]), Ok(tree));
}

/// Arguments and answers.
pub fn codec(data: &[u8]) {
    tree::<Postcard>(data);
    #[cfg(feature = "bincode")]
    tree::<gimmal_rpc::Bincode>(data);
    #[cfg(feature = "evolve")]
    tree::<gimmal_rpc::MessagePack>(data);
    type Nested = (u32, Option<String>, Vec<(u8, Vec<u64>)>, Result<bool, String>);
    let _ = <Postcard as Decode<'_, Nested>>::decode(data);
    // What a length claims is no reason to allocate: a vector of units has no bytes at all.
    let _ = <Postcard as Decode<'_, Vec<u64>>>::decode(data);
    let _ = <Postcard as Decode<'_, String>>::decode(data);
    #[cfg(feature = "bincode")]
    {
        let _ = <gimmal_rpc::Bincode as Decode<'_, Nested>>::decode(data);
        let _ = <gimmal_rpc::Bincode as Decode<'_, Vec<u64>>>::decode(data);
    }
}

fn valid_codec(choices: &mut Choices) -> Vec<u8> {
    use gimmal_rpc::codec::Encode;
    if choices.once_in(4) {
        // Nodes around a leaf, as deep as is taken, or deeper.
        let levels = usize::try_from(choices.below(140)).unwrap();
        return [&vec![1; levels][..], &[0]].concat();
    }
    let value =
        (7_u32, Some("text".to_owned()), vec![(1_u8, vec![choices.number()])], Ok::<bool, String>(true));
    let mut out = vec![0; 256];
    let bytes = <Postcard as Encode<_>>::encode(&value, &mut out).unwrap();
    out.truncate(bytes);
    out
}

fn negotiated(choices: &mut Choices) -> Negotiated {
    let path = choices.pick(&[DataPath::Ring, DataPath::SendRecv]);
    let ring_bytes = 4096 << choices.below(3);
    let arrivals = u32::try_from(4 + choices.below(28)).unwrap();
    let term = Term { asked: 1, offered: 1, granted: 1, clamp: Clamp::None };
    let frame = ring_bytes / 4;
    Negotiated {
        provider: "fuzz",
        chosen: None,
        device: String::new(),
        port: None,
        peer: String::new(),
        credentials: None,
        secured: None,
        emulated: false,
        path,
        responder_resources: term,
        initiator_depth: term,
        inline_bytes: term,
        tx_ring_bytes: ring_bytes,
        rx_ring_bytes: ring_bytes,
        tx_slot_bytes: frame,
        rx_slot_bytes: frame,
        tx_arrivals: arrivals,
        rx_arrivals: arrivals,
        tx_shared: false,
        rx_shared: false,
        arrivals_count: path == DataPath::SendRecv || choices.once_in(2),
        credit_words: false,
        atomics: false,
        bulk_in_place: false,
        frame_bytes_max: frame,
        rx_frame_bytes_max: frame,
        chain_bytes_max: frame,
        nonce: 0,
        peer_attended: true,
        numbered: false,
        checksum: false,
        authenticated: false,
        rnr_timer: None,
        ack_timeout: None,
    }
}

/// Credit in any order and of any value, against the one that was given.
pub fn credit(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let negotiated = negotiated(&mut choices);
    let ring = negotiated.path == DataPath::Ring;
    let (ring_bytes, mut window) = (u64::from(negotiated.tx_ring_bytes), TxWindow::new(&negotiated, true));
    let (mut head, mut told, mut completed) = (0, Credit::default(), 0);
    let mut arrived = Arrivals::new(&negotiated);
    while !choices.is_over() {
        match choices.below(5) {
            0 => {
                let lane = choices.pick(&[Lane::Data, Lane::Control]);
                let wanted = choices.index(window.payload_bytes_max() + 1);
                let Some(room) = window.room(wanted, lane) else { continue };
                assert!(room >= wanted && room <= window.payload_bytes_max());
                let payload = wanted + choices.index(room - wanted + 1);
                head += span(payload) as u64;
                window.committed(Position(head), window.chain(payload));
                assert!(!ring || head - told.bytes.0 < ring_bytes, "beyond the peer's ring");
                assert!(head - completed < ring_bytes, "beyond our own");
            }
            1 => {
                completed += choices.below(head - completed + 1);
                window.handle_completed(Position(completed));
            }
            2 => {
                let near = told.bytes.0 + choices.below(head - told.bytes.0 + 1);
                let bytes = if choices.once_in(4) { choices.number() } else { near };
                let arrivals = told.arrivals.saturating_add(choices.below(20));
                let credit = Credit { bytes: Position(bytes), arrivals };
                if window.handle_credit(credit).is_ok() {
                    assert!(!ring || (told.bytes.0..=head).contains(&bytes), "a credit that cannot be");
                    told = Credit { bytes: Position(if ring { bytes } else { told.bytes.0 }), arrivals };
                }
            }
            3 => {
                window.flushed();
            }
            _ => arrived.step(&mut choices),
        }
    }
}

/// The receiving side: frames that come and are released in any order.
struct Arrivals {
    ledger: RxLedger,
    ring: bool,
    ring_bytes: u64,
    end: u64,
    given: u64,
    held: Vec<(u64, u64)>,
}

impl Arrivals {
    fn new(negotiated: &Negotiated) -> Self {
        Self {
            ledger: RxLedger::new(negotiated, 25),
            ring: negotiated.path == DataPath::Ring,
            ring_bytes: negotiated.rx_ring_bytes.into(),
            end: 0,
            given: 0,
            held: Vec::new(),
        }
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.below(3) {
            0 => {
                let start = self.end;
                let end = start + span(choices.index(200)) as u64;
                let beyond = end > self.given + self.ring_bytes;
                self.ledger.handle_receive();
                match self.ledger.handle_run(Position(end)) {
                    Ok(()) => {
                        assert!(!self.ring || !beyond, "an overrun was taken");
                        self.end = end;
                        let hold = choices.once_in(2) && self.ledger.may_hold(end - start);
                        if hold {
                            self.ledger.handle_hold(end - start);
                            self.held.push((start, end));
                        }
                    }
                    Err(_) => assert!(self.ring && beyond, "what was granted was refused"),
                }
            }
            1 if !self.held.is_empty() => {
                let (_, end) = self.held.remove(choices.index(self.held.len()));
                self.ledger.handle_release(Position(end));
            }
            _ => {
                let credit = self.ledger.credit();
                self.ledger.handle_told(credit);
                if self.ring {
                    let unread = self.held.iter().map(|(start, _)| *start).min().unwrap_or(self.end);
                    assert!(credit.bytes.0 <= unread, "credit for bytes that are in use");
                    assert!(credit.bytes.0 >= self.given, "credit ran backwards");
                    self.given = credit.bytes.0;
                }
            }
        }
    }
}

/// A hostile peer on shared memory whose choices are the bytes: hello, descriptors, words, packets, frames.
pub fn shm(data: &[u8]) {
    let path = place("fuzz");
    let mut victim = Victim::new(&path, 1);
    let mut speaker = Speaker::new(Vec::new());
    speaker.spoil_once_in = 16;
    let mut attacker = Attacker::new(&path, Choices::from_bytes(data), speaker);
    for _ in 0..4000 {
        if attacker.is_over() {
            break;
        }
        attacker.operate();
        victim.accept();
        victim.turn(1_000_000);
    }
    drop(attacker);
    victim.outlive();
}
