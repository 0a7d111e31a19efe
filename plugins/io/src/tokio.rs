//! The streams as those of tokio.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::{Duplex, RecvStream, SendStream, traits::Half};

macro_rules! all {
    ($recv:ident $send:ident) => {
        reads!(AsyncRead for $recv: out, &mut ReadBuf<'_>, out.remaining(), |bytes| out.put_slice(bytes), drop, ());
        fills!(AsyncBufRead for $recv);
        writes!(AsyncWrite for $send: poll_shutdown, fn is_write_vectored(&self) -> bool { true });
    };
}

all!(RecvStream SendStream);
all!(Duplex Duplex);
