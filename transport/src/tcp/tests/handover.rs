//! A listening socket that goes to the next process.

use super::*;
use crate::{
    ConnectError, ListenError, tcp::connecting::TcpConnecting, tcp::handover::WAITS, tcp::place::Targets,
    tcp::socket,
};

pub(super) fn taking(patience: Duration) -> ListenOptions {
    ListenOptions { take_over: patience, ..patient_listen() }
}

/// The next listener at `listener`'s address, which waits before that one stops.
fn take_over(listener: TcpListener) -> TcpListener {
    let address = listener.address();
    let (waits, waiting) = std::sync::mpsc::channel();
    let next = std::thread::spawn(move || {
        WAITS.set(Some(waits));
        Tcp.listen(&address, &taking(SECOND.saturating_mul(30))).unwrap()
    });
    waiting.recv_timeout(SECOND.saturating_mul(30)).expect("it waits");
    drop(listener);
    next.join().unwrap()
}

/// Clients that wait in the backlog, a client that was accepted and is silent, and those that come later.
#[test]
fn no_client_is_refused_while_a_listener_is_taken_over() {
    let mut listener = listen(&patient_listen());
    let mut silent = dial(&listener);
    assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(4096)).unwrap());
    let (options, address) = (patient_connect(), listener.address());
    let connect = || Tcp.connect(&address, &client.gate(), &options).unwrap();
    let mut connecting: Vec<_> = (0..5).map(|_| connect()).collect();
    // Their hellos are out.
    for connecting in &mut connecting {
        assert!(connecting.poll(Duration::from_millis(10)).is_none());
    }
    // Twice, since the place to wait at is handed over too.
    let mut next = take_over(take_over(listener));
    assert_eq!(next.address(), address);
    connecting.push(connect());
    assert!(connecting[5].poll(Duration::from_millis(10)).is_none());
    silent.write_all(&hello(&config(4096), 1).encode()).unwrap();
    for _ in 0..=connecting.len() {
        next.accept(LONG).unwrap().expect("it was handed over").accept(&server.gate()).unwrap();
    }
    for mut connecting in connecting {
        connecting.poll(LONG).expect("the server answered").unwrap();
    }
    assert_eq!(next.rejections().count(), 0);
}

/// A socket of a program that hands nothing over, and a listener that does not stop.
#[test]
fn who_hands_nothing_over_is_waited_for_no_longer_than_asked() {
    let program = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let foreign: Address = format!("tcp://{}", program.local_addr().unwrap()).parse().unwrap();
    let stays = listen(&patient_listen());
    for (address, patience) in
        [(&foreign, LONG), (&stays.address(), Duration::from_millis(50)), (&stays.address(), Duration::ZERO)]
    {
        let started = Instant::now();
        let refused = Tcp.listen(address, &taking(patience));
        assert!(matches!(refused, Err(ListenError::InUse { .. })), "{address}: {refused:?}");
        assert!(started.elapsed() < LONG / 2, "{address}: {:?}", started.elapsed());
    }
    // One that gave up is not handed the socket.
    let mut next = take_over(stays);
    assert!(next.accept(Duration::ZERO).unwrap().is_none());
}

/// A name has several addresses: nobody listens at the first, the second leads nowhere, the third is the server's.
#[test]
fn addresses_of_a_name_are_tried_in_turn() {
    let mut listener = listen(&patient_listen());
    let Address::Tcp { port, .. } = listener.address() else { panic!() };
    // Bound, so that nobody else takes it, and of nobody who listens.
    let place = "127.0.0.1:0".parse().unwrap();
    let bound = socket::open(&place).unwrap();
    rustix::net::bind(&bound, &place).unwrap();
    let unused = socket::local(&bound).unwrap();
    // TEST-NET-1 is nobody's.
    let (nowhere, server) = ("192.0.2.1:9".parse().unwrap(), format!("127.0.0.1:{port}").parse().unwrap());
    let [ours, theirs] = [(); 2].map(|()| Tcp.open_port(&config(4096)).unwrap());
    let options = ConnectOptions { connect_timeout: Duration::from_secs(15), ..patient_connect() };
    let start = |targets: Vec<_>| {
        TcpConnecting::to(Targets::Known(targets), &listener.address(), &theirs.gate(), &options)
    };
    let mut connecting = start(vec![unused, nowhere, server]).unwrap();
    let refused = start(vec![unused, unused]).and_then(|mut attempt| attempt.poll(LONG).transpose());
    assert!(matches!(refused, Err(ConnectError::NobodyListens { .. })), "{refused:?}");
    let incoming = loop {
        assert!(connecting.poll(Duration::from_millis(10)).is_none_or(|outcome| outcome.is_ok()));
        if let Some(incoming) = listener.accept(Duration::from_millis(10)).unwrap() {
            break incoming;
        }
    };
    incoming.accept(&ours.gate()).unwrap();
    connecting.poll(LONG).expect("the server answered").unwrap();
}
