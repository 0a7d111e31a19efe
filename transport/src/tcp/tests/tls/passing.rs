//! What passes by itself: a server that has no place, files that cannot be read for a moment.

use super::*;
use crate::{
    hello::encode_reject,
    tcp::{
        tests::{
            burst::{patient, those_beyond_the_places_try_again},
            shortage::take_descriptors,
        },
        wire::check_server,
    },
    testing::process::{alone, role},
};

/// What a client under TLS makes of a server that says `answer` in place of TLS.
fn answered(names: &Names, answer: Vec<u8>) -> ConnectError {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, port) = ("127.0.0.1".to_owned(), server.local_addr().unwrap().port());
    let address = Address::Tcp { host, port, tls: true };
    let gate = Tcp.open_port(&config(4096)).unwrap().gate();
    let timeout = Duration::from_secs(60);
    let options = ConnectOptions { tls: names.client(), connect_timeout: timeout, ..patient_connect() };
    let connecting = Tcp.connect(&address, &gate, &options);
    let play = std::thread::spawn(move || {
        let (mut peer, _) = server.accept().unwrap();
        peer.write_all(&answer).unwrap();
        let _ = peer.shutdown(std::net::Shutdown::Write);
        // Its hello of TLS, so that the answer is not lost by a reset.
        let _ = std::io::copy(&mut peer, &mut std::io::sink());
    });
    let error = connecting
        .and_then(|mut connecting| connecting.poll(timeout).expect("an outcome"))
        .expect_err("it was refused");
    play.join().unwrap();
    error
}

/// A listener refuses the clients that it has no place for before TLS begins, in the words of plain TCP. Any other reason that comes so
/// is nobody's.
#[test]
fn a_server_that_has_no_place_for_a_handshake_is_believed_and_nothing_else() {
    let names = Names::new();
    for reason in [RejectReason::Overloaded, RejectReason::ShuttingDown] {
        let error = answered(&names, encode_reject(reason).to_vec());
        let is_named = matches!(&error, ConnectError::Rejected { reason: told, .. } if *told == reason);
        assert!(is_named, "{error}");
    }
    let half = encode_reject(RejectReason::Overloaded)[..8].to_vec();
    let hello = hello(&config(4096), 1).encode().to_vec();
    for other in [encode_reject(RejectReason::KeyNeeded).to_vec(), half, hello, b"HTTP/1.1 400".to_vec()] {
        let error = answered(&names, other);
        assert!(matches!(error, ConnectError::Tls { cause: TlsError::Plain, .. }), "{error}");
    }
}

/// One that was let in and said nothing is told in the same words.
#[test]
fn a_client_that_never_began_tls_is_told_in_plain_words() {
    let names = Names::new();
    let limit = Duration::from_millis(50);
    let options = ListenOptions { tls: names.server(), handshake_timeout: limit, ..patient_listen() };
    let mut listener = Tcp.listen(&"tcp+tls://127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let mut client = dial(&listener);
    let until = Instant::now() + Duration::from_secs(60);
    while listener.rejections().count() == 0 {
        assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none());
        assert!(Instant::now() < until, "it was not refused");
    }
    let mut answer = Vec::new();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, encode_reject(RejectReason::Overloaded));
}

#[test]
#[ignore = "the other process of another test"]
fn child_renewed() {
    let Some(_) = role() else { return };
    let names = Names::new();
    let tls = names.server();
    let mut listener = serve(tls.clone());
    let serial = |link: &TcpLink| negotiated(link).secured.clone().unwrap().peer.unwrap().names;
    let (_, first) = connect(&mut listener, names.client()).links();
    assert_eq!(serial(&first), ["localhost"]);
    let _ = names.ours.issue("server", &["127.0.0.1", "second.example"]);
    let taken = take_descriptors(0);
    assert_eq!(check_server(&tls), Ok(()), "what was read before stays in force");
    drop(taken);
    let (_, second) = connect(&mut listener, names.client()).links();
    assert_eq!(serial(&second), ["second.example"]);
}

/// A handshake meets a renewed certificate while there is no descriptor to read it: the next one reads it.
#[test]
fn a_certificate_that_could_not_be_read_is_read_again() {
    alone("tcp::tests::tls::passing::child_renewed");
}

#[test]
fn clients_of_one_host_under_tls_are_let_in_when_they_try_again() {
    let names = Names::new();
    let options = ListenOptions { tls: names.strict(), ..patient() };
    let mut listener = Tcp.listen(&"tcp+tls://127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let options = ConnectOptions { tls: names.known(), ..ConnectOptions::default() };
    those_beyond_the_places_try_again(&mut listener, &options);
}
