//! The simulator does what it says: faults happen, misuse is seen, the same seed is the same world.

mod key;
mod one_sided;

use std::{str::FromStr, time::Duration};

use super::*;
use gimmal_transport::{
    Batch, BulkError, Chain, CloseReason, ConnId, Connecting, Gate, Incoming, Listener, Loan, Offer, Port,
    PortConfig, Refused, RejectReason, RxFrame, Staged, Tag, Transfer, Violation,
    testing::{self, Came},
};

const NOW: Duration = Duration::ZERO;

/// Two ports of one world, polled in turn.
struct Two {
    sim: Sim,
    ports: [SimPort; 2],
    listener: SimListener,
    events: [Vec<Came>; 2],
}

fn address() -> Address {
    Address::from_str("mem://two").unwrap()
}

impl Two {
    fn new(config: SimConfig, port: &PortConfig) -> Self {
        let sim = Sim::new(config);
        let ports = [sim.open_port(port).unwrap(), sim.open_port(port).unwrap()];
        let listener = sim.listen(&address(), &ListenOptions::default()).unwrap();
        Self { sim, ports, listener, events: [Vec::new(), Vec::new()] }
    }

    /// Polls both, then moves time to the next moment.
    fn turn(&mut self) {
        let now = self.sim.now();
        let mut quiet = true;
        for (port, events) in self.ports.iter_mut().zip(&mut self.events) {
            let mut batch = Batch::new(64);
            port.flush();
            let new = testing::poll(port, now, &mut batch);
            quiet &= new.is_empty();
            events.extend(new);
        }
        let next = self.sim.next_at();
        if quiet && next != Time::NEVER {
            self.sim.advance(next);
        }
    }

    fn connect(&mut self) -> Result<[ConnId; 2], ConnectError> {
        let gate = self.ports[0].gate();
        let mut connecting = self.sim.connect(&address(), &gate, &ConnectOptions::default())?;
        let (mut passive, mut active) = (None, None);
        for _ in 0..1000 {
            if let Some(incoming) = self.listener.accept(NOW).unwrap()
                && let Ok(link) = incoming.accept(&self.ports[1].gate())
            {
                passive = Some(self.ports[1].adopt(link, self.sim.now()).unwrap());
            }
            if let Some(outcome) = connecting.poll(NOW) {
                active = Some(self.ports[0].adopt(outcome?, self.sim.now()).unwrap());
            }
            self.turn();
            if let (Some(active), Some(passive)) = (active, passive) {
                return Ok([active, passive]);
            }
        }
        panic!("neither connected nor refused");
    }

    fn until<T>(&mut self, side: usize, mut want: impl FnMut(Came) -> Option<T>) -> T {
        for _ in 0..100_000 {
            let mut events = std::mem::take(&mut self.events[side]).into_iter();
            if let Some(found) = events.find_map(&mut want) {
                self.events[side] = events.collect();
                return found;
            }
            self.turn();
        }
        panic!("it never came; {:?}", self.sim.findings());
    }

    fn open(&mut self) -> [ConnId; 2] {
        let conns = self.connect().unwrap();
        for side in 0..2 {
            self.until(side, |event| matches!(event, Came::Opened { .. }).then_some(()));
        }
        conns
    }

    fn send(&mut self, side: usize, conn: ConnId, payload: &[u8], chain: Chain) -> Result<(), Refused> {
        let port = &mut self.ports[side];
        let staged = Staged { payload_bytes: payload.len(), tag: Tag(7), chain };
        port.compose(conn, payload.len(), |room| {
            room.copy_from_slice(payload);
            Some(staged)
        })
        .map(|_| ())
    }

    fn frame(&mut self, side: usize) -> RxFrame {
        self.until(side, |event| match event {
            Came::Frame { frame, .. } => Some(frame),
            _ => None,
        })
    }

    fn closed(&mut self, side: usize) -> CloseReason {
        self.until(side, |event| match event {
            Came::Closed { reason, .. } => Some(reason),
            _ => None,
        })
    }

