//! `tcp+tls://`: a handler knows who calls by the certificate; certificates change while calls run.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{ProbeClient, config, until};
use gimmal_rpc::{
    Certificate, Client, ConnectError, Guarded, Instant, Layered, Server, Tls,
    engine::{Idle, OpenError, Placement, transport},
    layer::{Authorize, WithToken},
};
use gimmal_testkit::Over;
use gimmal_transport::testing::{Authority, Issued};

const CALLER: &str = "spiffe://example.org/caller";

fn show(issued: &Issued, authority: &Path) -> Tls {
    Tls::default().certificate(&issued.chain, &issued.key).authority(authority)
}

fn listen(service: impl gimmal_rpc::Service, tls: Tls) -> (Server, String) {
    let server = Server::builder().service(service).config(config()).tls(tls);
    let server = server.listen(&common::address("tcp+tls", "tls")).unwrap();
    let url = server.address().to_string();
    assert!(url.starts_with("tcp+tls://127.0.0.1:"), "{url}");
    (server, url)
}

#[test]
fn a_handler_knows_its_caller_by_the_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let server = authority.issue("server", &["127.0.0.1"]);
    let client = authority.issue("client", &[CALLER]);
    let (seen, told) = std::sync::mpsc::channel::<Option<Certificate>>();
    let layer = Authorize::by(move |cx, _| {
        seen.send(cx.peer().certificate.cloned()).unwrap();
        true
    });
    let service = Guarded::new(common::serve_probe(common::Prober::default()), layer);
    let (server, url) = listen(service, show(&server, &authority.file));
    let channel =
        Client::builder().config(config()).tls(show(&client, &authority.file)).connect(&url).unwrap();
    let negotiated = channel.negotiated().unwrap();
    assert!(negotiated.secured.is_some() && negotiated.to_string().contains("encryption           TLS 1.3"));
    let calls = ProbeClient::new(Layered::new(channel, WithToken::new("any")));
    assert_eq!(calls.fill(300_000).wait().unwrap().len(), 300_000);
    let caller = told.recv().unwrap().expect("it showed a certificate");
    assert_eq!((caller.spiffe.as_deref(), caller.subject.as_str()), (Some(CALLER), "O=gimmal,CN=client"));
    // Without one it is told so, and nothing is served.
    let bare = Tls::default().authority(&authority.file);
    match Client::builder().config(config()).tls(bare).connect(&url).unwrap_err() {
        ConnectError::Open(OpenError::Connect(transport::ConnectError::Tls { cause, .. })) => {
            assert_eq!(cause, transport::TlsError::CertificateNeeded);
        }
        other => panic!("{other}"),
    }
    until("it is counted", || server.rejected() == 1);
}

/// Both sides' certificates change again and again, while calls run and clients come and go: none of it fails.
#[test]
fn certificates_change_under_load_and_no_call_fails() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let renew = || (authority.issue("server", &["127.0.0.1"]), authority.issue("client", &[CALLER]));
    let (server, client) = renew();
    let tls = show(&server, &authority.file).allow(CALLER);
    let (server, url) = listen(common::serve_probe(common::Prober::default()), tls);
    let tls = show(&client, &authority.file);
    let connect = || Client::builder().config(config()).tls(tls.clone()).connect(&url).unwrap();
    let (is_over, calls, connects) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&is_over);
            let client = ProbeClient::new(connect());
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let _over = Over(&is_over);
            while !is_over.load(Ordering::Relaxed) {
                let client = ProbeClient::new(connect());
                assert_eq!(client.echo("b".into()).wait().unwrap(), "b");
                connects.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = Over(&is_over);
        for _ in 0..5 {
            let _ = renew();
            let [calls_before, connects_before] =
                [&calls, &connects].map(|count| count.load(Ordering::Relaxed));
            until("calls and clients go on", || {
                calls.load(Ordering::Relaxed) > calls_before + 2
                    && connects.load(Ordering::Relaxed) > connects_before + 2
            });
        }
    });
    assert_eq!(server.rejected(), 0);
    let _ = server.shutdown(Duration::ZERO);
}

/// A way to `server` that keeps all that passes, both directions together; where it begins.
fn recorded(server: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let record = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&record);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let both = [(&client, &server), (&server, &client)];
        let both = both.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
        // A message of one direction is not torn by the other: each is kept by itself, and then put behind the first.
        for (mut from, mut to) in both {
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || {
                let (mut buffer, mut all) = (vec![0; 1 << 16], Vec::new());
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    all.extend_from_slice(&buffer[..bytes]);
                    if to.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
                kept.lock().unwrap().append(&mut all);
            });
        }
    });
    (at, record)
}

