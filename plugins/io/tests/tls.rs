//! TLS over a stream: rustls on both ends.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::{bytes, roomy};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

/// Both ends, with a certificate made for them.
fn ends() -> (TlsConnector, TlsAcceptor) {
    let made = rcgen::generate_simple_self_signed(["gimmal".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    (TlsConnector::from(Arc::new(client)), TlsAcceptor::from(Arc::new(server)))
}

/// Writes so many bytes and reads as many, both at once.
async fn exchange(stream: impl AsyncRead + AsyncWrite, total: usize) {
    let (mut recv, mut send) = tokio::io::split(stream);
    let writing = async {
        let mut at = 0;
        while at < total {
            let piece = bytes(at, (60_000 + at % 10_000).min(total - at));
            send.write_all(piece).await.unwrap();
            at += piece.len();
        }
        send.shutdown().await.unwrap();
    };
    let reading = async {
        let (mut at, mut read) = (0, vec![0; 64 << 10]);
        loop {
            let len = recv.read(&mut read).await.unwrap();
            if len == 0 {
                break;
            }
            assert!(read[..len] == *bytes(at, len), "other bytes behind {at}");
            at += len;
        }
        assert_eq!(at, total);
    };
    tokio::join!(writing, reading);
}

#[test]
fn rustls_moves_every_byte_both_ways() {
    let mebibytes = std::env::var("GIMMAL_TLS_MIB").map_or(64, |mebibytes| mebibytes.parse().unwrap());
    common::each(&roomy(64), |mut fixture| async move {
        let (connector, acceptor) = ends();
        let (opened, accepted) = fixture.pair().await;
        let connecting = connector.connect("gimmal".try_into().unwrap(), opened);
        let (opened, accepted) = tokio::join!(connecting, acceptor.accept(accepted));
        let (opened, accepted) = (opened.unwrap(), accepted.unwrap());
        let other = tokio::spawn(exchange(accepted, mebibytes << 20));
        exchange(opened, mebibytes << 20).await;
        other.await.unwrap();
        fixture.settled().await;
    });
}