    fn pull(&mut self, side: usize, conn: ConnId, offer: Offer, token: u64) -> Result<(), Refused> {
        let over = self.ports[side].pull(conn, offer, token)?;
        self.events[side].extend(over.map(|result| Came::Pulled { conn, token, result }));
        Ok(())
    }

    fn pulled(&mut self, side: usize) -> Result<gimmal_transport::Bulk, BulkError> {
        self.until(side, |event| match event {
            Came::Pulled { result, .. } => Some(result),
            _ => None,
        })
    }
}

fn slow(seed: u64) -> SimConfig {
    let (delay_min, delay_max) = (Duration::from_micros(1), Duration::from_micros(50));
    SimConfig { seed, delay_min, delay_max, shuffle: true, ..SimConfig::default() }
}

fn faulty(step: Step, kind: FaultKind) -> SimConfig {
    SimConfig { faults: vec![Fault::at(step, kind)], ..slow(1) }
}

#[test]
fn frames_of_a_chain_arrive_in_order_and_use_one_receive() {
    let mut two = Two::new(slow(3), &PortConfig::default());
    let [active, passive] = two.open();
    let before = two.ports[1].credit(passive).arrivals;
    for (at, chain) in [Chain::Begin, Chain::Extend, Chain::Extend].into_iter().enumerate() {
        two.send(0, active, &[u8::try_from(at).unwrap(); 20], chain).unwrap();
    }
    for at in 0..3 {
        let frame = two.frame(1);
        assert_eq!(
            (&*frame, frame.tag(), frame.end()),
            (&[at; 20][..], Tag(7), gimmal_transport::Position(u64::from(at + 1) * 32))
        );
        two.ports[1].release(passive, frame);
    }
    assert_eq!(two.ports[1].credit(passive).arrivals, before, "answers leave first");
    two.ports[1].flush();
    assert_eq!(two.ports[1].credit(passive).arrivals, before + 1);
    assert_eq!(two.ports[1].counters(passive).receives_with_imm, 1);
    assert_eq!((two.sim.rnr_count(), two.sim.findings().misuses), (0, vec![]));
}

#[test]
fn r44_a_chain_without_a_receive_is_an_rnr_and_comes_later() {
    let config = PortConfig { arrivals: 4, ..PortConfig::default() };
    let mut two = Two::new(SimConfig::default(), &config);
    let [active, passive] = two.open();
    for at in 0..6 {
        two.send(0, active, &[at], Chain::Begin).unwrap();
    }
    two.ports[0].flush();
    assert!(two.sim.rnr_count() > 0, "six chains, four receives");
    for at in 0..6 {
        let frame = two.frame(1);
        assert_eq!(&*frame, &[at]);
        two.ports[1].release(passive, frame);
    }
}

#[test]
fn r46_iwarp_one_send_too_many_ends_the_connection_after_success() {
    let config = PortConfig { arrivals: 4, signal_interval: 1, ..PortConfig::default() };
    let world = SimConfig { device: SimDevice::iwarp(), ..SimConfig::default() };
    let mut two = Two::new(world, &config);
    let [active, _] = two.open();
    for at in 0..5 {
        two.send(0, active, &[at], Chain::Begin).unwrap();
    }
    two.ports[0].flush();
    assert_eq!(two.ports[0].credit(active).completed.0, 5 * 16, "every send completed with success");
    assert!(matches!(two.closed(1), CloseReason::Event { .. }));
    assert_eq!(two.closed(0), CloseReason::Peer);
}

#[test]
fn r47_an_overwrite_is_seen() {
    let config = PortConfig { ring_bytes: 4096, signal_interval: 1, ..PortConfig::default() };
    let mut two = Two::new(SimConfig::default(), &config);
    let [active, _] = two.open();
    for _ in 0..4 {
        two.send(0, active, &[1; 1016], Chain::Begin).unwrap();
        two.ports[0].flush();
    }
    let held = two.frame(1);
    assert_eq!(two.sim.overwrites(), 0, "the ring is full and nothing more");
    two.send(0, active, &[2; 8], Chain::Begin).unwrap();
    two.ports[0].flush();
    assert_eq!(two.sim.overwrites(), 1);
    let passive = ConnId::new(0, 0);
    two.ports[1].release(passive, held);
    assert!(two.sim.findings().misuses.contains(&Misuse::FrameChanged), "the held frame was written over");
}

