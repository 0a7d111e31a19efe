//! Certificates on the command line: by every command that connects, by the two that listen, and what each wrong one is told.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use common::{Running, complaint, gimmal, said};
use gimmal_rpc::{Cx, Server, Tls};
use gimmal_testkit::ChildGuard;
use gimmal_transport::{
    testing::{Authority, Issued},
    tls::foreign,
};
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;

const CALLER: &str = "spiffe://example.org/caller";
const LIMIT: Duration = Duration::from_secs(60);

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Desk {
    async fn greet(&self, cx: &Cx, name: String) -> String;
}

struct Clerk;

impl Desk for Clerk {
    async fn greet(&self, _: &Cx, name: String) -> String {
        format!("hello, {name}")
    }
}

/// Two authorities, and a certificate of the first for each side.
struct Names {
    folder: TempDir,
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
        let server = ours.issue("server", &["127.0.0.1"]);
        let client = ours.issue("client", &[CALLER]);
        Self { folder, ours, others, server, client }
    }

    /// The options of a client that shows a certificate.
    fn known(&self) -> Vec<String> {
        [options(&self.client), believes(&self.ours)].concat()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn options(shown: &Issued) -> Vec<String> {
    vec!["--cert".to_owned(), text(&shown.chain), "--cert-key".to_owned(), text(&shown.key)]
}

fn believes(authority: &Authority) -> Vec<String> {
    vec!["--ca".to_owned(), text(&authority.file)]
}

fn with<'a>(arguments: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    arguments.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

/// A server at a URL of any port, and that URL with the port.
fn serve(url: &str, tls: Tls) -> (Server, String) {
    let server = Server::builder().service(serve_desk(Clerk)).tls(tls).listen(url).unwrap();
    let url = server.address().to_string();
    (server, url)
}

fn shows(issued: &Issued) -> Tls {
    Tls::default().certificate(&issued.chain, &issued.key)
}

#[test]
fn every_command_takes_certificates() {
    let names = Names::new();
    let tls = shows(&names.server).authority(&names.ours.file).allow(CALLER);
    let (_server, url) = serve("tcp+tls://127.0.0.1:0", tls);
    let known = names.known();
    assert!(
        said(&with(&["describe", &url], &known))
            .contains("async fn greet(&self, cx: &Cx, name: String) -> String")
    );
    assert_eq!(said(&with(&["health", &url], &known)), "serving\n");
    assert!(said(&with(&["top", &url, "--count", "1"], &known)).contains("1 connection\n"));
    let called = said(&[&with(&["call", &url], &known)[..], &["Desk.greet", "Ada"]].concat());
    assert_eq!(called, "\"hello, Ada\"\n");
    let examined = said(&with(&["doctor", &url], &known));
    assert!(
        examined.contains("TLS 1.3") && examined.contains("the peer is O=gimmal,CN=server"),
        "{examined}"
    );
    // Options are read from the environment, too.
    let mut program = Command::new(env!("CARGO_BIN_EXE_gimmal"));
    program.args(["health", &url]).env("GIMMAL_CA", &names.ours.file);
    program.env("GIMMAL_CERT", &names.client.chain).env("GIMMAL_CERT_KEY", &names.client.key);
    let output = program.output().unwrap();
    assert_eq!(output.stdout, b"serving\n", "{}", String::from_utf8_lossy(&output.stderr));
    // What cannot be kept is refused before anything is sent.
    let bare = url.replace("tcp+tls", "tcp");
    for command in ["health", "doctor"] {
        assert!(
            complaint(&with(&[command, &bare], &known)).contains("has no TLS; write tcp+tls://"),
            "{command}"
        );
    }
}

/// Each error is that of the guide's chapter on security, and names the option that mends it.
#[test]
fn each_wrong_certificate_is_told_what_to_do() {
    let names = Names::new();
    let ours = believes(&names.ours);
    let asks = |tls: Tls, url: &dyn Fn(&str) -> String, options: &[String]| {
        let (_server, at) = serve("tcp+tls://127.0.0.1:0", tls);
        complaint(&with(&["describe", &url(&at)], options))
    };
    let same = |url: &str| url.to_owned();
    let expired = shows(&names.ours.issue_until("old", &["127.0.0.1"], 2001));
    let elsewhere = shows(&names.ours.issue("elsewhere", &["elsewhere.example"]));
    let strict = || shows(&names.server).authority(&names.ours.file);
    let foreign = [options(&names.others.issue("foreign", &[CALLER])), ours.clone()].concat();
    let picky = [names.known(), vec!["--allow".to_owned(), "spiffe://example.org/other".to_owned()]].concat();
    for (tls, url, options, expected) in [
        (expired, &same as &dyn Fn(&str) -> String, ours.clone(), vec!["has expired or is not valid yet"]),
        (shows(&names.server), &same, believes(&names.others), vec!["an unknown authority signed", "`--ca`"]),
        (
            elsewhere,
            &same,
            ours.clone(),
            vec!["is not for 127.0.0.1 but for", "elsewhere.example", "`--server-name`"],
        ),
        (strict(), &same, ours.clone(), vec!["the server demands a certificate", "`--cert, --cert-key`"]),
        (strict(), &same, foreign, vec!["the server refused this client's certificate"]),
        (strict().allow("b"), &same, names.known(), vec!["has no identity on the server's list"]),
        (strict(), &same, picky, vec!["is not on this side's list of identities", "`--allow`"]),
        (strict(), &|url| url.replace("tcp+tls", "tcp"), vec![], vec!["the server speaks TLS only"]),
    ] {
        let said = asks(tls, url, &options);
        for words in expected {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    let (_plain, url) = serve("tcp://127.0.0.1:0", Tls::default());
    let said = complaint(&with(&["describe", &url.replace("tcp", "tcp+tls")], &ours));
    assert!(said.contains("the peer does not speak TLS"), "{said}");
    // A name for a server that the URL does not name.
    let (_server, url) =
        serve("tcp+tls://127.0.0.1:0", shows(&names.ours.issue("named", &["named.example"])));
    let named = [ours, vec!["--server-name".to_owned(), "named.example".to_owned()]].concat();
    assert_eq!(gimmal(&with(&["health", &url], &named)).stdout, b"serving\n");
    let missing = vec!["--ca".to_owned(), text(&names.folder.path().join("none"))];
    assert!(complaint(&with(&["health", &url], &missing)).contains("none: "));
}

/// With certificates `gimmal://` goes by TLS alone, and so it does when encryption is demanded.
#[test]
fn the_best_way_keeps_certificates() {
    let names = Names::new();
    let server =
        Server::builder().service(serve_desk(Clerk)).tls(shows(&names.server).authority(&names.ours.file));
    let server = server.listen("gimmal://127.0.0.1:0?need=encrypted").unwrap();
    let at = server.address().to_string();
    let at = at.strip_prefix("tcp+tls://").unwrap();
    let known = names.known();
    for url in [format!("gimmal://{at}?need=encrypted"), format!("gimmal://{at}")] {
        assert_eq!(said(&with(&["health", &url], &known)), "serving\n");
        let examined = said(&with(&["doctor", &url], &known));
        assert!(examined.contains("tcp+tls://"), "{examined}");
        let refused = complaint(&with(&["health", &url], &believes(&names.ours)));
        assert!(refused.contains("the server demands a certificate"), "{refused}");
    }
    // A demand that the way cannot keep is no way.
    let refused = complaint(&with(&["health", &format!("gimmal://{at}?need=rdma")], &known));
    assert!(!refused.is_empty());
}

/// An end of a tunnel that is told `more`, and its first line's address.
fn tunnel(arguments: &[&str], more: &[String]) -> Running {
    Running::start(&with(&[&["tunnel", "--json", "--drain-s", "5"], arguments].concat(), more))
}

/// A program's connection through `at` to the server: both ways, byte for byte.
fn carries(at: &str, server: &TcpListener) {
    let program = TcpStream::connect(at.strip_prefix("tcp:").unwrap()).unwrap();
    let (served, _) = server.accept().unwrap();
    for (mut from, mut to) in [(&program, &served), (&served, &program)] {
        from.set_write_timeout(Some(LIMIT)).unwrap();
        to.set_read_timeout(Some(LIMIT)).unwrap();
        let sent: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let mut came = vec![0; sent.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&sent).unwrap());
            to.read_exact(&mut came).unwrap();
        });
        assert!(came == sent, "the bytes that came are others");
    }
}