/// A payload that goes both ways, as an argument and as bulk: a recorder on the way sees all of it over TCP, and under TLS not
/// 16 bytes of it.
#[test]
fn on_the_way_nothing_of_a_payload_is_seen() {
    const WINDOW: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let shown = authority.issue("server", &["127.0.0.1"]);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let payload: String = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + u8::try_from(random >> 33 & 0x3f).unwrap())
    })
    .take(300_000)
    .collect();
    for scheme in ["tcp", "tcp+tls"] {
        let server = Server::builder().service(common::serve_probe(common::Prober::default()));
        let server = server.config(config()).tls(Tls::default().certificate(&shown.chain, &shown.key));
        let server = server.listen(&format!("{scheme}://127.0.0.1:0")).unwrap();
        let place = server.address().to_string();
        let (at, record) = recorded(place.strip_prefix(&format!("{scheme}://")).unwrap().to_owned());
        let client = Client::builder().config(config()).tls(Tls::default().authority(&authority.file));
        let client = client.connect(&format!("{scheme}://{at}")).unwrap();
        let calls = ProbeClient::new(client.clone());
        let small = payload[..4096].to_owned();
        assert_eq!(calls.echo(small.clone()).wait().unwrap(), small);
        assert_eq!(calls.measure(payload.clone().into_bytes()).wait().unwrap(), payload.len() as u64);
        drop(calls);
        assert!(client.shutdown(Duration::from_secs(60)));
        let _ = server.shutdown(Duration::from_secs(60));
        // Both directions were put down once their ends had passed.
        let sent = payload.len() + small.len() * 2;
        until("the record is whole", || record.lock().unwrap().len() >= sent);
        let wanted: HashSet<&[u8]> = payload.as_bytes().windows(WINDOW).collect();
        let record = record.lock().unwrap();
        let seen: HashSet<&[u8]> = record.windows(WINDOW).filter(|window| wanted.contains(window)).collect();
        // Where a piece of bulk ends and the next begins there is a record between.
        let expected = if scheme == "tcp" { wanted.len() - wanted.len() / 100..=wanted.len() } else { 0..=0 };
        assert!(expected.contains(&seen.len()), "{scheme}: {} of {}", seen.len(), wanted.len());
    }
}

/// Round trips of 64 B under TLS and without it, in turns, on two cores of their own. The median of the differences.
#[test]
#[ignore = "needs a release build and a machine that does nothing else"]
fn a_round_trip_under_tls_takes_at_most_3_us_more() {
    const ROUNDS: usize = 9;
    const CALLS: u32 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let shown = authority.issue("server", &["127.0.0.1"]);
    let spinning = |core: usize| {
        let mut config = config();
        (config.engine.idle, config.engine.placement) = (Idle::Spin, Placement::Cores(vec![core]));
        config
    };
    // A round has its own server, whose spinning worker would take a core from the others.
    let took = |scheme: &str| {
        let server = Server::builder().service(common::serve_probe(common::Prober::default()));
        let server = server.config(spinning(0)).tls(Tls::default().certificate(&shown.chain, &shown.key));
        let server = server.listen(&format!("{scheme}://127.0.0.1:0")).unwrap();
        let client = Client::builder().config(spinning(1)).tls(Tls::default().authority(&authority.file));
        let client = client.connect_local(&server.address().to_string()).unwrap();
        let (calls, text) = (ProbeClient::new(client), "x".repeat(64));
        let call = || assert_eq!(calls.echo(text.clone()).wait().unwrap().len(), 64);
        (0..CALLS / 10).for_each(|_| call());
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        let nanoseconds = start.elapsed().as_nanos() / u128::from(CALLS);
        drop(calls);
        let _ = server.shutdown(Duration::from_secs(60));
        u64::try_from(nanoseconds).unwrap()
    };
    let mut pairs: Vec<[u64; 2]> = (0..ROUNDS).map(|_| ["tcp", "tcp+tls"].map(took)).collect();
    pairs.sort_by_key(|[plain, under_tls]| under_tls.saturating_sub(*plain));
    let [plain, under_tls] = pairs[ROUNDS / 2];
    println!("64 B, ns: {plain} over tcp, {under_tls} over tcp+tls, the median pair of {pairs:?}");
    assert!(under_tls < plain + 3000);
}