#[test]
fn only_signalled_chains_complete() {
    let config = PortConfig { sends: 16, signal_interval: 4, ..PortConfig::default() };
    let mut two = Two::new(SimConfig::default(), &config);
    let [active, _] = two.open();
    for at in 0..7 {
        two.send(0, active, &[at; 8], Chain::Begin).unwrap();
        two.ports[0].flush();
    }
    assert_eq!(two.ports[0].credit(active).completed.0, 4 * 16);
    assert_eq!(two.ports[0].counters(active).signals, 1);
}

#[test]
fn r48_a_full_send_queue_is_back_pressure() {
    let config = PortConfig { sends: 8, signal_interval: 4, ..PortConfig::default() };
    let mut two = Two::new(slow(1), &config);
    let [active, _] = two.open();
    for _ in 0..8 {
        two.send(0, active, b"x", Chain::Begin).unwrap();
    }
    assert_eq!(two.send(0, active, b"x", Chain::Begin), Err(Refused::Full));
    for _ in 0..8 {
        two.frame(1);
    }
    two.turn();
    while two.send(0, active, b"x", Chain::Begin).is_err() {
        assert_ne!(two.sim.next_at(), Time::NEVER, "a completion must come");
        two.turn();
    }
}

#[test]
fn r9_reads_never_exceed_the_granted_depth() {
    let config = PortConfig {
        initiator_depth: 3,
        responder_resources: 3,
        bulk_piece_bytes: 4096,
        ..PortConfig::default()
    };
    let mut two = Two::new(SimConfig { read_ns_per_kib: 100, ..slow(5) }, &config);
    let [active, passive] = two.open();
    let mut loan = two.ports[0].gate().allocate(active, 100_001).unwrap();
    for (at, byte) in loan.iter_mut().enumerate() {
        *byte = u8::try_from(at % 251).unwrap();
    }
    let offer = two.ports[0].offer(active, &loan).unwrap();
    two.pull(1, passive, offer, 9).unwrap();
    two.pull(1, passive, Offer { address: 5, len: 10, ..offer }, 10).unwrap();
    let bulk = two.pulled(1).unwrap();
    assert_eq!(&*bulk, &*loan);
    assert!(bulk.release().is_none());
    assert_eq!(&*two.pulled(1).unwrap(), &loan[5..15]);
    assert_eq!(two.sim.findings().reads_outstanding_max, 3);
    assert_eq!(two.ports[1].counters(passive).reads, 26);
}

#[test]
fn a_loan_dropped_under_its_reader_is_seen() {
    let world = SimConfig { device: SimDevice::shared_memory(), ..SimConfig::default() };
    let mut two = Two::new(world, &PortConfig::default());
    let [active, passive] = two.open();
    let loan: Loan = two.ports[0].gate().allocate(active, 64).unwrap();
    let offer = two.ports[0].offer(active, &loan).unwrap();
    two.pull(1, passive, offer, 1).unwrap();
    let bulk = two.pulled(1).unwrap();
    let release = bulk.release().expect("in place");
    assert!(!release.is_done());
    drop(loan);
    assert_eq!(two.sim.findings().misuses, vec![Misuse::LoanReused]);
    drop(bulk);
    assert!(release.is_done());
}