/// A tunnel under TLS carries bytes, uses files that change without being told, and says why it carries nothing.
#[test]
fn a_tunnel_under_tls_carries_and_takes_new_certificates() {
    let names = Names::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let map = format!("it=tcp:{}", server.local_addr().unwrap());
    let trusted = names.folder.path().join("trusted.pem");
    std::fs::copy(&names.ours.file, &trusted).unwrap();
    let strict = [options(&names.server), vec!["--ca".to_owned(), text(&trusted)]].concat();
    let leave = tunnel(&["--listen", "tcp+tls://127.0.0.1:0", "--map", &map], &strict);
    let enter = ["--listen", "tcp:127.0.0.1:0", "--to", &leave.at];
    let first = tunnel(&enter, &names.known());
    carries(&first.at, &server);

    // Both authorities retire: the next connections are those of the others, and the first one goes on.
    let renewed = names.others.issue("server", &["127.0.0.1"]);
    assert_eq!(text(&renewed.chain), text(&names.server.chain));
    let fresh = trusted.with_extension("fresh");
    std::fs::copy(&names.others.file, &fresh).unwrap();
    std::fs::rename(&fresh, &trusted).unwrap();
    let others = [options(&names.others.issue("other", &[CALLER])), believes(&names.others)].concat();
    let second = tunnel(&enter, &others);
    carries(&second.at, &server);
    carries(&first.at, &server);

    let mut late = Command::new(env!("CARGO_BIN_EXE_gimmal"));
    late.args(with(&[&["tunnel"], &enter[..]].concat(), &names.known()));
    let mut late = ChildGuard::spawn(late.stdout(Stdio::null()).stderr(Stdio::piped())).unwrap();
    let mut lines = BufReader::new(late.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("an unknown authority signed the peer's certificate")));

    assert_eq!(first.stop()["connections"], 2);
    assert_eq!(second.stop()["connections"], 1);
    assert_eq!(leave.stop()["connections"], 3);
}

