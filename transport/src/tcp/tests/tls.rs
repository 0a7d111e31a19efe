//! TLS: who is believed, who is refused and why, and what others who speak it make of us.

mod flood;
mod passing;

use std::{
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    AcceptError, ConnectError, Key, ListenError, Negotiated, RejectReason, Tls, TlsError,
    testing::{Authority, Issued},
};

const CLIENT_ID: &str = "spiffe://example.org/ns/test/client";

/// Two authorities, and a certificate of the first for each side.
struct Names {
    folder: tempfile::TempDir,
    ours: Authority,
    others: Authority,
    server: Issued,
    client: Issued,
}

impl Names {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ours = Authority::new(folder.path(), "ours");
        let others = Authority::new(folder.path(), "others");
        let server = ours.issue("server", &["127.0.0.1", "localhost"]);
        let client = ours.issue("client", &[CLIENT_ID, "client.example"]);
        Self { folder, ours, others, server, client }
    }

    /// A server that asks for no certificate.
    fn server(&self) -> Tls {
        show(&self.server)
    }

    /// A server that demands one.
    fn strict(&self) -> Tls {
        self.server().authority(&self.ours.file)
    }

    /// A client that shows none.
    fn client(&self) -> Tls {
        Tls::default().authority(&self.ours.file)
    }

    fn known(&self) -> Tls {
        show(&self.client).authority(&self.ours.file)
    }
}

fn show(issued: &Issued) -> Tls {
    Tls::default().certificate(&issued.chain, &issued.key)
}

fn serve(tls: Tls) -> TcpListener {
    let options = ListenOptions { tls, ..patient_listen() };
    Tcp.listen(&"tcp+tls://127.0.0.1:0".parse().unwrap(), &options).unwrap()
}

/// What both sides make of a connection, the listener turning on this thread.
struct Outcome {
    client: Result<TcpLink, ConnectError>,
    server: Option<Result<TcpLink, AcceptError>>,
}

impl Outcome {
    /// Why the client failed.
    fn error(self) -> ConnectError {
        self.client.expect_err("the client was refused")
    }

    fn links(self) -> (TcpLink, TcpLink) {
        (self.server.expect("it was handed out").unwrap(), self.client.unwrap())
    }
}

fn meet(listener: &mut TcpListener, address: &Address, options: &ConnectOptions) -> Outcome {
    let [server_port, client_port] = [0; 2].map(|_| Tcp.open_port(&config(64 << 10)).unwrap());
    let mut connecting = match Tcp.connect(address, &client_port.gate(), options) {
        Ok(connecting) => connecting,
        Err(error) => return Outcome { client: Err(error), server: None },
    };
    let (mut server, until) = (None, Instant::now() + Duration::from_secs(20));
    loop {
        assert!(Instant::now() < until, "no outcome");
        if let Some(incoming) = listener.accept(Duration::from_millis(1)).unwrap() {
            server = Some(incoming.accept(&server_port.gate()));
        }
        if let Some(client) = connecting.poll(Duration::from_millis(1)) {
            return Outcome { client, server };
        }
    }
}

fn connect(listener: &mut TcpListener, tls: Tls) -> Outcome {
    let address = listener.address();
    meet(listener, &address, &ConnectOptions { tls, ..patient_connect() })
}

/// Why a client with `tls` failed.
fn cause(listener: &mut TcpListener, tls: Tls) -> TlsError {
    match connect(listener, tls).error() {
        ConnectError::Tls { cause, .. } => cause,
        other => panic!("another failure: {other}"),
    }
}

/// Both ends of an open connection.
fn sides(server: TcpLink, client: TcpLink) -> (Side, Side) {
    let port = || Tcp.open_port(&config(64 << 10)).unwrap();
    let (mut server, mut client) = (Side::adopt(port(), server), Side::adopt(port(), client));
    client.opened();
    server.opened();
    (server, client)
}

/// Sends `payload` and reads it at the other end.
fn carry(from: &mut Side, to: &mut Side, payload: &[u8]) {
    from.stage(payload, 7).unwrap();
    from.port.flush();
    let until = Instant::now() + LONG;
    loop {
        from.poll();
        for event in to.poll() {
            if let Came::Frame { conn, frame } = event {
                assert_eq!(&*frame, payload);
                let end = frame.end();
                to.port.release(conn, frame);
                to.port.return_credit(conn, Credit { bytes: end, arrivals: 0 });
                return;
            }
        }
        assert!(Instant::now() < until, "the frame did not come");
    }
}

