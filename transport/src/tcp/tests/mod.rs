//! What the provider promises, and what a broken, foreign or hostile peer can do to it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers, loud failures")]

mod burst;
mod fair;
mod foreign;
mod handover;
mod hostile;
mod idle;
mod names;
mod record;
mod shortage;
mod sleep;
mod stream;
#[cfg(feature = "tls")]
mod tls;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use super::{Tcp, TcpLink, TcpListener, TcpPort, link::hello, record::Record};
use crate::{
    Address, Batch, Chain, CloseReason, ConnId, ConnectOptions, Connecting, Credit, FrameWord, Incoming,
    Instant, Limit, ListenOptions, Listener, Look, Port, PortConfig, Provider, Refused, Staged, Tag, Time,
    frame::span,
    hello::HELLO_BYTES,
    testing::{self, Came, patient_connect, patient_listen},
};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a machine that is busy with something else stands still.
const LONG: Duration = Duration::from_secs(60);

fn config(ring_bytes: u32) -> PortConfig {
    PortConfig { ring_bytes, ..PortConfig::default() }
}

fn listen(options: &ListenOptions) -> TcpListener {
    Tcp.listen(&"tcp://127.0.0.1:0".parse().unwrap(), options).unwrap()
}

fn dial(listener: &TcpListener) -> TcpStream {
    let Address::Tcp { host, port, .. } = listener.address() else { panic!() };
    TcpStream::connect((host.as_str(), port)).unwrap()
}

/// Both ends of a link, made on this thread.
fn links(listener: &mut TcpListener, server: &TcpPort, client: &TcpPort) -> (TcpLink, TcpLink) {
    let options = patient_connect();
    let mut connecting = Tcp.connect(&listener.address(), &client.gate(), &options).unwrap();
    let until = Instant::now() + LONG;
    let incoming = loop {
        // A busy host may connect the socket only later; then the hello goes out here.
        assert!(connecting.poll(Duration::ZERO).is_none() && Instant::now() < until, "a client is there");
        if let Some(incoming) = listener.accept(Duration::from_millis(10)).unwrap() {
            break incoming;
        }
    };
    let accepted = incoming.accept(&server.gate()).unwrap();
    (accepted, connecting.poll(LONG).expect("the server answered").unwrap())
}

/// One end with a port and one connection.
struct Side {
    port: TcpPort,
    conn: ConnId,
    batch: Batch,
    started: Instant,
}

impl Side {
    fn adopt(mut port: TcpPort, link: TcpLink) -> Self {
        let conn = port.adopt(link, Time(0)).unwrap();
        Self { port, conn, batch: Batch::new(64), started: Instant::now() }
    }

    fn poll(&mut self) -> Vec<Came> {
        let now = Time::default().plus(self.started.elapsed());
        testing::poll(&mut self.port, now, &mut self.batch)
    }

    /// Polls until something is there.
    fn wait(&mut self) -> Vec<Came> {
        let until = Instant::now() + LONG;
        loop {
            let events = self.poll();
            if !events.is_empty() {
                return events;
            }
            assert!(Instant::now() < until, "nothing came");
        }
    }

    fn opened(&mut self) {
        let events = self.wait();
        assert!(matches!(&events[..], [Came::Opened { .. }]), "not opened: {events:?}");
    }

    fn closed(&mut self) -> CloseReason {
        loop {
            for event in self.wait() {
                if let Came::Closed { reason, .. } = event {
                    return reason;
                }
            }
        }
    }

    fn stage(&mut self, payload: &[u8], tag: u32) -> Result<(), Refused> {
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(payload);
            Some(Staged { payload_bytes: payload.len(), tag: Tag(tag), chain: Chain::Begin })
        };
        self.port.compose(self.conn, payload.len(), fill).map(drop)
    }
}

/// A server with an open connection, and the raw socket of its client.
fn open(ring_bytes: u32) -> (Side, TcpStream) {
    let mut listener = listen(&patient_listen());
    let port = Tcp.open_port(&config(ring_bytes)).unwrap();
    let (accepted, client) = greet(&mut listener, &port, ring_bytes);
    let mut side = Side::adopt(port, accepted);
    side.opened();
    (side, client)
}

/// A link for `port`, and the raw socket of its client.
fn greet(listener: &mut TcpListener, port: &TcpPort, ring_bytes: u32) -> (TcpLink, TcpStream) {
    let mut client = dial(listener);
    client.write_all(&hello(&config(ring_bytes), 1).encode()).unwrap();
    let accepted = listener.accept(LONG).unwrap().unwrap().accept(&port.gate()).unwrap();
    client.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    client.write_all(&Record::Grant.encode()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client.set_nodelay(true).unwrap();
    (accepted, client)
}

/// A frame as it travels.
fn frame(payload: &[u8], tag: u32) -> Vec<u8> {
    let mut out = FrameWord::new(payload.len(), Tag(tag)).bits().to_le_bytes().to_vec();
    out.extend_from_slice(payload);
    out.resize(span(payload.len()), 0xee);
    out
}
