//! The traits of tokio, of the futures crates and of hyper, whose methods differ in names and in where bytes are put.

use crate::{Duplex, RecvStream, SendStream};

/// The half of a stream that a trait is about: of both halves, or of that half itself.
pub(crate) trait Half<T> {
    fn half(&mut self) -> &mut T;
}

impl<T> Half<T> for T {
    fn half(&mut self) -> &mut T {
        self
    }
}

impl Half<RecvStream> for Duplex {
    fn half(&mut self) -> &mut RecvStream {
        self.split().0
    }
}

impl Half<SendStream> for Duplex {
    fn half(&mut self) -> &mut SendStream {
        self.split().1
    }
}

/// Implements a trait of reading into a place with so much room, and what it says of the bytes that were read.
macro_rules! reads {
    ($of:ident for $type:ident: $out:pat_param, $place:ty, $room:expr, $put:expr, $said:expr, $read:ty) => {
        impl $of for $type {
            fn poll_read(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                $out: $place,
            ) -> Poll<io::Result<$read>> {
                let recv: &mut RecvStream = Half::half(&mut *self);
                recv.poll_take(context, $room, $put).map_ok($said)
            }
        }
    };
}

/// Implements a trait of reading in place.
macro_rules! fills {
    ($of:ident for $type:ident) => {
        impl $of for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                let recv: &mut RecvStream = Half::half(self.get_mut());
                recv.poll_peek(context)
            }

            fn consume(mut self: Pin<&mut Self>, bytes: usize) {
                let recv: &mut RecvStream = Half::half(&mut *self);
                recv.consume(bytes);
            }
        }
    };
}

/// Implements a trait of writing, whose last method is called `$end`, with `$more`.
macro_rules! writes {
    ($of:ident for $type:ident: $end:ident $(, $more:item)?) => {
        /// Neither a flush nor an end waits: the worker sends what was written, and an end finishes.
        /// [`SendStream::closed`](crate::SendStream::closed) waits.
        impl $of for $type {
            fn poll_write(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                let send: &mut SendStream = Half::half(&mut *self);
                send.poll_write_pieces(context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let send: &mut SendStream = Half::half(&mut *self);
                send.poll_write_pieces(context, pieces)
            }

            fn poll_flush(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn $end(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                let send: &mut SendStream = Half::half(&mut *self);
                send.finish();
                Poll::Ready(Ok(()))
            }

            $($more)?
        }
    };
}
