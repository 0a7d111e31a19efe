//! A record and a counter in a server's memory, which clients read, write and add to by themselves.
//!
//! ```text
//! one_sided serve --address shm:///tmp/board --seconds 60
//! one_sided use   --address shm:///tmp/board --times 1000        prints what each operation takes
//! ```
//! Exit code 0 when everything that was written is read, and every addition counts.

#![forbid(unsafe_code)]

use std::{error::Error, time::Duration};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Inline, Io, Message,
    transport::{
        AccessError, Accessed, Address, CloseReason, ConnId, Exposed, Gate as _, Instant, ListenOptions,
        Loan, Negotiated, OneSided, Port, Provider as _, Remote,
        any::{Any, AnyGate},
    },
};

/// Where the counter is, and the record behind it.
const COUNTER: u64 = 0;
const RECORD: u64 = 64;
const RECORD_BYTES: usize = 64;
const BOARD_BYTES: usize = 4096;
/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(60);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The server exposes a board to everybody who comes; a client is told where it is.
#[derive(Debug, Default)]
struct Node {
    gate: Option<AnyGate>,
    boards: Vec<(ConnId, Exposed)>,
    remote: Option<Remote>,
    ended: Option<Result<Accessed, AccessError>>,
    closed: Option<CloseReason>,
}

impl Node {
    fn expose<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) -> Outcome {
        let Some(gate) = &self.gate else { return Ok(()) };
        let board = gate.expose(conn, BOARD_BYTES)?;
        let remote = io.show(conn, &board)?.encode();
        io.send(conn, Head::default(), remote.len(), |body| {
            body.get_mut(..remote.len())?.copy_from_slice(&remote);
            Some(remote.len())
        })?;
        self.boards.push((conn, board));
        Ok(())
    }
}

impl App for Node {
    type Command = ();

    fn opened<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        if let Err(error) = self.expose(io, conn) {
            eprintln!("nothing exposed: {error}");
            io.close(conn);
        }
    }

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, message: Message<'_>) {
        self.remote = Remote::decode(message.body).ok();
    }

    fn accessed<P: Port>(
        &mut self,
        _: &mut Io<'_, P>,
        _: ConnId,
        _: u64,
        result: Result<Accessed, AccessError>,
    ) {
        self.ended = Some(result);
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, reason: &CloseReason) {
        for (_, board) in self.boards.extract_if(.., |(whose, _)| *whose == conn) {
            println!("the counter stands at {}", board.load(COUNTER).unwrap_or_default());
        }
        self.closed = Some(reason.clone());
    }
}

fn config(idle: Idle) -> Config {
    Config { idle, ..Config::default() }
}

/// The server sleeps: nobody needs it while its memory is used.
fn serve(address: &Address, time: Duration) -> Outcome {
    let provider = Any::new();
    let mut server = Inline::new(&provider, &config(Idle::Event).validate()?, Node::default())?;
    server.app_mut().gate = Some(server.handle().gate().clone());
    let listener = provider.listen(address, &ListenOptions::default())?;
    let _acceptor = Acceptor::spawn(listener, vec![server.handle()])?;
    let until = Instant::now() + time;
    while Instant::now() < until {
        server.idle(Duration::from_millis(20));
    }
    Ok(())
}

struct Client {
    inline: Inline<Any, Node>,
    conn: ConnId,
    remote: Remote,
}

