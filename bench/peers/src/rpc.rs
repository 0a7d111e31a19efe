//! tarpc over a unix socket.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use tarpc::{
    client, context,
    server::{BaseChannel, Channel as _},
    tokio_serde::formats::Bincode,
};

use crate::{BYTES, Times};

#[tarpc::service]
trait Echo {
    /// Sends the body back.
    async fn echo(body: Vec<u8>) -> Vec<u8>;
}

#[derive(Clone)]
struct Mirror;

impl Echo for Mirror {
    async fn echo(self, _: context::Context, body: Vec<u8>) -> Vec<u8> {
        body
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Until `stop`.
pub(crate) fn serve(place: &Path, stop: &AtomicBool) -> Result<()> {
    runtime()?.block_on(async {
        let mut incoming = tarpc::serde_transport::unix::listen(place, Bincode::default).await?;
        tokio::spawn(async move {
            while let Some(Ok(transport)) = incoming.next().await {
                let channel = BaseChannel::with_defaults(transport);
                tokio::spawn(channel.execute(Mirror.serve()).for_each(|answer| async {
                    tokio::spawn(answer);
                }));
            }
        });
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
}

/// `calls` after a tenth of that to warm up.
pub(crate) fn call(place: &Path, calls: usize) -> Result<Times> {
    runtime()?.block_on(async {
        let transport = tarpc::serde_transport::unix::connect(place, Bincode::default).await?;
        let client = EchoClient::new(client::Config::default(), transport).spawn();
        let body = vec![7; BYTES];
        let mut times = Times::default();
        for number in 0..calls + calls / 10 {
            let start = Instant::now();
            let back = client.echo(context::current(), body.clone()).await?;
            if number >= calls / 10 {
                times.record(start);
            }
            ensure!(back == body, "another body");
        }
        Ok(times)
    })
}
