//! Clients that are none of ours, and clients that go half-way.

use rustix::net::sockopt;

use super::{burst::patient, *};
use crate::{
    ConnectError, Refusal, RejectReason,
    hello::{VERSION, encode_reject},
    strangers::{CHANCE, PLACES, PLACES_OF_ONE},
};

/// What the listener says, and why it counts the client as refused.
fn told(listener: &mut TcpListener, client: &mut TcpStream) -> (Option<RejectReason>, Option<RejectReason>) {
    let before = listener.rejections().count();
    let until = Instant::now() + LONG;
    while listener.rejections().count() == before {
        assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none(), "it was handed out");
        assert!(Instant::now() < until, "it was not refused");
    }
    let mut answer = Vec::new();
    client.set_read_timeout(Some(LONG)).unwrap();
    let _ = client.read_to_end(&mut answer);
    (Refusal::decode(&answer).map(|refusal| refusal.reason()), listener.rejections().last())
}

/// An HTTP client, a TLS client, a scanner that says nothing and leaves: each is refused by name, at once.
#[test]
fn foreign_clients_are_refused_by_name() {
    let mut listener = listen(&patient_listen());
    for bytes in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01", b"g", b"gmmX"] {
        let mut client = dial(&listener);
        client.write_all(bytes).unwrap();
        if bytes.len() < 4 {
            client.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let (_, counted) = told(&mut listener, &mut client);
        assert_eq!(counted, Some(RejectReason::NotOurs), "{bytes:?}");
    }
    let mut client = dial(&listener);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(told(&mut listener, &mut client).1, Some(RejectReason::NotOurs), "a scanner");
}

/// The version before ours and the one behind it, as clients and as servers.
#[test]
fn versions_beside_ours_refuse_each_other_by_name() {
    let gate = Tcp.open_port(&config(4096)).unwrap().gate();
    for other in [VERSION - 1, VERSION + 1] {
        let mut listener = listen(&patient_listen());
        let mut bytes = hello(&config(4096), 1).encode();
        bytes[4] = other;
        let mut client = dial(&listener);
        client.write_all(&bytes).unwrap();
        let (read, counted) = told(&mut listener, &mut client);
        assert_eq!(counted, Some(RejectReason::Version { ours: VERSION, theirs: other }));
        assert_eq!(read, Some(RejectReason::Version { ours: other, theirs: VERSION }));
        // As a server it refuses our hello, or answers with its own.
        let mut reject = encode_reject(RejectReason::Version { ours: other, theirs: VERSION });
        reject[4] = other;
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Address = format!("tcp://{}", server.local_addr().unwrap()).parse().unwrap();
        for answer in [&bytes[..], &reject[..]] {
            let mut connecting = Tcp.connect(&address, &gate, &patient_connect()).unwrap();
            let play = std::thread::spawn({
                let (server, answer) = (server.try_clone().unwrap(), answer.to_vec());
                move || {
                    let (mut peer, _) = server.accept().unwrap();
                    peer.read_exact(&mut [0; HELLO_BYTES]).unwrap();
                    peer.write_all(&answer).unwrap();
                    peer
                }
            });
            let until = Instant::now() + LONG;
            let error = loop {
                assert!(Instant::now() < until, "no answer");
                if let Some(outcome) = connecting.poll(Duration::from_millis(10)) {
                    break outcome.unwrap_err();
                }
            };
            drop(play.join().unwrap());
            let is_named = matches!(
                error,
                ConnectError::Foreign { reason, .. } | ConnectError::Rejected { reason, .. }
                    if reason == RejectReason::Version { ours: VERSION, theirs: other }
            );
            assert!(is_named, "{error}");
            let words = format!("protocol version {other} and this side {VERSION}; upgrade the older one");
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
}

/// A client that writes a byte now and then has its place for the handshake's time, and no longer.
#[test]
fn a_slow_writer_is_given_up() {
    let limit = Duration::from_millis(300);
    let mut listener = listen(&ListenOptions { handshake_timeout: limit, ..patient_listen() });
    let mut client = dial(&listener);
    let hello = hello(&config(4096), 1).encode();
    client.write_all(&hello[..HELLO_BYTES - 1]).unwrap();
    let start = Instant::now();
    let (told, counted) = told(&mut listener, &mut client);
    assert_eq!((told, counted), (Some(RejectReason::Overloaded), Some(RejectReason::Overloaded)));
    assert!(start.elapsed() >= limit);
}

/// A reset, and a close, after each byte of the handshake: the listener and the port go on.
#[test]
fn a_reset_at_each_byte_of_the_handshake_harms_nobody() {
    let mut listener = listen(&patient_listen());
    let mut port = Tcp.open_port(&config(4096)).unwrap();
    let mut batch = Batch::new(64);
    let said = [&hello(&config(4096), 1).encode()[..], &Record::Grant.encode()].concat();
    let (mut opened, mut closed, mut adopted) = (0, 0, 0);
    for bytes in 0..=said.len() {
        for resets in [false, true] {
            let mut client = dial(&listener);
            client.write_all(&said[..bytes]).unwrap();
            if resets {
                sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
            }
            drop(client);
            let incoming = listener.accept(Duration::from_millis(1)).unwrap();
            if let Some(Ok(link)) = incoming.map(|incoming| incoming.accept(&port.gate())) {
                port.adopt(link, Time(0)).unwrap();
                adopted += 1;
            }
            for event in testing::poll(&mut port, Time(1), &mut batch) {
                opened += usize::from(matches!(event, Came::Opened { .. }));
                closed += usize::from(matches!(event, Came::Closed { .. }));
            }
        }
    }
    let until = Instant::now() + LONG;
    while closed < adopted {
        for event in testing::poll(&mut port, Time(1), &mut batch) {
            opened += usize::from(matches!(event, Came::Opened { .. }));
            closed += usize::from(matches!(event, Came::Closed { .. }));
        }
        assert!(Instant::now() < until, "{closed} of {adopted} closed");
    }
    assert!(adopted > 0 && opened <= adopted, "{opened} of {adopted}");
    let client = Tcp.open_port(&config(4096)).unwrap();
    let (accepted, _connected) = links(&mut listener, &port, &client);
    Side::adopt(port, accepted).opened();
}

/// No host alone takes all places of a listener.
#[test]
fn one_source_has_half_of_the_places() {
    let mut listener = listen(&patient());
    let silent: Vec<_> = (0..PLACES).map(|_| dial(&listener)).collect();
    let until = Instant::now() + LONG;
    let refused = (PLACES - PLACES_OF_ONE) as u64;
    while listener.rejections().count() < refused {
        assert!(listener.accept(Duration::from_millis(1)).unwrap().is_none());
        assert!(Instant::now() < until, "{} refused", listener.rejections().count());
    }
    assert_eq!(listener.rejections().last(), Some(RejectReason::Overloaded));
    drop(silent);
}

/// Silent clients of a host make room for one of the same host that speaks, once they had their chance.
#[test]
fn a_source_does_not_shut_itself_out() {
    let mut listener = listen(&patient());
    let silent: Vec<_> = (0..PLACES_OF_ONE).map(|_| dial(&listener)).collect();
    // Each call takes one at least.
    for _ in &silent {
        assert!(listener.accept(Duration::from_millis(1)).unwrap().is_none());
    }
    std::thread::sleep(CHANCE);
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(4096)).unwrap());
    let (accepted, _connected) = links(&mut listener, &server, &client);
    Side::adopt(server, accepted).opened();
    assert_eq!(listener.rejections().count(), 1);
    drop(silent);
}
