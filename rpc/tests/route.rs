//! `gimmal://host:port`: the best way to a server, and never to another one.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{BufRead, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use common::{ProbeClient, config, until};
use gimmal_rpc::{
    Balanced, Client, Config, ConnectError, Dns, LocalClient, Reconnect, Resolver, ServeError, Server, Tls,
    engine::{
        OpenError,
        transport::{self, Address, RejectReason},
    },
};
use gimmal_testkit::skip;
use gimmal_transport::testing::Authority;

extern crate gimmal_rpc as gimmal;

/// A server of `host` at a free port, and its URL.
fn listen(host: &str, server: gimmal_rpc::ServerBuilder) -> (Server, String) {
    let server = server.service(common::serve_probe(common::Prober::default()));
    let server = server.listen(&format!("gimmal://{host}:0")).unwrap();
    let port = tcp_port(&server);
    let host = if host == "*" { "127.0.0.1" } else { host };
    (server, format!("gimmal://{host}:{port}"))
}

fn tcp_port(server: &Server) -> u16 {
    let port = |address| if let Address::Tcp { port, .. } = address { Some(port) } else { None };
    server.addresses().into_iter().find_map(port).unwrap()
}

fn connect(url: &str) -> Result<Client, ConnectError> {
    Client::builder().config(config()).connect(url)
}

/// The provider, and why it was chosen, of a client whose calls work.
fn chosen(client: &Client) -> (&'static str, String) {
    assert_eq!(ProbeClient::new(client.clone()).echo("x".into()).wait().unwrap(), "x");
    let negotiated = client.negotiated().unwrap();
    assert!(negotiated.to_string().contains("chosen               "), "{negotiated}");
    (negotiated.provider, negotiated.chosen.clone().unwrap())
}

#[test]
fn a_server_on_this_host_is_reached_through_shared_memory() {
    for host in ["127.0.0.1", "*", "localhost"] {
        let (server, url) = listen(host, Server::builder().config(config()));
        let (provider, why) = chosen(&connect(&url).unwrap());
        assert!(provider == "shm" && why.ends_with(&format!("for {url}")), "{host}: {provider}, {why}");
        assert_eq!(chosen(&Client::connect(&url).unwrap()).0, "shm");
        assert_eq!(chosen(&Client::connect_lazy(&url).unwrap_or_else(|error| panic!("{error}"))).0, "shm");
        let local = LocalClient::connect(&url).unwrap();
        assert_eq!(local.negotiated().unwrap().provider, "shm");
        // Without a device one way is left out, with the reason.
        if !std::path::Path::new("/sys/class/infiniband").exists() {
            assert!(
                matches!(server.left_out(), [why] if why.starts_with("rdma: ")),
                "{:?}",
                server.left_out()
            );
        }
    }
}

#[test]
fn resolved_addresses_are_reached_in_the_best_way() {
    let (server, _) = listen("localhost", Server::builder().config(config()));
    let dns = Dns { url: format!("gimmal://localhost:{}", tcp_port(&server)) };
    assert!(dns.resolve().unwrap().iter().all(|url| url.starts_with("gimmal://")));
    let balanced = Balanced::builder().config(config()).connect(dns).unwrap();
    assert_eq!(ProbeClient::new(balanced).echo("x".into()).wait().unwrap(), "x");
}

/// A plain server at the port is reached over TCP, and neither is one that listens beside it in shared memory under another address
/// or of another network namespace.
#[test]
fn another_server_of_the_same_port_is_not_mistaken_for_it() {
    let plain = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    let plain = plain.listen("tcp://127.0.0.1:0").unwrap();
    let port = tcp_port(&plain);
    let other = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    let other = other.listen(&format!("gimmal://127.0.0.2:{port}")).unwrap();
    let strange = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    let strange = strange.listen(&format!("shm://gimmal-1-127.0.0.1:{port}")).unwrap();
    let (provider, why) = chosen(&connect(&format!("gimmal://127.0.0.1:{port}")).unwrap());
    assert!(provider == "tcp" && why.contains("not by shm: "), "{provider}, {why}");
    assert_eq!(chosen(&connect(&format!("gimmal://127.0.0.2:{port}")).unwrap()).0, "shm");
    assert_eq!((plain.accepted(), other.accepted(), strange.accepted()), (1, 1, 0));
}

/// Two of one address cannot be.
#[test]
fn an_address_in_use_is_an_error_and_no_lack() {
    let (_server, url) = listen("127.0.0.1", Server::builder().config(config()));
    for url in [url.clone(), format!("{url}?need=shm")] {
        let again =
            Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
        let error = again.listen(&url).unwrap_err();
        assert!(matches!(&error, ServeError::Listen(transport::ListenError::InUse { .. })), "{url}: {error}");
    }
}

#[test]
fn what_is_needed_is_had_or_refused() {
    let (server, url) = listen("127.0.0.1", Server::builder().config(config()));
    assert_eq!(chosen(&connect(&format!("{url}?need=shm")).unwrap()).0, "shm");
    for need in ["rdma", "encrypted"] {
        let error = connect(&format!("{url}?need={need}")).unwrap_err();
        let ConnectError::NoWay { why, .. } = &error else { panic!("{error:?}") };
        assert!(why.contains("shm: "), "{why}");
    }
    drop(server);
    // TEST-NET-1 is nobody's.
    let error = connect("gimmal://192.0.2.1:7471?need=shm").unwrap_err();
    assert!(matches!(&error, ConnectError::NoWay { why, .. } if why.contains("another host")), "{error}");
    let error = connect(&url).unwrap_err();
    assert!(matches!(&error, ConnectError::NoWay { why, .. } if why.contains("tcp: no server")), "{error}");
    // A server without a way that it needs does not begin.
    let server = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    if !std::path::Path::new("/sys/class/infiniband").exists() {
        let error = server.listen("gimmal://127.0.0.1:7471?need=rdma").unwrap_err();
        assert!(matches!(&error, ServeError::NoWay { why, .. } if why.contains("rdma: ")), "{error}");
    }
}

