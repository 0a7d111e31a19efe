//! Publish and subscribe: one publisher, three subscribers, each read at its own pace; what is lost is counted.
//!
//! `news`, `news tcp://127.0.0.1:0` or, in the lab, `news rdma://$GIMMAL_RXE_ADDR:7612`

#![forbid(unsafe_code)]

use std::{thread, time::Duration};

use gimmal::{
    Cx, Sink,
    topic::{Behind, Topic},
};

#[gimmal::service]
trait News {
    /// Headlines from now on. Returns how many were sent, and how many this subscriber was too slow for.
    async fn follow(&self, cx: &Cx, headlines: Sink<String>) -> (u64, u64);
}

#[derive(Clone)]
struct Desk(Topic<String>);

impl News for Desk {
    async fn follow(&self, _: &Cx, headlines: Sink<String>) -> (u64, u64) {
        let fed = self.0.feed(headlines).await;
        (fed.sent, fed.lost)
    }
}

const HEADLINES: u64 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("shm://news-{}", std::process::id()));
    let desk = Desk(Topic::new(16, Behind::DropOldest));
    let server = gimmal::serve(&url, serve_news(desk.clone()))?;
    let url = server.address().to_string();
    let readers: Vec<_> = ["a", "b", "slow"]
        .map(|name| {
            let url = url.clone();
            thread::spawn(move || -> Result<String, String> {
                let client = NewsClient::new(gimmal::connect(&url).map_err(|error| error.to_string())?);
                let (mut headlines, call) = client.follow();
                let (mut read, mut last) = (0, String::new());
                while let Some(headline) = headlines.blocking_next() {
                    last = headline.map_err(|error| error.to_string())?;
                    read += 1;
                    if name == "slow" {
                        thread::sleep(Duration::from_millis(2));
                    }
                }
                let (sent, lost) = call.wait().map_err(|error| error.to_string())?;
                if read != sent || sent + lost != HEADLINES {
                    return Err(format!("{name}: {read} read, {sent} sent, {lost} lost"));
                }
                Ok(format!("{name:<5} read {read:>4}, lost {lost:>3}, the last was {last:?}"))
            })
        })
        .into();
    while desk.0.subscribers() < readers.len() {
        thread::sleep(Duration::from_millis(1));
    }
    for number in 1..=HEADLINES {
        desk.0.blocking_publish(&format!("headline {number}"))?;
        if number % 10 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    desk.0.close();
    for reader in readers {
        println!("{}", reader.join().map_err(|_| "a reader panicked")??);
    }
    Ok(())
}