#[test]
fn scripted_refusals_reach_the_active_side() {
    let error = |step, kind| Two::new(faulty(step, kind), &PortConfig::default()).connect().unwrap_err();
    assert!(matches!(error(Step::Resolve, FaultKind::Refuse), ConnectError::Resolve { .. }));
    assert!(matches!(error(Step::Request, FaultKind::Refuse), ConnectError::NobodyListens { .. }));
    let reason = RejectReason::Application { code: 3 };
    assert!(
        matches!(error(Step::Request, FaultKind::Reject(reason)), ConnectError::Rejected { reason: seen, .. } if seen == reason)
    );
    assert!(matches!(error(Step::Accept, FaultKind::Refuse), ConnectError::Refused { .. }));
    for step in [Step::Resolve, Step::Request, Step::Accept, Step::Reply] {
        assert!(matches!(error(step, FaultKind::Lost), ConnectError::Event { .. }), "{step:?}");
        assert!(matches!(error(step, FaultKind::Silent), ConnectError::Timeout { .. }), "{step:?}");
    }
}

#[test]
fn r10_a_lost_grant_ends_the_handshake_in_time() {
    for step in [Step::Grant(1), Step::Grant(2)] {
        let mut two = Two::new(faulty(step, FaultKind::Silent), &PortConfig::default());
        two.connect().unwrap();
        assert_eq!(two.closed(0), CloseReason::Handshake);
        if step == Step::Grant(1) {
            assert_eq!(two.closed(1), CloseReason::Handshake);
        }
        assert_eq!(two.sim.findings().injected, vec![FaultKind::Silent]);
    }
}

#[test]
fn r18_faults_of_the_data_path_close_both_ends_once() {
    let cases = [
        (Step::Frame(3), FaultKind::Lost),
        (Step::Frame(3), FaultKind::Work(12)),
        (Step::Frame(3), FaultKind::Corrupt),
        (Step::Frame(3), FaultKind::DeviceRemoved),
        (Step::Completion(1), FaultKind::Work(5)),
    ];
    for (step, kind) in cases {
        let mut two =
            Two::new(faulty(step, kind), &PortConfig { signal_interval: 1, ..PortConfig::default() });
        let [active, passive] = two.open();
        for at in 0..4 {
            two.send(0, active, &[at], Chain::Begin).unwrap();
        }
        let reasons = [two.closed(0), two.closed(1)];
        match kind {
            FaultKind::Lost => {
                assert!(matches!(reasons, [CloseReason::PeerGone { .. }, CloseReason::PeerGone { .. }]))
            }
            FaultKind::Work(_) => assert!(matches!(reasons, [CloseReason::Work { .. }, CloseReason::Peer])),
            FaultKind::Corrupt => assert!(matches!(reasons, [CloseReason::Peer, CloseReason::Violation(_)])),
            _ => assert_eq!(reasons, [CloseReason::DeviceGone, CloseReason::DeviceGone]),
        }
        for _ in 0..20 {
            two.turn();
        }
        assert!(two.events.iter().flatten().all(|event| !matches!(event, Came::Closed { .. })));
        assert_eq!(two.sim.connections(), 0, "nothing is left");
        assert_eq!(two.send(0, active, b"x", Chain::Begin).unwrap_err(), Refused::Closed);
        assert_eq!(two.ports[1].counters(passive).frames_sent, 0);
    }
}

#[test]
fn a_timed_fault_and_a_dropped_port() {
    let at = Time(1_000_000);
    let faults = vec![Fault::at_time(at, FaultKind::Lost).of(0)];
    let mut two = Two::new(SimConfig { faults, ..slow(1) }, &PortConfig::default());
    two.open();
    assert!(matches!(two.closed(0), CloseReason::PeerGone { .. }));
    assert!(two.sim.now() >= at);
    two.open();
    let replacement = two.sim.open_port(&PortConfig::default()).unwrap();
    drop(std::mem::replace(&mut two.ports[1], replacement));
    assert!(matches!(two.closed(0), CloseReason::PeerGone { .. }));
}

