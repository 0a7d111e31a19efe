//! The streams as connections of hyper, without an adapter.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};

use crate::{Duplex, RecvStream, SendStream, traits::Half};

reads!(Read for Duplex: mut out, ReadBufCursor<'_>, out.remaining(), |bytes| out.put_slice(bytes), drop, ());
writes!(Write for Duplex: poll_shutdown, fn is_write_vectored(&self) -> bool { true });
