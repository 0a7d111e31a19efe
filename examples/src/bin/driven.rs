//! Calls on tokio's current-thread runtime: the thread that makes them also moves them.

#![forbid(unsafe_code)]

use gimmal::{Cx, tokio::LocalClient};
use tokio::task::spawn_local;

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
    let client = SquaresClient::new(LocalClient::connect(url).await?);
    let square = |number| {
        let client = client.clone();
        spawn_local(async move { client.square(number).await })
    };
    let tasks: Vec<_> = (1..=100).map(square).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await??;
    }
    Ok(sum)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "shm://driven".to_owned());
    let server = gimmal::serve(&url, serve_squares(Plain))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build_local(Default::default())?;
    let sum = runtime.block_on(calls(&server.address().to_string()))?;
    println!("the squares of 1 to 100 are {sum}; 100 calls at once, on one thread");
    Ok(())
}