/// One fixed run of everything; its digest must not depend on anything but the seed.
fn run(seed: u64) -> u64 {
    let mut two = Two::new(slow(seed), &PortConfig { bulk_piece_bytes: 1024, ..PortConfig::default() });
    let [active, passive] = two.open();
    for round in 0..20u8 {
        two.send(0, active, &[round; 100], Chain::Begin).unwrap();
        two.send(1, passive, &[round; 50], Chain::Begin).unwrap();
        for (side, conn) in [(0, active), (1, passive)] {
            let frame = two.frame(side);
            two.ports[side].release(conn, frame);
        }
    }
    let loan = two.ports[1].gate().allocate(passive, 9000).unwrap();
    let offer = two.ports[1].offer(passive, &loan).unwrap();
    two.pull(0, active, offer, 1).unwrap();
    two.pulled(0).unwrap();
    two.ports[0].close(active, CloseReason::Local, two.sim.now());
    assert_eq!((two.closed(0), two.closed(1)), (CloseReason::Local, CloseReason::Peer));
    two.sim.digest()
}

#[test]
fn r117_the_same_seed_is_the_same_world() {
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
}

#[test]
fn two_threads_and_a_real_clock() {
    let address = Address::from_str("mem://threads").unwrap();
    let sim = Sim::new(SimConfig { real_time: true, ..SimConfig::default() });
    let mut listener = sim.listen(&address, &ListenOptions::default()).unwrap();
    assert!(matches!(sim.listen(&address, &ListenOptions::default()), Err(ListenError::InUse { .. })));
    let wait = Duration::from_secs(10);
    let world = sim.clone();
    let server = std::thread::spawn(move || {
        let port = world.open_port(&PortConfig::default()).unwrap();
        let incoming = listener.accept(wait).unwrap().expect("a request");
        incoming.reject(RejectReason::Application { code: 1 });
        drop((port, listener));
    });
    let port = sim.open_port(&PortConfig::default()).unwrap();
    let mut connecting = sim.connect(&address, &port.gate(), &ConnectOptions::default()).unwrap();
    let outcome = connecting.poll(wait).expect("within the wait");
    assert!(matches!(outcome, Err(ConnectError::Rejected { .. })));
    server.join().unwrap();
    let mut connecting = sim.connect(&address, &port.gate(), &ConnectOptions::default()).unwrap();
    assert!(matches!(connecting.poll(wait), Some(Err(ConnectError::NobodyListens { .. }))));
}

/// R95: a completion that comes twice shows its frames twice where they came by SEND; in a ring it shows no frame.
#[test]
fn r95_a_doubled_chain_arrives_twice() {
    let doubled = |device| {
        let config = SimConfig { device, ..faulty(Step::Frame(2), FaultKind::Doubled) };
        let mut two = Two::new(config, &PortConfig::default());
        let [active, _] = two.open();
        for at in 0..3 {
            two.send(0, active, &[at; 8], Chain::Begin).unwrap();
        }
        two
    };
    let mut two = doubled(SimDevice::iwarp());
    let frames: Vec<u8> = (0..4).map(|_| two.frame(1)[0]).collect();
    assert_eq!(frames, [0, 1, 1, 2]);
    assert_eq!(two.sim.findings().injected, vec![FaultKind::Doubled]);
    let mut two = doubled(SimDevice::default());
    assert_eq!(two.closed(1), CloseReason::Violation(Violation::Chain { bytes: 16 }));
    assert_eq!(two.sim.findings().injected, vec![FaultKind::Doubled]);
}

/// R42: the peer never hears of a close; only a heartbeat above can tell.
#[test]
fn r42_a_silent_close_leaves_the_peer_half_open() {
    let mut two = Two::new(faulty(Step::Closing, FaultKind::Silent), &PortConfig::default());
    let [active, passive] = two.open();
    two.ports[0].close(active, CloseReason::Local, two.sim.now());
    assert_eq!(two.closed(0), CloseReason::Local);
    for _ in 0..50 {
        two.turn();
    }
    assert!(two.events[1].is_empty());
    assert!(two.ports[1].compose(passive, 8, |_| None).is_ok(), "it still believes in the connection");
}

