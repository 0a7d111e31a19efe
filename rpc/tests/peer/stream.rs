//! What a peer can write into the stream of a TCP connection, behind an honest handshake.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use gimmal_rpc::Instant;
use gimmal_rpc::engine::transport::{
    Address, Batch, CloseReason, ConnId, Event, FrameWord, Gate as _, Hello, Incoming as _, Limit,
    ListenOptions, Listener as _, Look, Offer, OneSided, Port as _, PortConfig, Provider as _, Remote, Tag,
    Time, Transfer as _,
    frame::span,
    hello::Feature,
    tcp::{Tcp, TcpPort},
};
use gimmal_testkit::Choices;

const RING_BYTES: u32 = 16 << 10;
/// The client's first word after the handshake: it takes the connection.
const GRANT: u32 = 1;
/// More than any input needs.
const LIMIT: Duration = Duration::from_secs(10);

fn record(kind: u32, low: u32, high: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[4..8].copy_from_slice(&kind.to_le_bytes());
    out[8..12].copy_from_slice(&low.to_le_bytes());
    out[12..].copy_from_slice(&high.to_le_bytes());
    out
}

/// A port with one connection, and the socket of its peer. It offers a loan, shows memory, and waits for a pull and a read.
struct Target {
    port: TcpPort,
    conn: ConnId,
    batch: Batch,
    socket: TcpStream,
    started: Instant,
    closed: Option<CloseReason>,
}

impl Target {
    fn new() -> Self {
        let config = PortConfig { ring_bytes: RING_BYTES, bulk_bytes_max: 1 << 20, ..PortConfig::default() };
        let mut port = Tcp.open_port(&config).unwrap();
        let mut listener =
            Tcp.listen(&"tcp://127.0.0.1:0".parse().unwrap(), &ListenOptions::default()).unwrap();
        let Address::Tcp { host, port: number, .. } = listener.address() else { unreachable!() };
        let mut socket = TcpStream::connect((host.as_str(), number)).unwrap();
        let ours = Hello {
            features: Feature::RING.and(Feature::NUMBERED, true),
            ring_bytes: RING_BYTES,
            slot_bytes: 4096,
            arrivals: 16,
            responder_resources: 16,
            initiator_depth: 16,
            lane: 0,
            service: 0,
            nonce: 1,
        };
        socket.write_all(&ours.encode()).unwrap();
        let link = listener.accept(LIMIT).unwrap().unwrap().accept(&port.gate()).unwrap();
        socket.read_exact(&mut vec![0; ours.encode().len()]).unwrap();
        socket.write_all(&record(GRANT, 0, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let conn = port.adopt(link, Time(0)).unwrap();
        let mut target =
            Self { port, conn, batch: Batch::new(16), socket, started: Instant::now(), closed: None };
        while target.turn() == 0 {}
        target
    }

    /// Takes what is there; how much that was.
    fn turn(&mut self) -> usize {
        let (mut work, mut sum) = (0, 0u64);
        while let Look::Run(mut run) = self.port.next_run(Limit::Frames(16)) {
            while let Some(lent) = run.next_frame() {
                assert!(lent.payload().len() <= RING_BYTES as usize / 4);
                sum += lent.payload().iter().map(|byte| u64::from(*byte)).sum::<u64>();
                work += 1;
            }
            let credit = gimmal_rpc::engine::transport::Credit { bytes: run.end(), arrivals: 0 };
            self.port.end_run(&mut run, false);
            self.port.return_credit(self.conn, credit);
        }
        std::hint::black_box(sum);
        self.port.poll(Time::default().plus(self.started.elapsed()), &mut self.batch);
        for event in self.batch.drain() {
            work += 1;
            if let Event::Closed { reason, .. } = event {
                self.closed = Some(reason);
            }
        }
        self.port.flush();
        assert!(self.started.elapsed() < LIMIT, "it never came");
        work
    }

    /// The peer reads what it is sent, so that nothing is held up.
    fn listen(&mut self) {
        let mut buffer = [0; 4096];
        while matches!(self.socket.read(&mut buffer), Ok(1..)) {}
    }
}

/// After the handshake: the first byte says how the rest is cut.
pub fn tcp(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else { return };
    let mut target = Target::new();
    let gate = target.port.gate();
    let (conn, mut loans) = (target.conn, Vec::new());
    let loan = gate.allocate(conn, 5000).unwrap();
    target.port.offer(conn, &loan).unwrap();
    loans.push(loan);
    let exposed = gate.expose(conn, 4096).unwrap();
    target.port.show(conn, &exposed).unwrap();
    target.port.pull(conn, Offer { address: 0, key: 1, len: 3000 }, 1).unwrap();
    let theirs = Remote::new(Offer { address: 0, key: 2, len: 4096 });
    let read = OneSided::Read { at: 0, into: gate.allocate(conn, 64).unwrap() };
    target.port.access(conn, theirs, read, 2).map_err(|(error, _)| error).unwrap();
    for piece in data.chunks(1 + usize::from(*cut) * 8) {
        let mut rest = piece;
        while !rest.is_empty() && target.closed.is_none() {
            match target.socket.write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            target.turn();
            target.listen();
        }
    }
    let _ = target.socket.shutdown(Shutdown::Write);
    while target.closed.is_none() {
        target.turn();
        target.listen();
    }
}

/// Frames and records as an honest peer sends them, or nearly so.
pub fn valid(choices: &mut Choices) -> Vec<u8> {
    let small = |choices: &mut Choices, below: usize| u32::try_from(choices.index(below)).unwrap();
    let mut out = choices.bytes(1);
    out.resize(1, 255);
    for _ in 0..1 + choices.index(12) {
        match choices.index(7) {
            0..=2 => {
                let bytes = choices.index(600);
                out.extend(FrameWord::new(bytes, Tag(small(choices, 1 << 16))).bits().to_le_bytes());
                out.resize(out.len() + span(bytes) - 8, 0xee);
            }
            3 => out.extend(record(3, 0, 0)),
            4 => {
                let (what, bytes) = (1 + small(choices, 5), small(choices, 5000));
                out.extend(record(4, small(choices, 4), what));
                for word in [u64::from(small(choices, 4)), 0, u64::from(bytes), 0] {
                    out.extend(word.to_le_bytes());
                }
                if what == 3 {
                    out.extend(record(6, 0, bytes));
                    out.resize(out.len() + bytes as usize, 7);
                }
            }
            5 => {
                let bytes = small(choices, 3001);
                out.extend(record(5, small(choices, 3), bytes));
                out.resize(out.len() + bytes as usize, 7);
            }
            _ => out.extend(record([7, 8, 2][choices.index(3)], small(choices, 3), 0)),
        }
    }
    out
}