fn negotiated(link: &TcpLink) -> &Negotiated {
    &link.negotiated
}

#[test]
fn both_sides_know_each_other_and_a_session_is_resumed() {
    let names = Names::new();
    let mut listener = serve(names.strict());
    let tls = names.known();
    for is_resumed in [false, true] {
        let (server, client) = connect(&mut listener, tls.clone()).links();
        let (at_server, at_client) = (&negotiated(&server).secured, &negotiated(&client).secured);
        let [at_server, at_client] = [at_server, at_client].map(|secured| secured.clone().unwrap());
        assert!(at_server.suite.starts_with("TLS13_"), "{}", at_server.suite);
        assert_eq!((at_server.resumed, at_client.resumed), (is_resumed, is_resumed));
        let peer = at_server.peer.expect("the client showed one");
        assert_eq!((peer.spiffe.as_deref(), peer.subject.as_str()), (Some(CLIENT_ID), "O=gimmal,CN=client"));
        assert_eq!(peer.names, ["client.example"]);
        assert_eq!(at_client.peer.unwrap().subject, "O=gimmal,CN=server");
        assert!(negotiated(&client).to_string().contains("TLS 1.3, TLS13_"));
        let (mut server, mut client) = sides(server, client);
        for bytes in [1, 64, 4000, 15_000] {
            let payload: Vec<u8> = (0..bytes).map(|at: u32| at as u8).collect();
            carry(&mut client, &mut server, &payload);
            carry(&mut server, &mut client, &payload);
        }
    }
}

/// The causes that the guide lists, each by its own error.
#[test]
fn each_wrong_certificate_has_an_error_of_its_own() {
    let names = Names::new();
    let expired = names.ours.issue_until("expired", &["127.0.0.1"], 2000);
    let foreign = names.others.issue("foreign", &["127.0.0.1"]);
    let elsewhere = names.ours.issue("elsewhere", &["elsewhere.example"]);
    // Servers' certificates.
    assert_eq!(cause(&mut serve(show(&expired)), names.client()), TlsError::Expired);
    assert_eq!(cause(&mut serve(show(&foreign)), names.client()), TlsError::UnknownAuthority);
    let wrong = cause(&mut serve(show(&elsewhere)), names.client());
    let TlsError::WrongName { wanted, has } = &wrong else { panic!("{wrong}") };
    assert!(wanted == "127.0.0.1" && has.contains("elsewhere.example"), "{wrong}");
    let named = names.client().server_name("elsewhere.example");
    connect(&mut serve(show(&elsewhere)), named).links();
    // Clients' certificates.
    let mut strict = serve(names.strict());
    assert_eq!(cause(&mut strict, names.client()), TlsError::CertificateNeeded);
    for issued in [&expired, &foreign] {
        let refused = cause(&mut strict, show(issued).authority(&names.ours.file));
        assert!(matches!(refused, TlsError::Refused { .. }), "{refused}");
    }
    assert_eq!(strict.rejections().count_of(RejectReason::Tls), 3);
    connect(&mut strict, names.known()).links();
    // Files.
    let missing =
        ListenOptions { tls: Tls::default().certificate("/nowhere", "/nowhere"), ..Default::default() };
    let address: Address = "tcp+tls://127.0.0.1:0".parse().unwrap();
    let refused = Tcp.listen(&address, &missing).unwrap_err();
    assert!(matches!(refused, ListenError::Tls { cause: TlsError::File { .. }, .. }), "{refused}");
    let refused = Tcp.listen(&address, &patient_listen()).unwrap_err();
    assert!(matches!(refused, ListenError::Tls { cause: TlsError::Incomplete { .. }, .. }), "{refused}");
    let crossed = Tls::default().certificate(&names.server.chain, &names.client.key);
    let refused = Tcp.listen(&address, &ListenOptions { tls: crossed, ..Default::default() }).unwrap_err();
    assert!(refused.to_string().contains("is not the key of"), "{refused}");
}

