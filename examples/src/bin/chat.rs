//! A chat room: each member's call is a stream of lines in both directions.
//!
//! `chat`, `chat tcp://127.0.0.1:0` or, in the lab, `chat rdma://$GIMMAL_RXE_ADDR:7610`

#![forbid(unsafe_code)]

use std::{future::poll_fn, pin::pin, task::Poll};

use gimmal::{
    Cx, Sink, Stream,
    topic::{Behind, Topic},
};

#[gimmal::service]
trait Chat {
    /// Joins as `name`; what is said goes to everybody. Ends when the member stops talking; returns the lines said.
    async fn join(&self, cx: &Cx, name: String, says: Stream<String>, hears: Sink<String>) -> u32;
}

/// What is said goes to everybody. A member that does not read loses the oldest lines, and holds up nobody.
struct Room(Topic<String>);

impl Chat for Room {
    async fn join(&self, _: &Cx, name: String, mut says: Stream<String>, hears: Sink<String>) -> u32 {
        let mut hearing = pin!(self.0.feed(hears));
        let mut said = 0;
        let mut line = Some(format!("{name} is here"));
        // Hears before it says, so that a member hears itself.
        while let Some(next) = poll_fn(|context| {
            if hearing.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            match line.take() {
                Some(line) => Poll::Ready(Some(line)),
                None => says.poll_next(context).map(|item| {
                    let text = item?.ok()?;
                    said += 1;
                    Some(format!("{name}: {text}"))
                }),
            }
        })
        .await
        {
            let _ = self.0.publish(&next).await; // text can always be written
        }
        said
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("shm://chat-{}", std::process::id()));
    let server = gimmal::serve(&url, serve_chat(Room(Topic::new(100, Behind::DropOldest))))?;
    let url = server.address().to_string();
    let room = ChatClient::new(gimmal::connect(&url)?);
    let (mut ada, mut at_ada, ada_call) = room.join("Ada".to_owned());
    let mut expect = |who: &str, line: &str| -> Result<(), Box<dyn std::error::Error>> {
        let heard = at_ada.blocking_next().ok_or("the stream ended")??;
        println!("Ada hears    {heard}");
        (heard == format!("{who}{line}")).then_some(()).ok_or_else(|| "another line".into())
    };
    expect("Ada", " is here")?;
    let (mut bob, mut at_bob, bob_call) = room.join("Bob".to_owned());
    expect("Bob", " is here")?;
    for line in ["hello, Ada", "how do streams work?"] {
        bob.blocking_send(&line.to_owned())?;
        expect("Bob: ", line)?;
    }
    ada.blocking_send(&"both ways, with credit".to_owned())?;
    expect("Ada: ", "both ways, with credit")?;
    bob.finish(); // no more lines: Bob's call ends
    while let Some(heard) = at_bob.blocking_next() {
        println!("Bob heard    {}", heard?);
    }
    ada.finish();
    println!("Bob said {}, Ada said {}", bob_call.wait()?, ada_call.wait()?);
    Ok(())
}
