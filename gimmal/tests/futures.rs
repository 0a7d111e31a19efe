//! Ends of streams with the traits of the futures crates.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{future::poll_fn, pin::Pin};

use futures_core::Stream as _;
use futures_sink::Sink as _;
use gimmal::{Client, Cx, Sink, Stream, StreamError};

#[gimmal::service]
trait Doubles {
    async fn double(&self, cx: &Cx, numbers: Stream<u64>, doubled: Sink<u64>) -> u64;
}

struct Doubler;

impl Doubles for Doubler {
    async fn double(&self, _: &Cx, mut numbers: Stream<u64>, mut doubled: Sink<u64>) -> u64 {
        let mut count = 0;
        while let Some(Ok(number)) = numbers.next().await {
            count += u64::from(doubled.send(&(2 * number)).await.is_ok());
        }
        count
    }
}

#[tokio::main(flavor = "current_thread")]
async fn both_directions(url: &str) {
    let client = DoublesClient::new(Client::connect_async(url).await.unwrap());
    let (mut numbers, mut doubled, call) = client.double();
    let send = async {
        // Far more than either side's window.
        for number in 0..500u64 {
            poll_fn(|context| Pin::new(&mut numbers).poll_ready(context)).await.unwrap();
            Pin::new(&mut numbers).start_send(number).unwrap();
        }
        poll_fn(|context| Pin::new(&mut numbers).poll_close(context)).await.unwrap();
    };
    let receive = async {
        let mut next = 0;
        while let Some(item) = poll_fn(|context| Pin::new(&mut doubled).poll_next(context)).await {
            assert_eq!(item.unwrap(), 2 * next);
            next += 1;
        }
        next
    };
    let ((), received, counted) = tokio::join!(send, receive, call);
    assert_eq!((received, counted), (500, Ok(500)));
}

#[test]
fn ends_of_streams_are_those_of_futures() {
    let _server = gimmal::serve("mem://futures", serve_doubles(Doubler)).unwrap();
    both_directions("mem://futures");
}

#[test]
fn an_item_that_was_not_asked_for_is_not_sent() {
    let _server = gimmal::serve("mem://futures-full", serve_doubles(Doubler)).unwrap();
    let client = DoublesClient::new(gimmal::connect("mem://futures-full").unwrap());
    // Nobody reads what comes back: the handler stops, and the caller's items stay where they are.
    let (mut numbers, _doubled, _call) = client.double();
    let refused = (0..100_000u64).find_map(|number| Pin::new(&mut numbers).start_send(number).err());
    assert_eq!(refused, Some(StreamError::NoRoom));
}