#[test]
fn only_allowed_identities_get_in_and_a_server_may_be_known_by_its_own() {
    let names = Names::new();
    let mut listener = serve(names.strict().allow(CLIENT_ID));
    connect(&mut listener, names.known()).links();
    let other = names.ours.issue("other", &["spiffe://example.org/ns/test/client/2"]);
    let error = connect(&mut listener, show(&other).authority(&names.ours.file)).error();
    assert!(
        matches!(error, ConnectError::Rejected { reason: RejectReason::IdentityNotAllowed, .. }),
        "{error}"
    );
    assert_eq!(listener.rejections().last(), Some(RejectReason::IdentityNotAllowed));
    // A server whose certificate has no name of its host.
    let id = "spiffe://example.org/ns/test/server";
    let workload = names.ours.issue("workload", &[id]);
    let mut listener = serve(show(&workload));
    connect(&mut listener, names.client().allow(id)).links();
    let refused = cause(&mut listener, names.client().allow("spiffe://example.org/ns/test/another"));
    assert_eq!(refused, TlsError::NotAllowed { identity: id.to_owned() });
    let foreign = names.others.issue("foreign", &[id]);
    let refused = cause(&mut serve(show(&foreign)), names.client().allow(id));
    assert_eq!(refused, TlsError::UnknownAuthority);
}

#[test]
fn plain_peers_are_told_on_either_side() {
    let names = Names::new();
    let mut secure = serve(names.server());
    let Address::Tcp { host, port, .. } = secure.address() else { panic!() };
    let plain = Address::Tcp { host, port, tls: false };
    let error = meet(&mut secure, &plain, &patient_connect()).error();
    assert!(matches!(error, ConnectError::Rejected { reason: RejectReason::TlsNeeded, .. }), "{error}");
    let mut open = listen(&patient_listen());
    let Address::Tcp { host, port, .. } = open.address() else { panic!() };
    let options = ConnectOptions { tls: names.client(), ..patient_connect() };
    let error = meet(&mut open, &Address::Tcp { host, port, tls: true }, &options).error();
    assert!(matches!(error, ConnectError::Tls { cause: TlsError::Plain, .. }), "{error}");
}

#[test]
fn the_shared_key_is_proved_inside_tls() {
    let names = Names::new();
    let key = |byte: u8| Key::new(&[byte; 32]).unwrap();
    let options = ListenOptions { tls: names.server(), keys: vec![key(1)], ..patient_listen() };
    let mut listener = Tcp.listen(&"tcp+tls://127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = listener.address();
    let mut with = |key| {
        meet(&mut listener, &address, &ConnectOptions { tls: names.client(), key, ..patient_connect() })
    };
    let (server, _) = with(Some(key(1))).links();
    assert!(negotiated(&server).authenticated);
    for (other, reason) in [(None, RejectReason::KeyNeeded), (Some(key(2)), RejectReason::Authentication)] {
        let error = with(other).error();
        assert!(matches!(&error, ConnectError::Rejected { reason: told, .. } if *told == reason), "{error}");
    }
}

/// New connections use the files that are there; established ones stay, and files that are of no use change nothing.
#[test]
fn files_that_change_are_read_again() {
    let names = Names::new();
    let mut listener = serve(names.server());
    let serial = |link: &TcpLink| negotiated(link).secured.clone().unwrap().peer.unwrap().names;
    let (server, client) = connect(&mut listener, names.client()).links();
    assert_eq!(serial(&client), ["localhost"]);
    let (mut server, mut client) = sides(server, client);
    let _ = names.ours.issue("server", &["127.0.0.1", "second.example"]);
    let (_, second) = connect(&mut listener, names.client()).links();
    assert_eq!(serial(&second), ["second.example"]);
    std::fs::write(&names.server.key, "no key").unwrap();
    let (_, third) = connect(&mut listener, names.client()).links();
    assert_eq!(serial(&third), ["second.example"]);
    carry(&mut client, &mut server, b"as before");
    let _ = names.ours.issue("server", &["127.0.0.1", "fourth.example"]);
    let (_, fourth) = connect(&mut listener, names.client()).links();
    assert_eq!(serial(&fourth), ["fourth.example"]);
    drop(names.folder);
}

/// Copies the bytes that go through it, as a host on the way can.
fn relay(to: &Address) -> (Address, Arc<Mutex<Vec<u8>>>) {
    let Address::Tcp { host, port, tls } = to.clone() else { panic!() };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp { host: host.clone(), port: listener.local_addr().unwrap().port(), tls };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let copy = |mut from: TcpStream, mut to: TcpStream, seen: Arc<Mutex<Vec<u8>>>| {
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                seen.lock().unwrap().extend_from_slice(&bytes[..count]);
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
        })
    };
    let shared = Arc::clone(&seen);
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect((host.as_str(), port)).unwrap();
        for stream in [&near, &far] {
            stream.set_nodelay(true).unwrap();
        }
        let back = copy(far.try_clone().unwrap(), near.try_clone().unwrap(), Arc::clone(&shared));
        let forth = copy(near, far, shared);
        let _ = (back.join(), forth.join());
    });
    (address, seen)
}

