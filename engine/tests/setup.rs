//! R53: every call that sets something up fails once, for every such call: an error that names it, nothing left, and the
//! next try works.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::{
    sync::mpsc::{Sender, channel},
    time::Duration,
};

use gimmal_engine::{
    Acceptor, App, Config, Head, Idle, Io, Message, Workers,
    transport::{Address, Bulk, BulkError, ConnId, Instant, ListenOptions, Loan, Port, Provider as _},
};
use gimmal_sim::{Sim, SimConfig};

const LIMIT: Duration = Duration::from_secs(10);

/// What a worker has to tell.
#[derive(Debug)]
enum News {
    Pulled(Result<(), BulkError>),
    Free,
}

/// Sends a loan that it is given, pulls one that comes.
#[derive(Debug)]
struct Carrier {
    news: Sender<News>,
}

impl Carrier {
    fn tell(&self, news: News) {
        // The test may have seen enough.
        let _ = self.news.send(news);
    }
}

impl App for Carrier {
    type Command = (ConnId, Loan);

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        io.pull(conn, message.bulk.unwrap(), 0).unwrap();
    }

    fn pulled<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: u64, result: Result<Bulk, BulkError>) {
        self.tell(News::Pulled(result.map(|bulk| assert_eq!(&*bulk, [7; 1000]))));
    }

    fn loan_done<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: u64) {
        self.tell(News::Free);
    }

    fn command<P: Port>(&mut self, io: &mut Io<'_, P>, (conn, loan): (ConnId, Loan)) {
        io.send_with_loan(conn, Head::default(), loan, 0, |_| Some(0)).unwrap();
    }
}

/// A server, a client, a loan from one to the other; what failed, in words.
fn carry(sim: &Sim) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let address: Address = "mem://setup".parse().unwrap();
    let plan = Config { idle: Idle::Event, ..Config::default() }.validate().unwrap();
    let (news, told) = channel();
    let carrier = move |_| Carrier { news: news.clone() };
    let servers = Workers::spawn(sim, &plan, carrier.clone()).map_err(|error| text(&error))?;
    let listener = sim.listen(&address, &ListenOptions::default()).map_err(|error| text(&error))?;
    let _acceptor = Acceptor::spawn(listener, servers.handles().to_vec()).map_err(|error| text(&error))?;
    let clients = Workers::spawn(sim, &plan, carrier).map_err(|error| text(&error))?;
    let client = &clients.handles()[0];
    let (conn, _) = client.connect(&address).map_err(|error| text(&error))?;
    let mut loan = client.allocate(conn, 1000).map_err(|error| text(&error))?;
    loan.fill(7);
    client.submit((conn, loan)).map_err(|_| "the inbox is full".to_owned())?;
    let mut pulled = None;
    for _ in 0..2 {
        match told.recv_timeout(LIMIT).map_err(|error| text(&error))? {
            News::Pulled(result) => pulled = Some(result),
            News::Free => {}
        }
    }
    pulled.expect("the loan is free, and nobody pulled it").map_err(|error| text(&error))
}

fn assert_nothing_is_left(sim: &Sim, what: &str) {
    let started = Instant::now();
    while sim.connections() > 0 || sim.ports() > 0 {
        assert!(
            started.elapsed() < LIMIT,
            "{what}: {} connections, {} ports",
            sim.connections(),
            sim.ports()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sim.findings().misuses, [], "{what}");
}

#[test]
fn r53_every_setup_call_fails_once_and_leaves_nothing() {
    let mut steps = Vec::new();
    for failing_setup in 1.. {
        let sim = Sim::new(SimConfig { real_time: true, failing_setup, ..SimConfig::default() });
        let outcome = carry(&sim);
        let Some(step) = sim.findings().failed_setup else {
            assert_eq!(outcome, Ok(()), "nothing failed");
            break;
        };
        let what = format!("call {failing_setup}, {step}");
        let error = outcome.expect_err(&what);
        println!("{what}: {error}");
        assert_nothing_is_left(&sim, &what);
        assert_eq!(carry(&sim), Ok(()), "the try after {what}");
        assert_nothing_is_left(&sim, &what);
        steps.push(step);
    }
    assert_eq!(steps.len(), 14, "{steps:?}");
}