impl Client {
    fn connect(address: &Address) -> Outcome<(Self, bool)> {
        let mut inline = Inline::new(&Any::new(), &config(Idle::Spin).validate()?, Node::default())?;
        let start = Instant::now();
        // The server may still be on its way.
        let (conn, negotiated) = loop {
            match inline.connect(address) {
                Ok(connected) => break connected,
                Err(error) if start.elapsed() > LIMIT => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        while inline.app().remote.is_none() {
            if start.elapsed() > LIMIT {
                return Err("nothing was shown".into());
            }
            inline.idle(Duration::from_millis(20));
        }
        let remote = inline.app().remote.ok_or("nothing was shown")?;
        Ok((Self { inline, conn, remote }, negotiated.atomics))
    }

    fn make(&mut self, op: OneSided) -> Outcome<Accessed> {
        let (conn, remote, start) = (self.conn, self.remote, Instant::now());
        self.inline.with(|_, io| io.access(conn, remote, op, 0)).map_err(|(error, _)| error)?;
        loop {
            if let Some(ended) = self.inline.app_mut().ended.take() {
                return Ok(ended?);
            }
            if let Some(reason) = self.inline.app_mut().closed.take() {
                return Err(reason.to_string().into());
            }
            if start.elapsed() > LIMIT {
                return Err("not done in time".into());
            }
            self.inline.turn();
        }
    }

    fn loan(&mut self, op: OneSided) -> Outcome<Loan> {
        match self.make(op)? {
            Accessed::Loan(loan) => Ok(loan),
            Accessed::Word(_) => Err("a word in place of a loan".into()),
        }
    }

    fn word(&mut self, op: OneSided) -> Outcome<u64> {
        match self.make(op)? {
            Accessed::Word(word) => Ok(word),
            Accessed::Loan(_) => Err("a loan in place of a word".into()),
        }
    }
}

/// Times `make`, given the number of the round.
fn row(what: &str, times: u64, mut make: impl FnMut(u64) -> Outcome) -> Outcome {
    let mut took = Vec::new();
    for round in 0..times {
        let start = Instant::now();
        make(round)?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let at = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or_default();
    println!("{what:<24} {:>10.1?} {:>10.1?}", at(50), at(99));
    Ok(())
}

fn use_board(address: &Address, times: u64) -> Outcome {
    let (mut client, atomics) = Client::connect(address)?;
    let mut spare = Some(client.inline.handle().allocate(client.conn, RECORD_BYTES)?);
    println!("{:<24} {:>10} {:>10}", "one at a time", "p50", "p99");
    row("write of 64 B", times, |round| {
        let mut from = spare.take().ok_or("no loan")?;
        from.fill(round.to_le_bytes()[0]);
        spare = Some(client.loan(OneSided::Write { at: RECORD, from })?);
        Ok(())
    })?;
    let last = times.saturating_sub(1).to_le_bytes()[0];
    row("read of 64 B", times, |_| {
        let mut into = spare.take().ok_or("no loan")?;
        into.fill(!last);
        let read = client.loan(OneSided::Read { at: RECORD, into })?;
        let is_last = read.iter().all(|byte| *byte == last);
        spare = Some(read);
        if is_last { Ok(()) } else { Err("what was written is not what is read".into()) }
    })?;
    if !atomics {
        println!("no atomic operations: {}", AccessError::NoAtomics);
        return Ok(());
    }
    row("fetch and add", times, |round| match client.word(OneSided::FetchAdd { at: COUNTER, add: 1 })? {
        before if before == round => Ok(()),
        before => Err(format!("the counter was {before} before addition {round}").into()),
    })?;
    row("compare and swap", times, |round| {
        let (expected, new) = (times + round, times + round + 1);
        match client.word(OneSided::CompareSwap { at: COUNTER, expected, new })? {
            found if found == expected => Ok(()),
            found => Err(format!("{found} in place of {expected}").into()),
        }
    })?;
    if client.inline.close(LIMIT) { Ok(()) } else { Err("no goodbye".into()) }
}

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let number = |name: &str, default: u64| value(name).map_or(Ok(default), |text| text.parse());
    let address: Address = value("--address").ok_or("--address is missing")?.parse()?;
    match args.first().map(String::as_str) {
        Some("serve") => serve(&address, Duration::from_secs(number("--seconds", 60)?)),
        Some("use") => use_board(&address, number("--times", 1000)?),
        _ => Err("serve or use?".into()),
    }
}