/// No 16 bytes of a payload are seen on the way, and without TLS they are.
#[test]
fn nobody_on_the_way_sees_a_payload() {
    let names = Names::new();
    let payload: Vec<u8> =
        (0..4096_u32).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    for is_secret in [true, false] {
        let mut listener = if is_secret { serve(names.server()) } else { listen(&patient_listen()) };
        let (address, seen) = relay(&listener.address());
        let options = ConnectOptions { tls: names.client(), ..patient_connect() };
        let (server, client) = meet(&mut listener, &address, &options).links();
        let (mut server, mut client) = sides(server, client);
        carry(&mut client, &mut server, &payload[..15_000]);
        let seen = seen.lock().unwrap();
        let is_seen = payload[..15_000]
            .as_chunks::<16>()
            .0
            .iter()
            .filter(|window| seen.windows(16).any(|bytes| bytes == *window))
            .count();
        assert_eq!(is_seen == 0, is_secret, "{is_seen} windows seen");
    }
}

/// A record that was changed on the way ends the connection, and none of it is handed out.
#[test]
fn a_changed_record_ends_the_connection() {
    let names = Names::new();
    let mut listener = serve(names.server());
    let (server, client) = connect(&mut listener, names.client()).links();
    let (mut server, mut client) = sides(server, client);
    carry(&mut client, &mut server, b"before");
    let live = client.port.table.open(client.conn).unwrap().0;
    let record = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
    rustix::net::send(live.wire.socket(), &record, rustix::net::SendFlags::NOSIGNAL).unwrap();
    assert_eq!(server.closed(), CloseReason::PeerGone { how: "its TLS failed" });
}

/// rustls allocates for each record that it seals or opens; nothing else does.
#[test]
fn a_record_costs_one_allocation_at_each_end() {
    let names = Names::new();
    let mut listener = serve(names.server());
    let (server, client) = connect(&mut listener, names.client()).links();
    let (mut server, mut client) = sides(server, client);
    for _ in 0..100 {
        carry(&mut client, &mut server, &[1; 64]);
        carry(&mut server, &mut client, &[1; 64]);
    }
    let mut sent = 0;
    let sealed = allocation_counter::measure(|| {
        for _ in 0..100 {
            client.stage(&[1; 64], 7).unwrap();
            client.port.flush();
            sent += 1;
        }
    });
    let look = |side: &mut Side, frames: u32| {
        let (mut taken, until) = (0, Instant::now() + LONG);
        while taken < frames {
            assert!(Instant::now() < until, "{taken} frames");
            if let Look::Run(mut run) = side.port.next_run(Limit::Frames(64)) {
                while run.next_frame().is_some() {
                    taken += 1;
                }
                side.port.end_run(&mut run, false);
            }
        }
    };
    let opened = allocation_counter::measure(|| look(&mut server, sent));
    println!("sealed: {} allocations for 100 records; opened: {}", sealed.count_total, opened.count_total);
    assert!(sealed.count_total <= 100 && opened.count_total <= 101, "{sealed:?} {opened:?}");
}

/// `openssl`, or a test that is skipped without it.
fn openssl(arguments: &[&str]) -> Option<Child> {
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            println!("SKIP openssl cannot be run: {error}");
            None
        }
    }
}

