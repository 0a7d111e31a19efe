//! The streams as those of the futures crates.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use crate::{Duplex, Incoming, RecvStream, SendStream, traits::Half};

/// Copies `bytes` of a stream.
fn put(out: &mut [u8], bytes: &[u8]) {
    out[..bytes.len()].copy_from_slice(bytes); // bytes of a stream
}

macro_rules! all {
    ($recv:ident $send:ident) => {
        reads!(AsyncRead for $recv: out, &mut [u8], out.len(), |bytes| put(out, bytes), |bytes| bytes, usize);
        fills!(AsyncBufRead for $recv);
        writes!(AsyncWrite for $send: poll_close);
    };
}

all!(RecvStream SendStream);
all!(Duplex Duplex);

/// The streams that clients open, with their names.
impl Stream for Incoming {
    type Item = (String, Duplex);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(context)
    }
}
