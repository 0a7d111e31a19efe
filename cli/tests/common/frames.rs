//! A body of HTTP that a test sends.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};

/// A body of some frames of data, which counts those that were taken. Nobody knows before its end how long it is.
#[derive(Default)]
pub(crate) struct Frames {
    pub(crate) frames: usize,
    /// Of each frame; all of them are 7.
    pub(crate) bytes: usize,
    pub(crate) is_endless: bool,
    pub(crate) taken: Arc<AtomicUsize>,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.frames == 0 {
            return if self.is_endless { Poll::Pending } else { Poll::Ready(None) };
        }
        self.frames -= 1;
        self.taken.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![7; self.bytes])))))
    }
}