/// Another implementation completes the handshake with our listener, certificate for certificate, and is told by name that it
/// does not speak gimmal.
#[test]
fn openssl_as_a_client_shakes_hands() {
    let names = Names::new();
    let mut listener = serve(names.strict());
    let Address::Tcp { port, .. } = listener.address() else { panic!() };
    let (connect, text) = (format!("127.0.0.1:{port}"), |path: &std::path::Path| path.display().to_string());
    let (roots, chain, key) = (text(&names.ours.file), text(&names.client.chain), text(&names.client.key));
    let arguments = [
        "s_client",
        "-connect",
        &connect,
        "-alpn",
        "gimmal/1",
        "-CAfile",
        &roots,
        "-cert",
        &chain,
        "-key",
        &key,
        "-verify_return_error",
        "-tls1_3",
    ];
    let Some(mut client) = openssl(&arguments) else { return };
    client.stdin.as_mut().unwrap().write_all(&[b'x'; HELLO_BYTES]).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while listener.rejections().count() == 0 {
        assert!(Instant::now() < until, "it did not come");
        assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none());
    }
    // Inside TLS it was heard, and it was no hello.
    assert_eq!(listener.rejections().last(), Some(RejectReason::NotOurs));
    let said = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    for line in ["Verify return code: 0 (ok)", "ALPN protocol: gimmal/1", "New, TLSv1.3"] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

/// Our client completes the handshake with another implementation, shows it a certificate, and finds that it does not speak gimmal.
#[test]
fn openssl_as_a_server_shakes_hands() {
    let names = Names::new();
    let text = |path: &std::path::Path| path.display().to_string();
    let (roots, chain, key) = (text(&names.ours.file), text(&names.server.chain), text(&names.server.key));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = free.to_string();
    let arguments = [
        "s_server",
        "-accept",
        &port,
        "-alpn",
        "gimmal/1",
        "-cert",
        &chain,
        "-key",
        &key,
        "-CAfile",
        &roots,
        "-Verify",
        "2",
        "-verify_return_error",
        "-tls1_3",
        "-naccept",
        "1",
    ];
    let Some(mut server) = openssl(&arguments) else { return };
    let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: free, tls: true };
    let gate = Tcp.open_port(&config(4096)).unwrap().gate();
    let options = ConnectOptions { tls: names.known(), ..patient_connect() };
    let until = Instant::now() + Duration::from_secs(20);
    let error = loop {
        assert!(Instant::now() < until, "no outcome");
        match Tcp.connect(&address, &gate, &options) {
            // It does not listen yet.
            Err(ConnectError::NobodyListens { .. }) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => break error,
            Ok(mut connecting) => {
                // What it is told to say, which is no hello.
                server.stdin.as_mut().unwrap().write_all(&[b'y'; HELLO_BYTES]).unwrap();
                server.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
                match connecting.poll(LONG).expect("an outcome") {
                    Err(ConnectError::NobodyListens { .. }) => {}
                    outcome => break outcome.unwrap_err(),
                }
            }
        }
    };
    server.kill().unwrap();
    let said = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(matches!(error, ConnectError::Foreign { reason: RejectReason::NotOurs, .. }), "{error}: {said}");
}

/// Without the names of a server's certificate there is nothing to check.
#[test]
fn a_host_that_no_certificate_can_name_is_refused() {
    let names = Names::new();
    let gate = Tcp.open_port(&config(4096)).unwrap().gate();
    let mut listener = serve(names.server());
    let Address::Tcp { port, .. } = listener.address() else { panic!() };
    let address = Address::Tcp { host: "127.0.0.1".to_owned(), port, tls: true };
    let options = ConnectOptions { tls: names.client().server_name("not a name"), ..patient_connect() };
    let outcome = Tcp.connect(&address, &gate, &options).map(drop);
    let is_named = matches!(&outcome, Err(ConnectError::Tls { cause: TlsError::Other { .. }, .. }));
    assert!(is_named || outcome.is_ok(), "{outcome:?}");
    let error = meet(&mut listener, &address, &options).error();
    assert!(error.to_string().contains("no name of a server"), "{error}");
}
