//! The conformance suite on TCP under TLS, each side with a certificate, over the loopback interface.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
};

use gimmal_testkit::conformance::{Knock, RealTime, refusal, run_some};
use gimmal_transport::{
    Address, ConnectError, ConnectOptions, ListenError, ListenOptions, PortConfig, PortError, Provider, Tls,
    tcp::{Tcp, TcpConnecting, TcpGate, TcpLink, TcpListener, TcpPort},
    testing::Authority,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Cases of the suite that apply to TLS: those of TCP.
const PASSED: usize = 124;

/// TCP whose sides have certificates.
#[derive(Clone, Debug)]
struct Secure {
    client: Tls,
    server: Tls,
}

impl Provider for Secure {
    type Port = TcpPort;
    type Gate = TcpGate;
    type Link = TcpLink;
    type Listener = TcpListener;
    type Connecting = TcpConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<TcpPort, PortError> {
        Tcp.open_port(config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<TcpListener, ListenError> {
        Tcp.listen(address, &ListenOptions { tls: self.server.clone(), ..options.clone() })
    }

    fn connect(
        &self,
        address: &Address,
        gate: &TcpGate,
        options: &ConnectOptions,
    ) -> Result<TcpConnecting, ConnectError> {
        Tcp.connect(address, gate, &ConnectOptions { tls: self.client.clone(), ..options.clone() })
    }
}

/// A client of TLS that says `private_data` to the listener behind an address, and reads the answer as a reject.
fn knock(config: &Arc<ClientConfig>, address: &Address, private_data: &[u8]) -> Option<Knock> {
    let Address::Tcp { host, port, .. } = address else { return None };
    let mut socket = TcpStream::connect((host.as_str(), *port)).ok()?;
    socket.set_nonblocking(true).ok()?;
    let mut client = ClientConnection::new(Arc::clone(config), host.clone().try_into().ok()?).ok()?;
    client.writer().write_all(private_data).ok()?;
    let (address, mut answer) = (address.to_string(), Vec::new());
    Some(Box::new(move || {
        while client.wants_write() && client.write_tls(&mut socket).is_ok() {}
        let is_open = match client.read_tls(&mut socket) {
            Ok(bytes) => bytes > 0 && client.process_new_packets().is_ok(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        let _ = client.reader().read_to_end(&mut answer);
        (!is_open).then(|| refusal(&address, &answer))
    }))
}

#[test]
fn tcp_under_tls_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let side = |name: &str| {
        let issued = authority.issue(name, &["127.0.0.1"]);
        Tls::default().certificate(issued.chain, issued.key).authority(&authority.file)
    };
    let issued = authority.issue("knocker", &["127.0.0.1"]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&authority.file).unwrap()).unwrap();
    let chain = CertificateDer::pem_file_iter(issued.chain).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(issued.key).unwrap();
    let mut config =
        ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"gimmal/1".to_vec()];
    let config = Arc::new(config);
    let secure = Secure { client: side("client"), server: side("server") };
    let address = |_| Address::Tcp { host: "127.0.0.1".to_owned(), port: 0, tls: true };
    let wrong = "rdma://127.0.0.1:1".parse().unwrap();
    let mut harness = RealTime::new("tcp+tls", secure, address, wrong)
        .with_knocker(move |address, bytes| knock(&config, address, bytes));
    let filter = std::env::var("GIMMAL_CASES").unwrap_or_default();
    let report = run_some(&mut harness, &filter, |case| eprintln!("{case}"));
    if filter.is_empty() { report.expect(PASSED) } else { println!("{report}") }
}
