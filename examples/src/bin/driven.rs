//! Calls on tokio's current-thread runtime: the thread that makes them also moves them.

#![forbid(unsafe_code)]

use std::{os::fd::AsFd, task::Context};

use gimmal::{Client, Cx};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::{LocalSet, spawn_local},
};

#[gimmal::service]
trait Squares {
    async fn square(&self, cx: &Cx, number: u64) -> u64;
}

struct Plain;

impl Squares for Plain {
    async fn square(&self, _: &Cx, number: u64) -> u64 {
        number * number
    }
}

async fn calls(url: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let channel = Client::builder().connect_local(url)?;
    let driver = channel.driver()?;
    // Any event loop that can wait for a descriptor will do; this is tokio's way.
    let fd = driver.as_fd().try_clone_to_owned()?;
    #[allow(deprecated, reason = "the way that replaces it is unsafe; nobody else has this descriptor")]
    let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
    let readable =
        move |context: &mut Context<'_>| fd.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready());
    let driver = spawn_local(driver.run(readable));
    let client = SquaresClient::new(channel);
    let tasks: Vec<_> = (1..=100)
        .map(|number| {
            let client = client.clone();
            spawn_local(async move { client.square(number).await })
        })
        .collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await??;
    }
    // The driver ends with the last clone of the client.
    drop(client);
    driver.await??;
    Ok(sum)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "shm://driven".to_owned());
    let server = gimmal::serve(&url, serve_squares(Plain))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let sum = LocalSet::new().block_on(&runtime, calls(&server.address().to_string()))?;
    println!("the squares of 1 to 100 are {sum}; 100 calls at once, on one thread");
    Ok(())
}
