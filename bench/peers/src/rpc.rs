//! tarpc over a unix socket.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use tarpc::{
    client, context,
    server::{BaseChannel, Channel as _},
    tokio_serde::formats::Bincode,
};
use tokio::runtime::Runtime;

use crate::measure::{BYTES, Times, windowed_on};

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

/// Until `stop`.
pub(crate) fn serve(runtime: &Runtime, place: &Path, stop: &AtomicBool) -> Result<()> {
    runtime.block_on(async {
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

/// `calls` after a tenth of that to warm up, `window` of them at once.
pub(crate) fn call(runtime: &Runtime, place: &Path, calls: usize, window: usize) -> Result<Times> {
    let client = runtime.block_on(async {
        let transport = tarpc::serde_transport::unix::connect(place, Bincode::default).await?;
        anyhow::Ok(EchoClient::new(client::Config::default(), transport).spawn())
    })?;
    windowed_on(runtime, calls, window, move || {
        let client = client.clone();
        async move {
            let back = client.echo(context::current(), vec![7; BYTES]).await?;
            ensure!(back == [7; BYTES], "another body");
            Ok(())
        }
    })
}