/// What the server itself says is the answer, and is not asked for again elsewhere.
#[test]
fn a_refusal_of_the_server_is_the_answer() {
    let refusal = |_: &transport::Hello, _: &str| Err(RejectReason::Application { code: 7 }.into());
    let (server, url) = listen("127.0.0.1", Server::builder().config(config()).admit(refusal));
    match connect(&url).unwrap_err() {
        ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { reason, .. })) => {
            assert_eq!(reason, RejectReason::Application { code: 7 });
        }
        other => panic!("{other}"),
    }
    assert_eq!(server.rejected(), 1);
}

/// A demand for certificates is met by TLS alone, at both sides.
#[test]
fn certificates_are_kept_by_tls_and_nothing_else_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let issued = authority.issue("server", &["127.0.0.1"]);
    let tls = Tls::default().certificate(&issued.chain, &issued.key);
    let (server, url) = listen("127.0.0.1", Server::builder().config(config()).tls(tls));
    assert!(matches!(&server.addresses()[..], [Address::Tcp { tls: true, .. }]));
    assert_eq!(server.left_out().len(), 2);
    let believing = || Client::builder().config(config()).tls(Tls::default().authority(&authority.file));
    let client = believing().connect(&url).unwrap();
    assert!(chosen(&client).0 == "tcp" && client.negotiated().unwrap().secured.is_some());
    let client = believing().connect(&format!("{url}?need=encrypted")).unwrap();
    assert!(client.negotiated().unwrap().secured.is_some());
    let error = believing().connect(&format!("{url}?need=shm")).unwrap_err();
    assert!(matches!(&error, ConnectError::NoWay { why, .. } if why.contains("certificate")), "{error}");
    // One that shows none has none of its own way: it is told.
    match connect(&url).unwrap_err() {
        ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { reason, .. })) => {
            assert_eq!(reason, RejectReason::TlsNeeded);
        }
        other => panic!("{other}"),
    }
    // And a client that demands one is not content with a server in shared memory.
    let (_plain, url) = listen("127.0.0.1", Server::builder().config(config()));
    assert!(matches!(
        believing().connect(&url).unwrap_err(),
        ConnectError::Open(_) | ConnectError::NoWay { .. }
    ));
}

/// Each connection is made by what is best then.
#[test]
fn reconnects_choose_anew() {
    let quick = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    let quick = Config { reconnect: Some(quick), ..config() };
    let serve = || Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    let (server, url) = listen("127.0.0.1", Server::builder().config(config()));
    let client = Client::builder().config(quick).connect(&url).unwrap();
    let mut reconnects = 0;
    let mut next = |server: Server, listen: &dyn Fn() -> Server| {
        drop(server);
        let server = listen();
        reconnects += 1;
        until("it is connected again", || client.reconnects() == reconnects && client.is_ready());
        (server, chosen(&client).0)
    };
    let plain = url.replacen("gimmal", "tcp", 1);
    let (server, provider) = next(server, &|| serve().listen(&plain).unwrap());
    assert_eq!(provider, "tcp");
    let (_server, provider) = next(server, &|| serve().listen(&url).unwrap());
    assert_eq!(provider, "shm");
}

const ROLE: &str = "GIMMAL_ROUTE_ROLE";
const URL: &str = "GIMMAL_ROUTE_URL";

/// Killed when the test ends, whatever its end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What this program does in another place: serves until its input ends.
#[test]
#[ignore = "the other process of a test"]
fn child() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let server = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    let server = server.listen(&std::env::var(URL).unwrap()).unwrap();
    println!("listening {:?}", server.addresses());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Two hosts' worth of network on one: the port, the address and the runtime folder are the same, the network is not.
#[test]
fn a_server_of_another_network_namespace_is_not_mistaken_for_it() {
    let inside = ["-rn", "sh", "-c", "ip link set lo up; exec \"$0\" \"$@\""];
    let can = Command::new("unshare").args(inside).arg("true").output();
    if !can.is_ok_and(|tried| tried.status.success()) {
        return skip("no network namespace can be made");
    }
    let plain = Server::builder().service(common::serve_probe(common::Prober::default())).config(config());
    let plain = plain.listen("tcp://127.0.0.1:0").unwrap();
    let url = format!("gimmal://127.0.0.1:{}", tcp_port(&plain));
    let mut command = Command::new("unshare");
    command.args(inside).arg(std::env::current_exe().unwrap()).args([
        "--ignored",
        "--exact",
        "child",
        "--nocapture",
    ]);
    command.env(ROLE, "server").env(URL, &url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = Process(command.spawn().unwrap());
    let lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find(|line| line.contains("listening"));
    assert!(said.is_some_and(|said| said.contains("Shm")), "it serves shared memory too");
    assert_eq!(chosen(&connect(&url).unwrap()).0, "tcp");
    assert_eq!(plain.accepted(), 1);
}
