//! One-sided operations by the engine: the owner's worker sleeps while its memory is used.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::time::Duration;

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message, Workers,
    transport::{
        AccessError, Accessed, Address, CloseReason, ConnId, Exposed, Instant, Loan, Negotiated, OneSided,
        Port, Provider as _, Remote,
        shm::Shm,
        testing::{patient_connect, patient_listen},
    },
};

const BYTES: usize = 256;

/// Shows what it is handed; remembers what it is shown, and what ended.
#[derive(Debug, Default)]
struct Board {
    conn: Option<ConnId>,
    exposed: Option<Exposed>,
    remote: Option<Remote>,
    ended: Vec<(u64, Result<Accessed, AccessError>)>,
    is_closed: bool,
}

#[derive(Debug)]
enum Command {
    Show(Exposed),
    Store(u64, u64),
    Withdraw,
}

impl Board {
    /// As soon as there is somebody to show it to.
    fn show<P: Port>(&self, io: &mut Io<'_, P>) {
        let (Some(conn), Some(exposed)) = (self.conn, &self.exposed) else { return };
        let remote = io.show(conn, exposed).unwrap().encode();
        let fill = |body: &mut [u8]| {
            body[..remote.len()].copy_from_slice(&remote);
            Some(remote.len())
        };
        io.send(conn, Head::default(), remote.len(), fill).unwrap();
    }
}

impl App for Board {
    type Command = Command;

    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.conn = Some(conn);
        self.show(io);
    }

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, message: Message<'_>) {
        self.remote = Some(Remote::decode(message.body).unwrap());
    }

    fn accessed<P: Port>(
        &mut self,
        _: &mut Io<'_, P>,
        _: ConnId,
        token: u64,
        result: Result<Accessed, AccessError>,
    ) {
        self.ended.push((token, result));
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: &CloseReason) {
        self.is_closed = true;
    }

    fn command<P: Port>(&mut self, io: &mut Io<'_, P>, command: Command) {
        match command {
            Command::Show(exposed) => {
                self.exposed = Some(exposed);
                self.show(io);
            }
            Command::Store(at, value) => self.exposed.as_ref().unwrap().store(at, value).unwrap(),
            Command::Withdraw => self.exposed = None,
        }
    }
}

struct Pair {
    workers: Workers<Shm, Board>,
    _acceptor: Acceptor,
    client: Inline<Shm, Board>,
    conn: ConnId,
    remote: Remote,
}

impl Pair {
    fn open(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gimmal-one-sided-{}-{name}", std::process::id()));
        let address = Address::Shm { path };
        let config = |idle| {
            Config { idle, heartbeat_ms: 0, connect: patient_connect(), ..Config::default() }
                .validate()
                .unwrap()
        };
        let workers = Workers::spawn(&Shm, &config(Idle::Event), |_| Board::default()).unwrap();
        let listener = Shm.listen(&address, &patient_listen()).unwrap();
        let acceptor = Acceptor::spawn(listener, workers.handles().to_vec()).unwrap();
        let mut client = Inline::new(&Shm, &config(Idle::default()), Board::default()).unwrap();
        let (conn, _) = client.connect(&address).unwrap();
        // The only connection of the server's only worker has the same name there.
        let handle = &workers.handles()[0];
        let exposed = loop {
            match handle.expose(conn, BYTES) {
                Ok(exposed) => break exposed,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        handle.submit(Command::Show(exposed)).unwrap();
        wait(&mut client, |board| board.remote.is_some());
        let remote = client.app().remote.unwrap();
        Self { workers, _acceptor: acceptor, client, conn, remote }
    }

    fn make(&mut self, op: OneSided) -> Result<Accessed, AccessError> {
        let (conn, remote) = (self.conn, self.remote);
        self.client.with(|_, io| io.access(conn, remote, op, 3)).map_err(|(error, _)| error)?;
        wait(&mut self.client, |board| !board.ended.is_empty());
        let (token, result) = self.client.app_mut().ended.remove(0);
        assert_eq!(token, 3);
        result
    }

    fn word(&mut self, op: OneSided) -> u64 {
        match self.make(op) {
            Ok(Accessed::Word(word)) => word,
            other => panic!("{other:?}"),
        }
    }

    fn loan(&mut self, op: OneSided) -> Loan {
        match self.make(op) {
            Ok(Accessed::Loan(loan)) => loan,
            other => panic!("{other:?}"),
        }
    }

    fn command(&self, command: Command) {
        self.workers.handles()[0].submit(command).unwrap();
    }
}

fn wait(client: &mut Inline<Shm, Board>, done: impl Fn(&Board) -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !done(client.app()) {
        assert!(Instant::now() < limit, "{:?}", client.app());
        client.idle(Duration::from_millis(5));
    }
}

#[test]
fn memory_is_used_while_its_owner_sleeps() {
    let mut pair = Pair::open("sleeps");
    let turns = |pair: &Pair| pair.workers.handles()[0].duty().turns;
    // It may still be settling what it sent.
    std::thread::sleep(Duration::from_millis(50));
    let before = turns(&pair);
    for round in 0..1000 {
        assert_eq!(pair.word(OneSided::FetchAdd { at: 8, add: 2 }), 2 * round);
    }
    let mut loan = pair.client.handle().allocate(pair.conn, 100).unwrap();
    loan.fill(9);
    let mut loan = pair.loan(OneSided::Write { at: 77, from: loan });
    loan.fill(0);
    let loan = pair.loan(OneSided::Read { at: 77, into: loan });
    assert!(loan.len() == 100 && loan.iter().all(|byte| *byte == 9));
    let turned = turns(&pair) - before;
    assert!(turned < 100, "{turned} turns of the owner for 1,002 operations");
    assert_eq!(pair.client.with(|_, io| io.port_counters(pair.conn)).accesses, 1002);
}

#[test]
fn an_owner_stores_and_withdraws() {
    let mut pair = Pair::open("stores");
    pair.command(Command::Store(16, 41));
    let limit = Instant::now() + Duration::from_secs(30);
    // Swapped as soon as it is there.
    while pair.word(OneSided::CompareSwap { at: 16, expected: 41, new: 43 }) != 41 {
        assert!(Instant::now() < limit);
    }
    assert_eq!(pair.word(OneSided::FetchAdd { at: 16, add: 0 }), 43);
    let outside = pair.make(OneSided::FetchAdd { at: BYTES as u64, add: 0 });
    assert!(matches!(outside, Err(AccessError::Outside { .. })), "{outside:?}");
    pair.command(Command::Withdraw);
    loop {
        match pair.make(OneSided::FetchAdd { at: 0, add: 0 }) {
            Err(AccessError::NotExposed) => break,
            Ok(_) => assert!(Instant::now() < limit),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn operations_after_the_end_are_refused() {
    let mut pair = Pair::open("end");
    let (conn, remote) = (pair.conn, pair.remote);
    pair.client.with(|_, io| io.close(conn));
    wait(&mut pair.client, |board| board.is_closed);
    let refused = pair.client.with(|_, io| io.access(conn, remote, OneSided::FetchAdd { at: 0, add: 1 }, 1));
    assert!(matches!(refused, Err((AccessError::Closed, _))), "{refused:?}");
}
