//! A rolling upgrade: servers of version 1 become servers of version 2, and back again, while clients of both versions
//! call them. No answer is wrong, and no call fails.
//!
//! `upgrade` or `upgrade tcp://127.0.0.1:7620 tcp://127.0.0.1:7621`

#![forbid(unsafe_code)]

use std::{
    error::Error,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use gimmal::{
    Config, Cx, Instant, Reconnect, ServeError, Server,
    balance::Balanced,
    layer::{Retry, RetryPolicy},
};

/// A till as it was first written.
mod v1 {
    use gimmal::{Cx, codec::MessagePack};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, gimmal::Shape)]
    pub(crate) struct Order {
        pub(crate) id: u64,
        pub(crate) cents: u32,
    }

    #[derive(Serialize, Deserialize, gimmal::Shape)]
    pub(crate) struct Receipt {
        pub(crate) id: u64,
        pub(crate) cents: u64,
    }

    #[gimmal::service(codec = MessagePack)]
    pub(crate) trait Till {
        #[idempotent]
        async fn pay(&self, cx: &Cx, order: Order) -> Receipt;
    }
}

/// A later version of the till: a wider number, another order, a field with a default and one that may be absent.
mod v2 {
    use gimmal::{Cx, codec::MessagePack};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, gimmal::Shape)]
    pub(crate) struct Order {
        pub(crate) cents: u64,
        #[serde(default)]
        pub(crate) tip: u64,
        pub(crate) currency: Option<String>,
        pub(crate) id: u64,
    }

    #[derive(Serialize, Deserialize, gimmal::Shape)]
    pub(crate) struct Receipt {
        pub(crate) cents: u64,
        /// Absent from a server of version 1, which takes no tips.
        pub(crate) tip: Option<u64>,
        pub(crate) id: u64,
    }

    #[gimmal::service(codec = MessagePack)]
    pub(crate) trait Till {
        #[idempotent]
        async fn pay(&self, cx: &Cx, order: Order) -> Receipt;
    }
}

struct First;

impl v1::Till for First {
    async fn pay(&self, _: &Cx, order: v1::Order) -> v1::Receipt {
        v1::Receipt { id: order.id, cents: order.cents.into() }
    }
}

struct Second;

impl v2::Till for Second {
    async fn pay(&self, _: &Cx, order: v2::Order) -> v2::Receipt {
        let tip = order.currency.map(|_| order.tip);
        v2::Receipt { cents: order.cents, tip, id: order.id }
    }
}

/// What came of the calls.
#[derive(Default)]
struct Tally {
    first: AtomicU64,
    second: AtomicU64,
    wrong: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
}

impl Tally {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn failed(&self, error: &dyn Error) {
        eprintln!("{error}");
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self, is_right: bool) {
        self.wrong.fetch_add((!is_right).into(), Ordering::Relaxed);
    }
}

type Servers = Retry<Balanced>;

/// Calls as a program of version 1 does.
fn first(client: &v1::TillClient<Servers>, tally: &Tally) {
    for (id, cents) in (0u64..).zip((0u32..70_000).cycle()).take_while(|_| !tally.is_over()) {
        match client.pay(v1::Order { id, cents }).wait() {
            Ok(receipt) => tally.check((receipt.id, receipt.cents) == (id, cents.into())),
            Err(error) => tally.failed(&error),
        }
        tally.first.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls as a program of version 2 does.
fn second(client: &v2::TillClient<Servers>, tally: &Tally) {
    for (id, cents) in (0u64..).zip((0u64..70_000).cycle()).take_while(|_| !tally.is_over()) {
        let order = v2::Order { cents, tip: 5, currency: Some("EUR".to_owned()), id };
        match client.pay(order).wait() {
            Ok(receipt) => {
                let is_tip_right = matches!(receipt.tip, None | Some(5));
                tally.check((receipt.id, receipt.cents) == (id, cents) && is_tip_right);
            }
            Err(error) => tally.failed(&error),
        }
        tally.second.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
enum Version {
    First,
    Second,
}

fn serve(url: &str, version: Version) -> Result<Server, ServeError> {
    let builder = Server::builder().take_over(Duration::from_secs(5));
    match version {
        Version::First => builder.service(v1::serve_till(First)),
        Version::Second => builder.service(v2::serve_till(Second)),
    }
    .listen(url)
}

/// Replaces the servers one by one, so many times; waits for the clients in between.
fn replace(
    urls: &[String],
    servers: &mut [Option<Server>],
    channels: &[Balanced],
    times: usize,
) -> Result<(), Box<dyn Error>> {
    let turns = [Version::Second, Version::Second, Version::First, Version::First];
    for (version, at) in turns.into_iter().cycle().zip((0..urls.len()).cycle()).take(times) {
        if !servers[at].take().is_some_and(|server| server.shutdown(Duration::from_secs(5))) {
            return Err("a handler was cut off".into());
        }
        servers[at] = Some(serve(&urls[at], version)?);
        let deadline = Instant::now() + Duration::from_secs(20);
        while channels.iter().any(|channel| channel.ready().len() < urls.len()) {
            if Instant::now() > deadline {
                return Err("a client does not come back".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Replaces the servers of `urls`, or of two addresses in shared memory, so many times.
fn run(mut urls: Vec<String>, times: usize) -> Result<Tally, Box<dyn Error>> {
    if urls.is_empty() {
        urls = ["a", "b"].map(|name| format!("shm://upgrade-{name}-{}", std::process::id())).into();
    }
    let mut servers = Vec::new();
    for url in &urls {
        servers.push(Some(serve(url, Version::First)?));
    }
    let reconnect = Reconnect { max: Duration::from_millis(50), ..Reconnect::default() };
    let config = Config { reconnect: Some(reconnect), ..Config::default() };
    let builder = Balanced::builder().config(config);
    let channels = [builder.clone().connect(urls.clone())?, builder.connect(urls.clone())?];
    let policy = RetryPolicy { attempts: 200, max: Duration::from_millis(50), ..RetryPolicy::default() };
    let [old, new] = channels.clone().map(|channel| Retry::new(channel, policy));
    let (old, new) = (v1::TillClient::new(old), v2::TillClient::new(new));
    let tally = Tally::default();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| first(&old, &tally));
            scope.spawn(|| second(&new, &tally));
        }
        let replaced = replace(&urls, &mut servers, &channels, times);
        tally.is_over.store(true, Ordering::Relaxed);
        replaced
    })?;
    Ok(tally)
}

fn main() -> Result<(), Box<dyn Error>> {
    let times = 8;
    let Tally { first, second, wrong, failed, .. } = run(std::env::args().skip(1).collect(), times)?;
    let [first, second, wrong, failed] = [first, second, wrong, failed].map(AtomicU64::into_inner);
    println!("{first} calls of version 1, {second} of version 2, while servers were replaced {times} times");
    println!("{wrong} wrong answers, {failed} failed calls");
    if wrong + failed > 0 {
        return Err("versions do not understand each other".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_is_wrong_and_no_call_fails_while_servers_are_replaced() {
        // Not from the arguments, which are the test harness's.
        let tally = run(Vec::new(), 4).unwrap();
        let [first, second, wrong, failed] =
            [tally.first, tally.second, tally.wrong, tally.failed].map(AtomicU64::into_inner);
        assert!(first > 0 && second > 0, "{first} and {second} calls");
        assert_eq!((wrong, failed), (0, 0), "of {first} and {second} calls");
    }
}
