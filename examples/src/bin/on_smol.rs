//! A server whose handlers use smol, and its client: what another async runtime needs.

#![forbid(unsafe_code)]

use std::{any::Any, time::Duration};

use gimmal::{
    Client, Cx, Server,
    runtime::{BoxFuture, Runtime, Spawned},
};

/// smol's global executor. Its timers and sockets work on any thread, so there is nothing to enter.
#[derive(Clone, Copy, Debug)]
struct Smol;

impl Runtime for Smol {
    fn enter(&self, run: &mut dyn FnMut()) {
        run();
    }

    fn spawn(&self, task: BoxFuture) -> Box<dyn Any + Send + Sync> {
        // Dropping a task of smol cancels it.
        Box::new(smol::spawn(task))
    }
}

#[gimmal::service]
trait Sleepy {
    /// Sleeps so many ms, and returns the sum of the numbers below `limit`, computed by a task.
    async fn sum(&self, cx: &Cx, ms: u64, limit: u64) -> u64;
    /// Computes it in place.
    async fn sum_here(&self, cx: &Cx, limit: u64) -> u64;
}

struct Sleeper;

impl Sleepy for Sleeper {
    async fn sum(&self, _: &Cx, ms: u64, limit: u64) -> u64 {
        smol::Timer::after(Duration::from_millis(ms)).await;
        smol::spawn(async move { (0..limit).sum() }).await
    }

    async fn sum_here(&self, _: &Cx, limit: u64) -> u64 {
        (0..limit).sum()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "shm://on-smol".to_owned());
    // Calls of `sum_here` compute for long: each is a task of smol, and the worker goes on.
    let service = Spawned::only(serve_sleepy(Sleeper), &["sum_here"], Smol);
    let server = Server::builder().service(service).runtime(Smol).listen(&url)?;
    // Any runtime may connect and call.
    let client = SleepyClient::new(smol::block_on(Client::connect_async(&server.address().to_string()))?);
    let (one, other) = smol::block_on(async {
        let (one, other) = (client.sum(5, 101), client.sum_here(101));
        Ok::<_, Box<dyn std::error::Error>>((one.await?, other.await?))
    })?;
    println!("the sum of 0 to 100 is {one}, and {other}");
    drop(client);
    let signal = smol::Timer::after(Duration::from_millis(5));
    println!("all calls had ended: {}", smol::block_on(server.serve_until(signal, Duration::from_secs(5))));
    Ok(())
}
