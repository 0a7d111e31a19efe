//! `gimmal call` and `gimmal top` against a live server.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::process::Command;

use common::{PATIENCE, complaint, gimmal, said};
use gimmal_rpc::{Bulk, Cx, Key, MessagePack, ResponseWriter, Server, Shape, Sink, Stream, WithLoan};
use gimmal_testkit::ChildGuard;
use serde::{Deserialize, Serialize};

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Desk {
    /// Greets.
    #[idempotent]
    async fn greet(&self, cx: &Cx, name: String, times: u32) -> Vec<String>;
    /// Divides.
    async fn divide(&self, cx: &Cx, dividend: i32, divisor: i32) -> Result<i32, String>;
    /// Backwards.
    #[raw]
    fn reverse(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
    /// Runs on the worker.
    #[inline]
    fn add(&self, cx: &Cx, numbers: Vec<i16>) -> i64;
    /// Structs and enums.
    async fn book(&self, cx: &Cx, order: Order) -> Result<Order, Refusal>;
    /// Books with names on the wire.
    #[codec(MessagePack)]
    async fn reserve(&self, cx: &Cx, order: Order, days: u16) -> Result<Order, Refusal>;
    /// Items both ways.
    async fn doubled(&self, cx: &Cx, factor: u32, numbers: Stream<u32>, out: Sink<Order>) -> u64;
    /// Items, given up before the answer.
    async fn cut(&self, cx: &Cx, out: Sink<u32>) -> u64;
    /// Bulk.
    async fn upper(&self, cx: &Cx, name: String, content: Bulk) -> WithLoan<u64>;
}

#[derive(Serialize, Deserialize, Shape)]
#[shape(crate = gimmal_rpc)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: u64,
    items: Vec<Item>,
    note: Option<String>,
}

#[derive(Serialize, Deserialize, Shape)]
#[shape(crate = gimmal_rpc)]
enum Item {
    Nothing,
    Count(u8),
    Named { name: String, weight: f32 },
}

#[derive(Serialize, Deserialize, Shape)]
#[shape(crate = gimmal_rpc)]
enum Refusal {
    SoldOut { left: u32 },
}

struct Clerk;

impl Desk for Clerk {
    async fn greet(&self, _: &Cx, name: String, times: u32) -> Vec<String> {
        (0..times).map(|_| format!("hello, {name}")).collect()
    }

    async fn divide(&self, _: &Cx, dividend: i32, divisor: i32) -> Result<i32, String> {
        dividend.checked_div(divisor).ok_or_else(|| "by zero".to_owned())
    }

    fn reverse(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        let backwards: Vec<u8> = request.iter().rev().copied().collect();
        answer.write(&backwards);
    }

    fn add(&self, _: &Cx, numbers: Vec<i16>) -> i64 {
        numbers.into_iter().map(i64::from).sum()
    }

    async fn book(&self, cx: &Cx, order: Order) -> Result<Order, Refusal> {
        let mut metadata = gimmal_rpc::Metadata::new();
        metadata.insert("booked-by", "clerk").unwrap();
        cx.answer_metadata(metadata);
        if order.order_id == 0 { Err(Refusal::SoldOut { left: 2 }) } else { Ok(order) }
    }

    async fn reserve(&self, cx: &Cx, order: Order, _: u16) -> Result<Order, Refusal> {
        self.book(cx, order).await
    }

    async fn doubled(&self, _: &Cx, factor: u32, mut numbers: Stream<u32>, mut out: Sink<Order>) -> u64 {
        let mut sum = 0;
        while let Some(Ok(number)) = numbers.next().await {
            sum += u64::from(number * factor);
            let order = Order { order_id: (number * factor).into(), items: vec![], note: None };
            out.send(&order).await.unwrap();
        }
        sum
    }

    async fn cut(&self, _: &Cx, mut out: Sink<u32>) -> u64 {
        out.send(&7).await.unwrap();
        out.reset(5);
        2
    }

    async fn upper(&self, cx: &Cx, name: String, content: Bulk) -> WithLoan<u64> {
        let mut loan = cx.loan(content.len()).unwrap();
        loan.copy_from_slice(&content.to_ascii_uppercase());
        WithLoan::new(name.len() as u64, loan)
    }
}

