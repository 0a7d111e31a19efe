//! A handler's future and, when it is done, its answer: one allocation for both.

use std::{
    any::Any,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use gimmal_engine::transport::Loan;
use pin_project_lite::pin_project;

use crate::{
    codec::{Codec, Decode, Encode, EncodeError},
    output::Output,
    status::{Code, Status},
    stream::{Lane, Sink, Stream, Woken},
};

/// A handler that runs, or its answer that waits to leave.
pub trait Task: Send {
    /// Runs the handler; after `Ready` the answer is there and this is not called again.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()>;

    /// Whether the answer is the method's error. Meaningful when ready.
    fn is_error(self: Pin<&mut Self>) -> bool;

    /// Writes the answer; may be asked again with more room.
    ///
    /// # Errors
    /// See [`EncodeError`].
    fn encode(self: Pin<&mut Self>, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// See [`Encode::encoded_bytes`].
    fn encoded_bytes(self: Pin<&mut Self>) -> Option<usize>;

    /// The bulk that goes with the answer, once.
    fn take_loan(self: Pin<&mut Self>) -> Option<Loan>;

    /// Drops the answer, which has left.
    fn clear(self: Pin<&mut Self>);

    /// Starts over with the future in `next`, an `Option` of the same type of future; whether it was that.
    fn refill(self: Pin<&mut Self>, next: &mut dyn Any) -> bool;
}

/// A task in its allocation.
pub type BoxTask = Pin<Box<dyn Task>>;

pin_project! {
    struct Handler<F, O, C> {
        #[pin]
        future: Option<F>,
        output: Option<O>,
        codec: PhantomData<fn() -> C>,
    }
}

fn no_stream() -> Status {
    Status::refused(Code::Internal, "a stream that its method does not have")
}

/// Where a handler's future is put: into the box of an earlier call of the same method, if there is one.
#[derive(Default)]
pub struct Seat {
    task: Option<BoxTask>,
    /// Of the handler that is made next.
    pub(crate) up: Option<Arc<Lane>>,
    pub(crate) down: Option<Arc<Lane>>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", if self.task.is_some() { "a task" } else { "empty" })
    }
}

impl Seat {
    /// Puts a handler's future in, whose output codec `C` writes.
    #[inline]
    pub fn put<C, F>(&mut self, future: F)
    where
        C: Codec,
        F: Future<Output: Output<C> + 'static> + Send + 'static,
    {
        let mut next = Some(future);
        if !self.task.as_mut().is_some_and(|task| task.as_mut().refill(&mut next)) {
            self.task =
                Some(Box::pin(Handler { future: next, output: None, codec: PhantomData::<fn() -> C> }));
        }
    }

    /// The handler's end of the stream that the caller sends.
    ///
    /// # Errors
    /// The method has none.
    pub fn stream<D: for<'a> Decode<'a, T>, T>(&mut self) -> Result<Stream<T>, Status> {
        self.up.take().map(|lane| Stream::new::<D>(lane, Woken)).ok_or_else(no_stream)
    }

    /// The handler's end of the stream that it sends.
    ///
    /// # Errors
    /// The method has none.
    pub fn sink<E: Encode<T>, T>(&mut self) -> Result<Sink<T>, Status> {
        self.down.take().map(|lane| Sink::new::<E>(lane, Woken)).ok_or_else(no_stream)
    }

    #[inline]
    pub(crate) fn task(&mut self) -> Option<&mut BoxTask> {
        self.task.as_mut()
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<BoxTask> {
        self.task.take()
    }

    /// Keeps the box of a task whose answer has left.
    #[inline]
    pub(crate) fn give(&mut self, task: BoxTask) {
        self.task = Some(task);
    }
}

impl<F, O, C> Task for Handler<F, O, C>
where
    F: Future<Output = O> + Send + 'static,
    O: Output<C>,
{
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            return Poll::Ready(());
        };
        match future.poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(output) => {
                *this.output = Some(output);
                // What the handler borrowed and held goes now, not when the answer has left.
                this.future.set(None);
                Poll::Ready(())
            }
        }
    }

    fn is_error(self: Pin<&mut Self>) -> bool {
        self.project().output.as_ref().is_some_and(Output::is_error)
    }

    fn encode(self: Pin<&mut Self>, out: &mut [u8]) -> Result<usize, EncodeError> {
        self.project().output.as_ref().map_or(Ok(0), |output| output.encode(out))
    }

    fn encoded_bytes(self: Pin<&mut Self>) -> Option<usize> {
        self.project().output.as_ref().and_then(Output::encoded_bytes)
    }

    fn take_loan(self: Pin<&mut Self>) -> Option<Loan> {
        self.project().output.as_mut().and_then(Output::take_loan)
    }

    fn clear(self: Pin<&mut Self>) {
        let mut this = self.project();
        *this.output = None;
        this.future.set(None);
    }

    fn refill(self: Pin<&mut Self>, next: &mut dyn Any) -> bool {
        let Some(next) = next.downcast_mut::<Option<F>>() else { return false };
        let mut this = self.project();
        *this.output = None;
        this.future.set(next.take());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{
        codec::Postcard,
        output::{Fallible, Plain},
    };

    #[test]
    fn a_task_keeps_its_answer_until_it_is_encoded() {
        let mut seat = Seat::default();
        seat.put::<Postcard, _>(async { Fallible::<_, u8>(Ok(Plain(300u32))) });
        let mut task = seat.take().unwrap();
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(!task.as_mut().is_error());
        assert_eq!(task.as_mut().encode(&mut [0; 1]), Err(EncodeError::Full));
        let mut out = [0; 4];
        assert_eq!(task.as_mut().encode(&mut out), Ok(2));
        assert_eq!(out[..2], [0xac, 0x02]);
        assert!(task.as_mut().take_loan().is_none());
    }

    #[test]
    fn an_error_is_an_answer() {
        let mut seat = Seat::default();
        seat.put::<Postcard, _>(async { Fallible::<Plain<()>, _>(Err(7u8)) });
        let mut task = seat.take().unwrap();
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(task.as_mut().is_error());
        assert_eq!(task.as_mut().encode(&mut [0; 1]), Ok(1));
    }
    #[test]
    fn a_box_is_used_again_by_the_same_future_only() {
        async fn double(value: u8) -> Plain<u8> {
            Plain(value * 2)
        }
        let mut seat = Seat::default();
        let mut place = std::ptr::null::<()>();
        for value in [1, 2] {
            seat.put::<Postcard, _>(double(value));
            let mut task = seat.take().unwrap();
            let here = std::ptr::from_ref(&*task).cast::<()>();
            assert!(place.is_null() || place == here);
            place = here;
            assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
            let mut out = [0; 1];
            assert_eq!((task.as_mut().encode(&mut out), out), (Ok(1), [value * 2]));
            task.as_mut().clear();
            seat.give(task);
        }
        seat.put::<Postcard, _>(async { Plain(7u8) });
        let mut task = seat.take().unwrap();
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(task.as_mut().encode(&mut [0; 1]), Ok(1));
    }
}
