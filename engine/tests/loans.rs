//! Loans that are refused: too many of them, beside a body that never fits, made for somebody else.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::time::Duration;

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, LoanRefused, Message, Plan, RemoteBulk, SendError,
    Workers,
    transport::{
        Address, CloseReason, ConnId, Instant, Listener as _, Loan, Port, Provider as _,
        any::Any,
        testing::{patient_connect, patient_listen},
    },
};

const LIMIT: Duration = Duration::from_secs(60);

/// Keeps what it is offered, and neither pulls nor declines it before a message without bulk comes: then the first.
#[derive(Debug, Default)]
struct Keeper {
    kept: Vec<RemoteBulk>,
    writable: usize,
    back: Vec<u64>,
    closed: bool,
}

impl App for Keeper {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        match message.bulk {
            Some(bulk) => self.kept.push(bulk),
            None => io.decline(conn, self.kept.remove(0)),
        }
    }

    fn loan_done<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, aux: u64) {
        self.back.push(aux);
    }

    fn writable<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId) {
        self.writable += 1;
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: &CloseReason) {
        self.closed = true;
    }
}

fn plan() -> Plan {
    Config {
        idle: Idle::Adaptive { spin_us: 20 },
        heartbeat_ms: 0,
        connect: patient_connect(),
        ..Config::default()
    }
    .validate()
    .unwrap()
}

/// A server on a worker of its own.
struct Server {
    address: Address,
    provider: Any,
    _acceptor: Acceptor,
    _workers: Workers<Any, Keeper>,
}

impl Server {
    fn new(scheme: &str, name: &str) -> Self {
        let name = format!("loans-{name}-{}", std::process::id());
        let url = match scheme {
            "shm" => format!("shm://{}/{name}", std::env::temp_dir().display()),
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("{scheme}://{name}"),
        };
        let provider = Any::new();
        let workers = Workers::spawn(&provider, &plan(), |_| Keeper::default()).unwrap();
        let listener = provider.listen(&url.parse().unwrap(), &patient_listen()).unwrap();
        let address = listener.address();
        let acceptor = Acceptor::spawn(listener, workers.handles().to_vec()).unwrap();
        Self { address, provider, _acceptor: acceptor, _workers: workers }
    }

    fn client(&self) -> Client {
        let mut inline = Inline::new(&self.provider, &plan(), Keeper::default()).unwrap();
        let (conn, _) = inline.connect(&self.address).unwrap();
        Client { inline, conn }
    }
}

/// A client on this thread.
struct Client {
    inline: Inline<Any, Keeper>,
    conn: ConnId,
}

impl Client {
    fn loan(&self, bytes: usize) -> Loan {
        self.inline.handle().allocate(self.conn, bytes).unwrap()
    }

    /// Sends `body` bytes beside `loan`; waits while there is no room.
    fn lend(&mut self, aux: u64, mut loan: Loan, body: usize) -> Result<(), LoanRefused> {
        let (conn, until) = (self.conn, Instant::now() + LIMIT);
        loop {
            let fill = |out: &mut [u8]| (out.len() >= body).then_some(body);
            let sent =
                self.inline.with(|_, io| io.send_with_loan(conn, Head { kind: 0, aux }, loan, 0, fill));
            match sent {
                Err(LoanRefused { error: SendError::Blocked, loan: back }) => loan = back,
                sent => return sent,
            }
            assert!(Instant::now() < until, "blocked for ever");
            self.inline.idle(Duration::from_millis(1));
        }
    }

    /// Asks the server to be done with the first that it keeps, and waits for it.
    fn have_one_back(&mut self) -> u64 {
        let (conn, before, until) = (self.conn, self.inline.app().back.len(), Instant::now() + LIMIT);
        while self.inline.with(|_, io| io.send(conn, Head::default(), 0, |_| Some(0)))
            == Err(SendError::Blocked)
        {
            assert!(Instant::now() < until, "a message without a loan is held up");
            self.inline.idle(Duration::from_millis(1));
        }
        while self.inline.app().back.len() == before {
            assert!(Instant::now() < until && !self.inline.app().closed, "the loan does not come back");
            self.inline.idle(Duration::from_millis(1));
        }
        self.inline.app().back[before]
    }
}