/// Another implementation shakes hands with a tunnel, certificate for certificate.
#[test]
fn openssl_shakes_hands_with_a_tunnel() {
    let names = Names::new();
    let strict = [options(&names.server), believes(&names.ours)].concat();
    let leave = tunnel(&["--listen", "tcp+tls://127.0.0.1:0", "--map", "it=tcp:127.0.0.1:1"], &strict);
    let at = leave.at.strip_prefix("tcp+tls://").unwrap().trim_end_matches("/it").to_owned();
    let mut client = Command::new("openssl");
    client.args([
        "s_client",
        "-connect",
        &at,
        "-alpn",
        "gimmal/1",
        "-tls1_3",
        "-verify_return_error",
        "-brief",
        "-CAfile",
    ]);
    client.arg(&names.ours.file).arg("-cert").arg(&names.client.chain).arg("-key").arg(&names.client.key);
    let child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return gimmal_testkit::skip(&format!("openssl cannot be run: {error}")),
    };
    // No hello: the tunnel ends the connection, and with it the program.
    let mut input = child.stdin.take().unwrap();
    let _ = input.write_all(&[b'x'; 4096]);
    let output = child.wait_with_output().unwrap();
    drop(input);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    for line in ["Protocol version: TLSv1.3", "Verification: OK"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    leave.stop();
}

fn edge(listen: &str, to: &str, more: &[String]) -> Running {
    Running::start(&with(&["edge", "--listen", listen, "--to", to, "--drain-s", "5", "--json"], more))
}

