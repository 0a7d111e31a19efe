//! Bytes through a stream: blocks one way, and pieces there and back.

use std::cell::RefCell;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use gimmal_io::open_local;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    case::{BLOCK, BYTES, Way},
    link::{Dialer, Link, Listener},
    measure::{Job, Stretch, Times, windowed},
    ours::driven,
    post::Post,
};

/// Says that everything is here.
const HERE: u8 = 1;

/// Reads what clients write, until the other process ends.
pub(crate) async fn serve(way: Way, post: &Post) -> Result<()> {
    let (mut listener, host) = Listener::new(way, post).await?;
    let serving = async {
        loop {
            match (way, &mut listener) {
                (Way::StreamChunks | Way::StreamLocalChunks, Listener::Streams(incoming)) => {
                    let (_, stream) = incoming.accept().await.context("the server is gone")?;
                    chunks(stream).await?;
                }
                (Way::StreamEchoes | Way::StreamLocalEchoes | Way::SocketEchoes, listener) => {
                    echo(listener.accept().await?).await?;
                }
                (_, listener) => swallow(listener.accept().await?).await?,
            }
        }
    };
    tokio::select! {
        ended = serving => ended,
        over = host.serve(post) => over,
    }
}

/// Takes as many bytes as the client announces, again and again.
async fn swallow(mut link: Link) -> Result<()> {
    let mut buffer = vec![0; BLOCK];
    while let Ok(mut left) = link.read_u64().await {
        link.write_u8(HERE).await?;
        while left > 0 {
            let read = link.read(&mut buffer).await?;
            ensure!(read > 0 && buffer[read - 1] == 7, "other bytes");
            left -= u64::try_from(read)?;
        }
        link.write_u8(HERE).await?;
    }
    Ok(())
}

/// As [`swallow`], without a copy out of the stream.
async fn chunks(mut stream: gimmal_io::Duplex) -> Result<()> {
    let (recv, send) = stream.split();
    // The client ends with its connection.
    while let Ok(Some(said)) = recv.read_chunk().await {
        let mut left = u64::from_be_bytes(said[..].try_into()?);
        send.write(&[HERE]).await?;
        while left > 0 {
            let chunk: Bytes = recv.read_chunk().await?.context("an early end")?;
            ensure!(chunk.last() == Some(&7), "other bytes");
            left -= u64::try_from(chunk.len())?;
        }
        send.write(&[HERE]).await?;
    }
    Ok(())
}

async fn echo(mut link: Link) -> Result<()> {
    let mut buffer = [0; BYTES];
    while let Ok(read @ 1..) = link.read(&mut buffer).await {
        link.write_all(&buffer[..read]).await?;
    }
    Ok(())
}

/// As the job says, on a connection of its own.
pub(crate) async fn call(job: &Job) -> Result<Times> {
    let dialer = Dialer::new(job).await?;
    measure(job, dialer.connect().await?).await
}

/// As [`call`], and the client's thread moves the stream, too.
pub(crate) fn call_local(job: &Job) -> Result<Times> {
    driven(job, async |client| {
        let (stream, call) = open_local(&client, "peers");
        drop(tokio::task::spawn_local(call));
        client.run_until(measure(job, Box::new(stream))).await
    })
}

async fn measure(job: &Job, link: Link) -> Result<Times> {
    match job.case.way {
        Way::StreamEchoes | Way::StreamLocalEchoes | Way::SocketEchoes => echoes(job, link).await,
        _ => blocks(job, link).await,
    }
}

/// Blocks one way.
async fn blocks(job: &Job, mut link: Link) -> Result<Times> {
    let block = vec![7; BLOCK];
    let mut write = async |count: usize| -> Result<Times> {
        link.write_u64(u64::try_from(count * BLOCK)?).await?;
        ensure!(link.read_u8().await? == HERE, "another answer");
        let stretch = Stretch::begin(job);
        for _ in 0..count {
            link.write_all(&block).await?;
        }
        ensure!(link.read_u8().await? == HERE, "another answer");
        stretch.end_all(count)
    };
    write(job.calls / 10).await?;
    write(job.calls).await
}

/// Pieces there and back.
async fn echoes(job: &Job, link: Link) -> Result<Times> {
    let link = RefCell::new(link);
    windowed(job, async || {
        // One at a time.
        let mut link = link.try_borrow_mut()?;
        link.write_all(&[7; BYTES]).await?;
        let mut back = [0; BYTES];
        link.read_exact(&mut back).await?;
        ensure!(back == [7; BYTES], "other bytes");
        Ok(())
    })
    .await
}