#[test]
fn a_live_server_is_listed_called_and_watched() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/desk", folder.path().display());
    let url = url.as_str();
    let server = Server::builder().service(serve_desk(Clerk)).listen(url).unwrap();
    let listed = said(&["call", url]);
    assert!(
        listed.contains("Desk.greet(String, u32) -> Vec<String> [async, postcard, idempotent]"),
        "{listed}"
    );
    assert_eq!(said(&["call", url, "Desk.greet", "Ada", "2"]), "[\"hello, Ada\",\"hello, Ada\"]\n");
    assert_eq!(said(&["call", url, "Desk.divide", "--", "-6", "3"]), "-2\n");
    assert_eq!(said(&["call", url, "Desk.reverse", "abc"]), "cba\n");
    let cut = gimmal(&["call", url, "Desk.cut"]);
    let complained = String::from_utf8(cut.stderr).unwrap();
    assert_eq!((cut.status.code(), &*cut.stdout), (Some(1), &b"7\n2\n"[..]), "{complained}");
    assert!(
        complained.contains("items are missing: the sender gave the stream up with code 5"),
        "{complained}"
    );
    assert!(complaint(&["call", url, "Desk.divide", "6", "0"]).contains("by zero"));
    assert!(complaint(&["call", url, "Desk.greet", "Ada"]).contains("takes 2 arguments, 1 were given"));
    assert!(complaint(&["call", url, "Desk.nothing"]).contains("is not served; there are"));
    let top = said(&["top", url, "--count", "5", "--interval-ms", "50"]);
    assert!(top.contains("health: serving, 1 connection\n") && top.contains("requests"), "{top}");
    let lines = said(&["top", url, "--json", "--count", "2", "--interval-ms", "50"]);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["health"]), (2, &"serving".into()));
    assert!(lines[1]["counters"]["requests"].as_u64() > lines[0]["counters"]["requests"].as_u64());
    assert!(
        lines[1]["per_second"]["requests"].as_u64() > Some(0)
            && lines[1]["connections"][0]["age_ms"].is_u64()
    );
    assert_eq!(said(&["health", url]), "serving\n");
    assert_eq!(said(&["health", url, "--service", "Desk", "--json"]), "{\"health\":\"serving\"}\n");
    let output = gimmal(&["health", url, "--service", "Nothing"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"unknown\n"[..]));
    server.set_health("", false);
    for command in ["top", "health"] {
        let more: &[&str] = if command == "top" { &["--count", "1"] } else { &[] };
        let output = gimmal(&[&[command, url], more].concat());
        assert_eq!(output.status.code(), Some(1), "a server that is unwell is a failure");
        let mut unread = Command::new(env!("CARGO_BIN_EXE_gimmal"));
        unread.args([command, url]).args(more).stdout(std::io::pipe().unwrap().1);
        assert_eq!(unread.status().unwrap().code(), Some(1), "also where nobody reads it");
    }
    drop(server);
    assert!(complaint(&["health", url]).contains("no server is listening"));
    assert!(complaint(&["call", url]).contains("no server is listening"));
}