macro_rules! for_each_scheme {
    ($($case:ident)*) => {
        mod mem { $(#[test] fn $case() { super::$case("mem"); })* }
        mod shm { $(#[test] fn $case() { super::$case("shm"); })* }
        mod tcp { $(#[test] fn $case() { super::$case("tcp"); })* }
    };
}

for_each_scheme! {
    a_body_that_never_fits_beside_a_loan_is_too_large
    a_loan_of_another_gate_is_refused_by_name
}

#[test]
fn one_loan_more_than_there_are_ids_is_refused_and_told_when_one_is_done() {
    let server = Server::new("shm", "many");
    let mut client = server.client();
    for aux in 0..65_536 {
        let loan = client.loan(8);
        client.lend(aux, loan, 0).unwrap();
    }
    for _ in 0..3 {
        let loan = client.loan(8);
        let refused = client.lend(65_536, loan, 0).unwrap_err();
        assert_eq!((refused.error, refused.loan.len()), (SendError::TooManyLoans { limit: 65_536 }, 8));
    }
    let told = client.inline.app().writable;
    // What has no loan goes on, and so does a loan when one is done.
    assert_eq!(client.have_one_back(), 0);
    let until = Instant::now() + LIMIT;
    while client.inline.app().writable == told {
        assert!(Instant::now() < until, "nobody says that there is an id again");
        client.inline.idle(Duration::from_millis(1));
    }
    let loan = client.loan(8);
    client.lend(65_536, loan, 0).unwrap();
    let loan = client.loan(8);
    assert!(client.lend(65_537, loan, 0).is_err());
    // Each is its own still, the one that took the free slot too.
    assert_eq!((client.have_one_back(), client.have_one_back()), (1, 2));
    assert!(!client.inline.app().closed);
}

fn a_body_that_never_fits_beside_a_loan_is_too_large(scheme: &str) {
    let server = Server::new(scheme, "large");
    let mut client = server.client();
    let conn = client.conn;
    let (most, limit) =
        client.inline.with(|_, io| (io.body_bytes_max(conn), io.body_bytes_max_with_loan(conn)));
    assert!(0 < limit && limit < most, "an offer takes some of the frame");
    let too_large = |bytes| SendError::TooLarge { bytes, limit };
    for bytes in limit + 1..=most + 1 {
        let loan = client.loan(10);
        let refused = client.lend(0, loan, bytes).unwrap_err();
        assert_eq!((refused.error, refused.loan.len()), (too_large(limit + 1), 10), "{bytes} bytes");
    }
    let loan = client.loan(10);
    let refused =
        client.inline.with(|_, io| io.send_with_loan(conn, Head::default(), loan, limit + 1, |_| Some(0)));
    assert_eq!(refused.unwrap_err().error, too_large(limit + 1), "asked for at least as much");
    for aux in [limit - 1, limit] {
        let loan = client.loan(10);
        client.lend(aux as u64, loan, aux).unwrap();
    }
    assert_eq!(client.have_one_back(), limit as u64 - 1);
}

fn a_loan_of_another_gate_is_refused_by_name(scheme: &str) {
    let server = Server::new(scheme, "foreign");
    let (mut one, mut two) = (server.client(), server.client());
    let own = one.loan(100);
    let nobodys = Loan::anonymous(100, own.ticket()).unwrap();
    for foreign in [two.loan(100), nobodys] {
        let refused = one.lend(1, foreign, 0).unwrap_err();
        assert_eq!((refused.error, refused.loan.len()), (SendError::Foreign, 100));
    }
    one.lend(2, own, 0).unwrap();
    assert_eq!(one.have_one_back(), 2);
    let own = two.loan(100);
    two.lend(3, own, 0).unwrap();
    assert_eq!(two.have_one_back(), 3);
}
