//! Many clients at once, and clients that connect and then say nothing.

#![allow(clippy::unwrap_used, reason = "a failure of a test is a panic")]

use std::time::Duration;

use gimmal_engine::{
    Acceptor, App, Config, Idle, Io, Message, OpenError, Workers,
    transport::{
        Address, ConnId, ConnectError, ConnectOptions, Connecting as _, Instant, Negotiated, Port,
        PortConfig, Provider as _, RejectReason, shm::Shm,
    },
};
use gimmal_sim::{Sim, SimConfig};

/// Has nothing to say, and takes so long to hear of a connection.
#[derive(Debug, Default)]
struct Mute(Duration);

impl App for Mute {
    type Command = ();

    fn opened<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: &Negotiated) {
        std::thread::sleep(self.0);
    }

    fn message<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, _: Message<'_>) {}
}

fn config(handshakes_max: usize) -> Config {
    let port = PortConfig { ring_bytes: 4 << 10, slot_bytes: 256, arrivals: 4, ..PortConfig::default() };
    let mut config = Config { idle: Idle::Event, port, handshakes_max, ..Config::default() };
    // Long, so that nothing but the limit frees a place, and the last of many still gets its turn.
    config.listen.handshake_timeout = Duration::from_secs(60);
    config.connect.connect_timeout = Duration::from_secs(60);
    config.connect.handshake_timeout = Duration::from_secs(60);
    config
}

fn serve(name: &str, config: &Config, slow: Duration) -> (Workers<Shm, Mute>, Acceptor, Address) {
    let path = std::env::temp_dir().join(format!("gimmal-storm-{}-{name}", std::process::id()));
    let address = Address::Shm { path };
    let plan = config.clone().validate().unwrap();
    let workers = Workers::spawn(&Shm, &plan, move |_| Mute(slow)).unwrap();
    let listener = Shm.listen(&address, &config.listen).unwrap();
    let acceptor = Acceptor::spawn(listener, workers.handles().to_vec()).unwrap();
    (workers, acceptor, address)
}

/// R10: clients that connect and never send their grant hold only so many places, and an honest one gets in beside
/// them soon.
#[test]
fn r10_slowloris_holds_no_more_than_its_places() {
    const STALLERS: usize = 60;
    const PLACES: usize = 16;
    let config = config(PLACES);
    let sim = Sim::new(SimConfig { real_time: true, ..SimConfig::default() });
    let address: Address = "mem://slowloris".parse().unwrap();
    let plan = config.clone().validate().unwrap();
    let workers = Workers::spawn(&sim, &plan, |_| Mute::default()).unwrap();
    let listener = sim.listen(&address, &config.listen).unwrap();
    let acceptor = Acceptor::spawn(listener, workers.handles().to_vec()).unwrap();
    let port = sim.open_port(&config.port).unwrap();
    let options = ConnectOptions { connect_timeout: Duration::from_secs(30), ..ConnectOptions::default() };
    // Accepted, and never adopted: so no grant is ever sent.
    let stalled: Vec<_> = (0..STALLERS)
        .map(|_| {
            let mut connecting = sim.connect(&address, &port.gate(), &options).unwrap();
            connecting.poll(Duration::from_secs(30)).expect("an outcome").unwrap()
        })
        .collect();
    // Counted after the client was answered.
    let limit = Instant::now() + Duration::from_secs(10);
    while acceptor.accepted() < STALLERS as u64 {
        assert!(Instant::now() < limit, "{} accepted", acceptor.accepted());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(workers.handles()[0].duty().connections_opened, 0, "nobody has opened");

    let honest = Workers::spawn(&sim, &plan, |_| Mute::default()).unwrap();
    let started = Instant::now();
    honest.handles()[0].connect(&address).unwrap();
    let took = started.elapsed();
    // The stallers' own time is six times as long.
    assert!(took < Duration::from_secs(10), "let in only after {took:?} beside {STALLERS} stallers");
    drop(stalled);
}

/// R11: all at once; every one is connected.
#[test]
fn r11_many_clients_at_once_are_all_connected() {
    const CLIENTS: usize = 200;
    let config = config(CLIENTS);
    let (_workers, acceptor, address) = serve("many", &config, Duration::ZERO);
    let clients = Workers::spawn(&Shm, &config.validate().unwrap(), |_| Mute::default()).unwrap();
    let handle = &clients.handles()[0];
    let start = std::sync::Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        let attempts: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    handle.connect(&address).map(|(conn, _)| conn)
                })
            })
            .collect();
        let conns: std::collections::HashSet<_> =
            attempts.into_iter().map(|attempt| attempt.join().unwrap().unwrap()).collect();
        assert_eq!(conns.len(), CLIENTS, "an id was given twice");
    });
    assert_eq!(acceptor.rejections().count(), 0);
}

/// A connection that is opening is in its handshake or open, never both.
#[test]
fn as_many_as_may_be_are_connected_and_no_more() {
    let config = Config { accepted_max: 2, ..config(16) };
    // Within this a request comes while its predecessor is opening.
    let (workers, acceptor, address) = serve("narrow", &config, Duration::from_millis(300));
    let clients = Workers::spawn(&Shm, &config.validate().unwrap(), |_| Mute::default()).unwrap();
    let handle = &clients.handles()[0];
    let (first, _) = handle.connect(&address).unwrap();
    handle.connect(&address).unwrap();
    assert_eq!(acceptor.rejections().count(), 0);
    for _ in 0..2 {
        let error = handle.connect(&address).unwrap_err();
        let reason = RejectReason::Overloaded;
        assert!(
            matches!(&error, OpenError::Connect(ConnectError::Rejected { reason: why, .. }) if *why == reason),
            "{error:?}"
        );
    }
    handle.close(first).unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    while handle.connect(&address).is_err() {
        assert!(Instant::now() < limit, "a connection that ended is counted");
    }
    drop(workers);
}
