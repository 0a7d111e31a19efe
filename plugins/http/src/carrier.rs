//! What carries requests: clients of gimmal whose calls move by themselves.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
};

use gimmal_rpc::{Channel, channel::Ticket as _, response::Response};
use tokio::sync::oneshot;

/// The end of a call, once its response has begun.
pub type End = Pin<Box<dyn Future<Output = Option<Response>> + Send>>;

/// A client that requests of HTTP can go over: [`gimmal::Client`], whose worker moves its calls, and
/// [`gimmal::tokio::LocalClient`], for which a task of the runtime does.
pub trait Carrier: Channel {
    /// Returns whether there is a connection that takes calls, as far as this side knows.
    fn is_ready(&self) -> bool;

    /// Returns how many bytes a message may have on the connection; 0 before the first.
    fn message_bytes_max(&self) -> usize;

    /// Makes the rest of a call a future of any thread; `None` comes out of it when the call's own thread has ended.
    fn end(ticket: Self::Ticket) -> End;
}

/// Starts tasks, for bodies that are still being written when their request has left.
pub trait Spawn<F> {
    /// Runs `task` beside the caller.
    fn spawn(&self, task: F);
}

impl Carrier for gimmal::Client {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn message_bytes_max(&self) -> usize {
        Self::message_bytes_max(self)
    }

    fn end(mut ticket: Self::Ticket) -> End {
        Box::pin(poll_fn(move |context| ticket.poll(context).map(Some)))
    }
}

impl<F: Future<Output = ()> + Send + 'static> Spawn<F> for gimmal::Client {
    fn spawn(&self, task: F) {
        drop(tokio::spawn(task));
    }
}

impl Carrier for gimmal::tokio::LocalClient {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn message_bytes_max(&self) -> usize {
        Self::message_bytes_max(self)
    }

    fn end(mut ticket: Self::Ticket) -> End {
        let (mut sender, receiver) = oneshot::channel();
        drop(tokio::task::spawn_local(async move {
            let ended = poll_fn(|context| ticket.poll(context));
            tokio::select! {
                response = ended => drop(sender.send(response)),
                () = sender.closed() => {}
            }
        }));
        Box::pin(async move { receiver.await.ok() })
    }
}

impl<F: Future<Output = ()> + 'static> Spawn<F> for gimmal::tokio::LocalClient {
    fn spawn(&self, task: F) {
        drop(tokio::task::spawn_local(task));
    }
}