#[test]
fn a_connection_lost_in_mid_bulk_fails_the_pull_first() {
    let mut two = Two::new(
        faulty(Step::Bulk(3), FaultKind::Lost),
        &PortConfig { bulk_piece_bytes: 1024, initiator_depth: 2, ..PortConfig::default() },
    );
    let [active, passive] = two.open();
    let loan = two.ports[0].gate().allocate(active, 10_000).unwrap();
    let offer = two.ports[0].offer(active, &loan).unwrap();
    two.pull(1, passive, offer, 1).unwrap();
    assert_eq!(two.pulled(1).unwrap_err(), BulkError::Closed);
    assert!(matches!(two.closed(1), CloseReason::PeerGone { .. }));
    assert_eq!(two.sim.findings().misuses, vec![], "the loan outlives the connection");
    drop(loan);
    assert_eq!(two.sim.findings().misuses, vec![]);
}

/// R19: the device goes while one connects, and others are open; afterwards it works again.
#[test]
fn r19_device_removal_ends_attempts_and_connections() {
    let mut two = Two::new(slow(9), &PortConfig::default());
    two.open();
    two.sim.inject(Fault::at(Step::Request, FaultKind::DeviceRemoved).of(1));
    let error = two.connect().unwrap_err();
    assert!(matches!(error, ConnectError::Event { event: "RDMA_CM_EVENT_DEVICE_REMOVAL", .. }), "{error:?}");
    assert_eq!([two.closed(0), two.closed(1)], [CloseReason::DeviceGone, CloseReason::DeviceGone]);
    two.open();
}

/// R25, by seed: whatever is lost, both ends hear of it once, and nothing stays.
#[test]
fn r25_random_losses_leave_nothing() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut two = Two::new(SimConfig { lost_ppm: 50_000, ..slow(seed) }, &PortConfig::default());
        let [active, passive] = two.open();
        for at in 0..20 {
            let _ = two.send(0, active, &[at; 30], Chain::Begin);
            let _ = two.send(1, passive, &[at; 30], Chain::Begin);
            two.turn();
        }
        if two.sim.findings().injected.is_empty() {
            continue;
        }
        lost += 1;
        assert!(matches!(two.closed(0), CloseReason::PeerGone { .. }), "seed {seed}");
        assert!(matches!(two.closed(1), CloseReason::PeerGone { .. }), "seed {seed}");
        assert_eq!(two.sim.connections(), 0, "seed {seed}");
    }
    assert!(lost > 100, "only {lost} of 200 seeds lost something");
}

/// Events of several connections are polled in an order that depends on the seed, those of one never.
#[test]
fn shuffle_changes_the_order_between_connections_only() {
    let order = |seed| {
        let mut two =
            Two::new(SimConfig { seed, shuffle: true, ..SimConfig::default() }, &PortConfig::default());
        let conns: Vec<_> = (0..4).map(|_| two.open()).collect();
        for at in 0..5 {
            for [active, _] in &conns {
                two.send(0, *active, &[at], Chain::Begin).unwrap();
            }
        }
        let mut seen = Vec::new();
        for _ in 0..20 {
            seen.push(two.until(1, |event| match event {
                Came::Frame { conn, frame } => Some((conn, frame[0])),
                _ => None,
            }));
        }
        for [_, passive] in &conns {
            let own: Vec<u8> = seen.iter().filter(|(conn, _)| conn == passive).map(|(_, at)| *at).collect();
            assert_eq!(own, [0, 1, 2, 3, 4]);
        }
        seen
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn what_pads_a_modelled_frame_is_zero() {
    let mut two = Two::new(SimConfig::default(), &PortConfig::default());
    let conns = two.open();
    let mut end = 0;
    for bytes in 0..64 {
        let staged = Staged { payload_bytes: bytes, tag: Tag(7), chain: Chain::Begin };
        let composed = two.ports[0].compose(conns[0], 100, |room| {
            room.fill(0xAA);
            Some(staged)
        });
        composed.unwrap();
        two.frame(1);
        let start = end + gimmal_transport::frame::FRAME_WORD_BYTES + bytes;
        end += gimmal_transport::frame::span(bytes);
        let padding = two.sim.shared.with(|world| {
            let conn = world.conns.values().next().expect("the only one");
            conn.ends[1].rx.ring[start..end].to_vec()
        });
        assert!(padding.iter().all(|byte| *byte == 0), "{bytes} bytes: {padding:x?}");
    }
}
