//! Both directions between a program's connection and a stream.

use std::{
    io::{self, ErrorKind},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gimmal_io::{Duplex, RecvStream, SendStream};
use tokio::io::AsyncReadExt as _;

use super::{
    local::{Reader, Socket, Writer},
    options::Counts,
};

/// Most bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Why a stream ends by force: the code that the other end of the tunnel sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// The program ended its connection by force, or this end of the tunnel ends.
    Reset = 1,
    /// Nothing stands for the name.
    Unknown = 2,
    /// The server cannot be reached.
    Unreachable = 3,
    /// Nothing moved for too long.
    Idle = 4,
    /// It is one too many.
    TooMany = 5,
}

/// Ends a stream by force.
pub(super) fn refuse(stream: Duplex, why: Why) {
    let (mut recv, mut send) = stream.into_split();
    break_off(&mut recv, &mut send, why);
}

fn break_off(recv: &mut RecvStream, send: &mut SendStream, why: Why) {
    // At once: what waits may wait for a program that reads no more.
    send.abandon(why as u32);
    recv.stop(why as u32);
}

/// A program's connection and its stream. Dropped before both have ended, it ends both by force: half of an answer never looks like all
/// of it.
struct Joined {
    socket: Socket,
    recv: RecvStream,
    send: SendStream,
    why: Option<Why>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        match self.why {
            Some(why) => break_off(&mut self.recv, &mut self.send, why),
            None => self.socket.end_in_order(),
        }
    }
}

/// What moved on a connection, and in all.
struct Flow<'a> {
    counts: &'a Counts,
    steps: AtomicU64,
}

impl Flow<'_> {
    fn add(&self, counter: &AtomicU64, bytes: usize) {
        Counts::add(counter, bytes as u64);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Carries bytes both ways until both have ended, or one by force; then the other ends so too.
pub(super) async fn pump(socket: Socket, stream: Duplex, idle: Option<Duration>, counts: &Counts) {
    Counts::add(&counts.connections, 1);
    let (recv, send) = stream.into_split();
    let mut joined = Joined { socket, recv, send, why: Some(Why::Reset) };
    let Joined { socket, recv, send, .. } = &mut joined;
    let (reader, writer) = socket.split();
    let flow = Flow { counts, steps: AtomicU64::new(0) };
    let both = async { tokio::try_join!(into((reader, &writer), send, &flow), out_of(recv, &writer, &flow)) };
    let why = tokio::select! {
        ended = both => ended.err().map(|_| Why::Reset),
        () = nothing_moves(idle, &flow.steps) => Some(Why::Idle),
    };
    match why {
        None => {}
        Some(Why::Idle) => Counts::add(&counts.idle, 1),
        Some(_) => Counts::add(&counts.reset, 1),
    }
    joined.why = why;
}

/// What the program writes goes into the stream. The other end of the tunnel stops a stream by force alone, and ends so when it is lost.
async fn into(
    (mut reader, writer): (Reader<'_>, &Writer<'_>),
    send: &mut SendStream,
    flow: &Flow<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let bytes = tokio::select! {
            biased;
            read = reader.read(&mut buffer) => read?,
            _ = send.stopped() => return Err(ErrorKind::ConnectionReset.into()),
        };
        if bytes == 0 {
            send.finish();
            return Ok(());
        }
        flow.add(&flow.counts.bytes_in, bytes);
        let mut rest = &buffer[..bytes];
        while !rest.is_empty() {
            tokio::select! {
                biased;
                written = send.write(rest) => rest = &rest[written?..],
                () = writer.broken() => return Err(ErrorKind::ConnectionReset.into()),
            }
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// What comes out of the stream is written to the program, from where it arrived.
async fn out_of(recv: &mut RecvStream, writer: &Writer<'_>, flow: &Flow<'_>) -> io::Result<()> {
    loop {
        // A program that ended its connection by force may have nothing to read or write that would tell.
        tokio::select! {
            ready = recv.readable() => ready?,
            () = writer.broken() => return Err(ErrorKind::ConnectionReset.into()),
        }
        let here = recv.try_peek()?;
        if here.is_empty() {
            writer.finish();
            return Ok(());
        }
        match writer.try_write(here)? {
            Some(bytes) => {
                recv.consume(bytes);
                flow.add(&flow.counts.bytes_out, bytes);
            }
            // A stream that ends by force says so in front of what is here, which the program may never read.
            None => tokio::select! {
                writable = writer.writable() => writable?,
                () = recv.broken() => return Err(ErrorKind::ConnectionReset.into()),
            },
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Waits until nothing has moved for so long.
async fn nothing_moves(idle: Option<Duration>, steps: &AtomicU64) {
    let Some(idle) = idle else { return std::future::pending().await };
    let mut before = u64::MAX;
    loop {
        let now = steps.load(Ordering::Relaxed);
        if std::mem::replace(&mut before, now) == now {
            return;
        }
        tokio::time::sleep(idle).await;
    }
}
