//! Joining two streams.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use crate::{Duplex, RecvStream, SendStream};

/// Copies between two polls of the task, so that other tasks have their turn.
const COPIES: usize = 16;

/// One direction of a copy.
#[derive(Default)]
struct Way {
    bytes: u64,
    is_over: bool,
}

impl Way {
    /// Writes what arrives on `from` to `to`, out of the buffer in which it arrived.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        from: &mut RecvStream,
        to: &mut SendStream,
    ) -> Poll<io::Result<()>> {
        for _ in 0..COPIES {
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            let here = ready!(from.poll_peek(context))?;
            if here.is_empty() {
                to.finish();
                self.is_over = true;
                continue;
            }
            let written = ready!(to.poll_write_pieces(context, &[IoSlice::new(here)]))?;
            from.consume(written);
            self.bytes += u64::try_from(written).unwrap_or(u64::MAX);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Joins two streams: what arrives on either is written to the other, until both have ended. The end of one is said to the other at
/// once, while the opposite direction goes on. Returns the bytes that went from `one` to `other`, and back.
///
/// Bytes are copied once, from one stream's buffer to the other's. Cancel safe but for the counts: dropping the future loses no
/// byte, and what was not copied can be read. So the copy may be started again.
///
/// # Errors
/// The first error of either stream: [`io::ErrorKind::ConnectionReset`] when it was given up or its connection is lost,
/// [`io::ErrorKind::BrokenPipe`] when its reader stopped it. Drop both then.
pub async fn copy_bidirectional(one: &mut Duplex, other: &mut Duplex) -> io::Result<(u64, u64)> {
    let ((one_recv, one_send), (other_recv, other_send)) = (one.split(), other.split());
    let (mut there, mut back) = (Way::default(), Way::default());
    poll_fn(|context| {
        let is_there = there.poll(context, one_recv, other_send)?;
        let is_back = back.poll(context, other_recv, one_send)?;
        if is_there.is_ready() && is_back.is_ready() {
            return Poll::Ready(Ok((there.bytes, back.bytes)));
        }
        Poll::Pending
    })
    .await
}
