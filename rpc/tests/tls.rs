//! `tcp+tls://`: a handler knows who calls by the certificate; certificates change while calls run.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use common::{ProbeClient, config, until};
use gimmal_rpc::{
    Certificate, Client, ConnectError, Guarded, Layered, Server, Tls,
    engine::{OpenError, transport},
    layer::{Authorize, WithToken},
};
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
            let client = ProbeClient::new(connect());
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(client.echo("a".into()).wait().unwrap(), "a");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let client = ProbeClient::new(connect());
                assert_eq!(client.echo("b".into()).wait().unwrap(), "b");
                connects.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..5 {
            let _ = renew();
            let [calls_before, connects_before] =
                [&calls, &connects].map(|count| count.load(Ordering::Relaxed));
            until("calls and clients go on", || {
                calls.load(Ordering::Relaxed) > calls_before + 2
                    && connects.load(Ordering::Relaxed) > connects_before + 2
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.rejected(), 0);
    let _ = server.shutdown(Duration::ZERO);
}
