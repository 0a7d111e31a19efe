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
use gimmal_transport::testing::{Authority, Issued};
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
    // The same by the environment, of which options are a part.
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
