//! tarpc over sockets, and over byte streams of gimmal.

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use tarpc::{
    client, context,
    serde_transport::Transport,
    server::{BaseChannel, Channel as _},
    tokio_serde::formats::Bincode,
};
use tokio::runtime::Runtime;

use crate::{
    case::{BYTES, Way},
    link::{Dialer, Listener},
    measure::{Job, Times, windowed_on},
    post::Post,
};

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

/// Until the other process ends.
pub(crate) fn serve(runtime: &Runtime, way: Way, post: &Post) -> Result<()> {
    runtime.block_on(async {
        let (listener, host) = Listener::new(way, post).await?;
        let mut links = Box::pin(listener.links());
        tokio::spawn(async move {
            while let Some(Ok(link)) = links.next().await {
                let channel = BaseChannel::with_defaults(Transport::from((link, Bincode::default())));
                tokio::spawn(channel.execute(Mirror.serve()).for_each(|answer| async {
                    tokio::spawn(answer);
                }));
            }
        });
        host.serve(post).await
    })
}

/// Echoes through one link.
pub(crate) fn call(runtime: &Runtime, job: &Job) -> Result<Times> {
    let dialer = runtime.block_on(Dialer::new(job))?;
    let client = runtime.block_on(async {
        let transport = Transport::from((dialer.connect().await?, Bincode::default()));
        anyhow::Ok(EchoClient::new(client::Config::default(), transport).spawn())
    })?;
    windowed_on(runtime, job, move || {
        let client = client.clone();
        async move {
            let back = client.echo(context::current(), vec![7; BYTES]).await?;
            ensure!(back == [7; BYTES], "another body");
            Ok(())
        }
    })
}