/// A connection of HTTP/2 under TLS, of a client that shows `shown`.
async fn connect(
    at: &str,
    tls: &Tls,
    protocol: &[u8],
) -> Result<hyper::client::conn::http2::SendRequest<http_body_util::Full<bytes::Bytes>>, String> {
    let (config, name) = foreign::client(tls, "127.0.0.1", protocol).map_err(|error| error.to_string())?;
    let stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await;
    let stream = TokioIo::new(stream.map_err(|error| error.to_string())?);
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// One request's answer: the path that the server at the end saw.
async fn asked(
    sender: &mut hyper::client::conn::http2::SendRequest<http_body_util::Full<bytes::Bytes>>,
) -> Result<String, String> {
    let request = http::Request::post("https://example.org/a/b")
        .body(http_body_util::Full::new("hello".into()))
        .unwrap();
    sender.ready().await.map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status() != 200 {
        return Err(response.status().to_string());
    }
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8(body.to_bytes().to_vec()).unwrap())
}

/// A server of HTTP/2 under TLS that answers with the scheme that it saw and the body; its address.
async fn serve_h2(tls: Tls) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let answer = |request: http::Request<hyper::body::Incoming>| async {
        let scheme = request.uri().scheme_str().unwrap_or_default().to_owned();
        let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body = format!("{scheme} {}", String::from_utf8_lossy(&body));
        Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::<bytes::Bytes>::from(
            body,
        )))
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = tokio_rustls::TlsAcceptor::from(foreign::server(&tls, b"h2").unwrap());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ =
                    served.serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer)).await;
            });
        }
    });
    at.to_string()
}

/// HTTP/2 under TLS to gimmal under TLS and back, with a certificate on every side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_speaks_http2_under_tls_on_either_side() {
    let names = Names::new();
    let both = names.ours.issue("both", &["127.0.0.1", "spiffe://example.org/edge"]);
    let workload = [options(&both), believes(&names.ours)].concat();
    let at = serve_h2(shows(&names.server).authority(&names.ours.file)).await;
    let leave = edge("tcp+tls://127.0.0.1:0", &format!("https://{at}"), &workload);
    let enter = edge("https://127.0.0.1:0", &leave.at, &workload);
    let front = enter.at.strip_prefix("https://").unwrap().to_owned();
    let known = || shows(&names.client).authority(&names.ours.file);
    let mut sender = connect(&front, &known(), b"h2").await.unwrap();
    for _ in 0..20 {
        assert_eq!(asked(&mut sender).await.unwrap(), "https hello");
    }
    // Without a certificate, with one of others, and for another protocol nobody gets in.
    let bare = Tls::default().authority(&names.ours.file);
    let foreign = shows(&names.others.issue("foreign", &[CALLER])).authority(&names.ours.file);
    for (tls, protocol) in [(bare, b"h2" as &[u8]), (foreign, b"h2"), (known(), b"http/1.1")] {
        let refused = match connect(&front, &tls, protocol).await {
            Err(error) => error,
            Ok(mut sender) => asked(&mut sender).await.unwrap_err(),
        };
        assert!(!refused.is_empty());
    }
    // It is no server of gimmal, and says so.
    let url = format!("tcp+tls://{front}");
    let said =
        tokio::task::spawn_blocking(move || complaint(&with(&["health", &url], &workload))).await.unwrap();
    assert!(said.contains("but not gimmal inside it"), "{said}");

    // New files are those of the next connection.
    let _ = names.ours.issue_until("both", &["127.0.0.1"], 2001);
    let error = connect(&front, &known(), b"h2").await.err();
    assert!(error.as_ref().is_some_and(|error| error.contains("expired")), "{error:?}");
    assert_eq!(asked(&mut sender).await.unwrap(), "https hello");
    drop(sender);
    let counts = enter.stop();
    assert_eq!(
        (&counts["requests"], &counts["failed"], &counts["untrusted"]),
        (&21.into(), &0.into(), &5.into())
    );
    assert_eq!(leave.stop()["requests"], 21);
}

#[test]
fn an_edge_says_what_its_certificates_lack() {
    let names = Names::new();
    let all = [names.known(), vec!["--allow".to_owned(), CALLER.to_owned()]].concat();
    for (listen, to, more, expected) in [
        ("https://127.0.0.1:0", "shm://a", vec![], "`--cert, --cert-key`"),
        ("https://127.0.0.1:0", "tcp+tls://a:1", all.clone(), "--allow would be for both sides"),
        ("http://127.0.0.1:0", "tcp://a:1", all, "has no TLS"),
    ] {
        let said = complaint(&with(&["edge", "--listen", listen, "--to", to], &more));
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
