//! A chat room: each member's call is a stream of lines in both directions.
//!
//! `chat` or, in the lab, `chat rdma://$GIMMAL_RXE_ADDR:7610`

#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
};

use gimmal::{Cx, Sink, Stream};

#[gimmal::service]
trait Chat {
    /// Joins as `name`; what is said goes to everybody. Ends when the member stops talking; returns the lines said.
    async fn join(&self, cx: &Cx, name: String, says: Stream<String>, hears: Sink<String>) -> u32;
}

/// Lines that one member has not heard yet. A member that does not read loses the oldest ones, and holds up nobody.
#[derive(Default)]
struct Mailbox {
    lines: VecDeque<String>,
    waker: Option<Waker>,
}

const KEPT: usize = 100;

#[derive(Default)]
struct Room {
    members: Mutex<Vec<Arc<Mutex<Mailbox>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Room {
    fn tell(&self, line: &str) {
        for member in lock(&self.members).iter() {
            let mut mailbox = lock(member);
            if mailbox.lines.len() == KEPT {
                mailbox.lines.pop_front();
            }
            mailbox.lines.push_back(line.to_owned());
            if let Some(waker) = mailbox.waker.take() {
                waker.wake();
            }
        }
    }
}

/// A member while its handler lives, however that ends.
struct Seat<'a> {
    room: &'a Room,
    mailbox: Arc<Mutex<Mailbox>>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        lock(&self.room.members).retain(|member| !Arc::ptr_eq(member, &self.mailbox));
    }
}

enum Event {
    Said(String),
    Heard(String),
    Left,
}

impl Chat for Room {
    async fn join(&self, _: &Cx, name: String, mut says: Stream<String>, mut hears: Sink<String>) -> u32 {
        let seat = Seat { room: self, mailbox: Arc::default() };
        lock(&self.members).push(Arc::clone(&seat.mailbox));
        self.tell(&format!("{name} is here"));
        let mut said = 0;
        loop {
            let event = poll_fn(|context| {
                let mut mailbox = lock(&seat.mailbox);
                if let Some(line) = mailbox.lines.pop_front() {
                    return Poll::Ready(Event::Heard(line));
                }
                mailbox.waker = Some(context.waker().clone());
                drop(mailbox);
                says.poll_next(context).map(|line| match line {
                    Some(Ok(line)) => Event::Said(line),
                    _ => Event::Left,
                })
            });
            match event.await {
                Event::Said(line) => {
                    said += 1;
                    self.tell(&format!("{name}: {line}"));
                }
                Event::Heard(line) if hears.send(&line).await.is_ok() => {}
                Event::Heard(_) | Event::Left => return said,
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("shm://chat-{}", std::process::id()));
    let server = gimmal::serve(&url, serve_chat(Room::default()))?;
    let url = server.address().to_string();
    let room = ChatClient::new(gimmal::connect(&url)?);
    let (mut ada, mut at_ada, ada_call) = room.join("Ada".to_owned());
    let mut expect = |who: &str, line: &str| -> Result<(), Box<dyn std::error::Error>> {
        let heard = at_ada.next_wait().ok_or("the stream ended")??;
        println!("Ada hears    {heard}");
        (heard == format!("{who}{line}")).then_some(()).ok_or_else(|| "another line".into())
    };
    expect("Ada", " is here")?;
    let (mut bob, mut at_bob, bob_call) = room.join("Bob".to_owned());
    expect("Bob", " is here")?;
    for line in ["hello, Ada", "how do streams work?"] {
        bob.send_wait(&line.to_owned())?;
        expect("Bob: ", line)?;
    }
    ada.send_wait(&"both ways, with credit".to_owned())?;
    expect("Ada: ", "both ways, with credit")?;
    drop(bob); // no more lines: Bob's call ends
    while let Some(heard) = at_bob.next_wait() {
        println!("Bob heard    {}", heard?);
    }
    drop(ada);
    println!("Bob said {}, Ada said {}", bob_call.wait()?, ada_call.wait()?);
    Ok(())
}
