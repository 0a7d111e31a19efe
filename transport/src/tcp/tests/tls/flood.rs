//! A peer whose records hold nothing.

use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, RootCertStore,
    SupportedCipherSuite,
    crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage},
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::*;
use crate::{Wait as _, tcp::tests::idle::lives};

/// A client that seals its records itself.
struct Stranger {
    socket: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    number: u64,
}

impl Stranger {
    /// Shakes hands with `listener`, which turns on this thread.
    fn new(listener: &mut TcpListener, names: &Names) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&names.ours.file).unwrap()).unwrap();
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"gimmal/1".to_vec()];
        config.enable_secret_extraction = true;
        let name = "127.0.0.1".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = dial(listener);
        socket.set_nonblocking(true).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while client.is_handshaking() || client.wants_write() {
            assert!(Instant::now() < until, "no handshake");
            let _ = client.write_tls(&mut socket);
            assert!(listener.accept(Duration::from_millis(1)).unwrap().is_none());
            if client.read_tls(&mut socket).is_ok() {
                client.process_new_packets().unwrap();
            }
        }
        socket.set_nonblocking(false).unwrap();
        let Some(SupportedCipherSuite::Tls13(suite)) = client.negotiated_cipher_suite() else { panic!() };
        let (number, secrets) = client.dangerous_extract_secrets().unwrap().tx;
        let encrypter = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => suite.aead_alg.encrypter(key, iv),
            _ => panic!("a suite that is not known"),
        };
        Self { socket, encrypter, number }
    }

    /// Says `bytes` in a record that is filled up with so much padding. Returns the record's bytes.
    fn say(&mut self, bytes: &[u8], padding: usize) -> usize {
        // Padding is zeros behind the kind: here all of it is said to be content of kind zero.
        let padded = [bytes, &[23], &vec![0; padding]].concat();
        let message = OutboundPlainMessage {
            typ: ContentType::from(0),
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(&padded),
        };
        let record = self.encrypter.encrypt(message, self.number).unwrap().encode();
        self.number += 1;
        self.socket.write_all(&record).unwrap();
        record.len()
    }
}

/// Bytes in the socket of the connection of `side`.
fn queued(side: &Side) -> usize {
    let live = lives(side).next().expect("it lives");
    usize::try_from(rustix::io::ioctl_fionread(live.wire.socket()).unwrap()).unwrap()
}

/// One look opens what one call received, however little that says, and nobody sleeps before the rest was looked at.
#[test]
fn a_look_opens_a_bounded_part_of_records_that_hold_nothing() {
    let names = Names::new();
    let mut listener = serve(names.server());
    let port = Tcp.open_port(&config(64 << 10)).unwrap();
    let mut stranger = Stranger::new(&mut listener, &names);
    stranger.say(&hello(&config(64 << 10), 1).encode(), 0);
    let accepted = listener.accept(LONG).unwrap().expect("a hello");
    let accepted = accepted.accept(&port.gate()).unwrap();
    let mut side = Side::adopt(port, accepted);
    stranger.say(&Record::Grant.encode(), 0);
    side.opened();
    // Less than the window of a socket that nobody reads.
    let total: usize = (0..7).map(|_| stranger.say(&[], 8000)).sum();
    let until = Instant::now() + Duration::from_secs(30);
    while queued(&side) < total {
        assert!(Instant::now() < until, "{} of {total} bytes came", queued(&side));
    }
    let mut looks = 0;
    while queued(&side) == total {
        assert!(matches!(side.port.next_run(Limit::Frames(64)), Look::Nothing | Look::Events));
        looks += 1;
        assert!(looks < 100, "no look receives");
    }
    assert_eq!(queued(&side), total - (36 << 10), "what is left after the first look");
    assert!(!side.port.arm(), "there is more");
    stranger.say(&frame(b"behind", 3), 0);
    loop {
        if let Some(Came::Frame { frame, .. }) = side.wait().pop() {
            assert_eq!(&*frame, b"behind");
            break;
        }
    }
}