#[test]
fn values_and_types_are_json_and_rust() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/types", folder.path().display());
    let url = url.as_str();
    let _server = Server::builder().service(serve_desk(Clerk)).listen(url).unwrap();
    let order =
        r#"{"orderId":7,"items":["Nothing",{"Count":3},{"Named":{"name":"x","weight":1.5}}],"note":null}"#;
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(json(&said(&["call", url, "Desk.book", order])), json(order));
    assert_eq!(json(&said(&["call", url, "Desk.reserve", order, "3"])), json(order));
    let whole = json(&said(&["call", url, "--json", "Desk.book", order]));
    assert_eq!((&whole["answer"], &whole["metadata"]["booked-by"]), (&json(order), &json("\"clerk\"")));
    assert_eq!(said(&["call", url, "Desk.add", "--", "[1,-300]"]), "-299\n");
    assert_eq!(
        json(&said(&["call", url, "Desk.upper", "me", "--bulk", "text"])),
        json(r#"{"answer":2,"loan":"TEXT"}"#)
    );
    assert_eq!(said(&["call", url, "gimmal.Reflection.health", ""]), "\"Serving\"\n");
    assert!(json(&said(&["call", url, "gimmal.Reflection.connections"]))[0]["provider"] == "shm");
    let nobody = r#"{"orderId":0,"items":[]}"#;
    assert!(
        complaint(&["call", url, "Desk.book", nobody])
            .contains(r#"the method failed: {"SoldOut":{"left":2}}"#)
    );
    assert!(
        complaint(&["call", url, "Desk.reserve", nobody, "3"])
            .contains(r#"the method failed: {"SoldOut":{"left":2}}"#)
    );
    assert!(
        complaint(&["call", url, "Desk.reserve", order, "70000"])
            .contains("argument 2, days: u16: 70000 is no u16")
    );
    for (given, wrong) in [
        (r#"{"orderId":-1,"items":[]}"#, "argument 1, order: Order: at orderId: -1 is no u64"),
        (r#"{"orderId":1,"items":[{"Count":300}]}"#, "at items[0].Count: 300 is no u8"),
        (r#"{"orderId":1,"items":["No"]}"#, "at items[0]: \"No\" is no Item, one of Nothing, Count, Named"),
        (r#"{"orderId":1}"#, "Order needs the field items: Vec<Item>"),
        (r#"{"orderId":1,"items":[],"x":1}"#, "Order has no field x; it has orderId, items, note"),
        ("[", "argument 1, order: Order: '[' is no JSON"),
    ] {
        let said = complaint(&["call", url, "Desk.book", given]);
        assert!(said.contains(wrong), "{given}: {said}");
    }
    let described = said(&["describe", url]);
    for line in [
        "    #[idempotent]\n    async fn greet(&self, cx: &Cx, name: String, times: u32) -> Vec<String>;\n",
        "    async fn book(&self, cx: &Cx, order: Order) -> Result<Order, Refusal>;\n",
        "    #[codec(MessagePack)]\n    async fn reserve(&self, cx: &Cx, order: Order, days: u16)",
        "    #[inline]\n    fn add(&self, cx: &Cx, numbers: Vec<i16>) -> i64;\n",
        "    async fn doubled(&self, cx: &Cx, factor: u32, up: Stream<u32>, down: Sink<Order>) -> u64;\n",
        "    async fn upper(&self, cx: &Cx, name: String, bulk: Bulk) -> WithLoan<u64>;\n",
        "struct Order {\n    orderId: u64,\n    items: Vec<Item>,\n    note: Option<String>,\n}\n",
        "    Named { name: String, weight: f32 },\n",
    ] {
        assert!(described.contains(line), "{line}\n{described}");
    }
    let methods = json(&said(&["describe", url, "--json"]));
    assert!(
        methods
            .as_array()
            .unwrap()
            .iter()
            .any(|method| method["name"] == "book" && method["codec"] == "postcard")
    );
}

#[test]
fn items_are_lines_of_json() {
    use std::{io::Write as _, process::Stdio};
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/items", folder.path().display());
    let _server = Server::builder().service(serve_desk(Clerk)).listen(&url).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_gimmal"));
    program
        .arg("call")
        .args(PATIENCE)
        .args([&url, "Desk.doubled", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = program.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"1\n2\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let order = |id: u32| format!("{{\"items\":[],\"note\":null,\"orderId\":{id}}}\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}{}6\n", order(2), order(4)));
}

#[test]
fn a_key_is_read_from_its_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/keyed", folder.path().display());
    let path = folder.path().join("key");
    std::fs::write(&path, [7; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = Key::from_file(&path).unwrap();
    let _server = Server::builder().service(serve_desk(Clerk)).key(key).listen(&url).unwrap();
    let shown = path.display().to_string();
    assert_eq!(said(&["call", &url, "--key", &shown, "Desk.reverse", "abc"]), "cba\n");
    assert!(complaint(&["call", &url]).contains("the server requires a shared key"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(complaint(&["call", &url, "--key", &shown]).contains("has mode 0644"));
}

/// A server that restarts is shown before, while it is away, and after.
#[test]
fn top_survives_a_restart() {
    use std::{
        io::{BufRead as _, BufReader},
        process::Stdio,
    };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/again", folder.path().display());
    let serve = || Server::builder().service(serve_desk(Clerk)).listen(&url).unwrap();
    let mut server = Some(serve());
    let mut top = Command::new(env!("CARGO_BIN_EXE_gimmal"));
    let top =
        top.args(["top", &url, "--json", "--interval-ms", "20", "--count", "100000"]).stdout(Stdio::piped());
    let mut top = ChildGuard::spawn(top).unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |words: &str| assert!(lines.any(|line| line.contains(words)), "it ended without {words}");
    until("serving");
    drop(server.take());
    until("error");
    server = Some(serve());
    until("serving");
    drop(server);
}

#[test]
fn the_doctor_proves_a_key() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("shm://{}/proved", folder.path().display());
    let path = folder.path().join("key");
    std::fs::write(&path, [7; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = Key::from_file(&path).unwrap();
    let _server = Server::builder().service(serve_desk(Clerk)).key(key).listen(&url).unwrap();
    let with = gimmal(&["doctor", &url, "--json", "--key", &path.display().to_string()]);
    assert!(with.status.success(), "{}", String::from_utf8_lossy(&with.stdout));
    let without = gimmal(&["doctor", &url]);
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stdout).contains("requires a shared key"));
    // The others take it, too.
    let shown = path.display().to_string();
    assert_eq!(said(&["health", &url, "--key", &shown]), "serving\n");
    assert!(said(&["top", &url, "--count", "1", "--key", &shown]).contains("key proved"));
}
