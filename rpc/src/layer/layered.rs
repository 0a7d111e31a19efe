//! A look at every call before it starts and after it ended.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::{Loan, LoanError, UserBytes};

use crate::{
    cell::Outcome,
    channel::{CallOptions, Channel, Ticket},
    codec::Compose,
    error::TransportError,
    method::Method,
    status::{Fate, Status},
    stream::Lanes,
};

/// What is done before a call starts and after it ended. Neither may block: both run on the caller's thread or task.
pub trait Layer: Clone {
    /// What is kept while the call is under way. It is dropped with a call that is cancelled.
    type Seen;

    /// Before the call starts. May change its options.
    ///
    /// # Errors
    /// The call ends with this status, and was not made.
    fn before(&self, method: &'static Method, options: &mut CallOptions) -> Result<Self::Seen, Status>;

    /// After it ended, with whatever outcome.
    fn after(&self, method: &'static Method, seen: Self::Seen, outcome: &Outcome) {
        let _ = (method, seen, outcome);
    }
}

/// A channel with a [`Layer`] around it.
#[derive(Clone, Debug)]
pub struct Layered<C, L> {
    channel: C,
    layer: L,
}

impl<C: Channel, L: Layer> Layered<C, L> {
    /// `layer` around `channel`.
    pub fn new(channel: C, layer: L) -> Self {
        Self { channel, layer }
    }

    fn begin(
        &self,
        method: &'static Method,
        options: &CallOptions,
        start: impl FnOnce(&CallOptions) -> C::Ticket,
    ) -> Watched<C::Ticket, L> {
        let mut options = options.clone();
        let (state, ticket) = match self.layer.before(method, &mut options) {
            Ok(seen) => (State::Seen(seen), Some(start(&options))),
            Err(status) => (State::Refused(status), None),
        };
        Watched { layer: self.layer.clone(), method, state, ticket }
    }
}

impl<C: Channel, L: Layer> Channel for Layered<C, L> {
    type Ticket = Watched<C::Ticket, L>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        loan: Option<Loan>,
        arguments: &A,
    ) -> Self::Ticket {
        self.begin(method, options, |options| self.channel.start(method, options, loan, arguments))
    }

    fn start_streams<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        lanes: Lanes,
        arguments: &A,
    ) -> Self::Ticket {
        self.begin(method, options, |options| self.channel.start_streams(method, options, lanes, arguments))
    }

    fn drive(&self, idle: Duration) -> bool {
        self.channel.drive(idle)
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        self.channel.loan(bytes)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.channel.lend(bytes)
    }
}

enum State<S> {
    Seen(S),
    Refused(Status),
    Over,
}

/// A call under a [`Layer`].
pub struct Watched<T, L: Layer> {
    layer: L,
    method: &'static Method,
    state: State<L::Seen>,
    ticket: Option<T>,
}

impl<T, L: Layer> fmt::Debug for Watched<T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.method)
    }
}

// Nothing in it is pinned.
impl<T, L: Layer> Unpin for Watched<T, L> {}

impl<T: Ticket, L: Layer> Watched<T, L> {
    fn ended(&mut self, outcome: Outcome) -> Outcome {
        if let State::Seen(seen) = std::mem::replace(&mut self.state, State::Over) {
            self.layer.after(self.method, seen, outcome.plain());
        }
        outcome
    }

    fn unmade(&mut self) -> Outcome {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Refused(status) => Outcome::Status(status),
            _ => {
                let why = "the outcome was taken already";
                Outcome::Failed(TransportError::Worker { why, fate: Fate::MaybeRan })
            }
        }
    }
}

impl<T: Ticket, L: Layer> Ticket for Watched<T, L> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.ticket {
            None => Poll::Ready(self.unmade()),
            Some(ticket) => match ticket.poll(context) {
                Poll::Ready(outcome) => Poll::Ready(self.ended(outcome)),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn wait(&mut self) -> Outcome {
        match &mut self.ticket {
            None => self.unmade(),
            Some(ticket) => {
                let outcome = ticket.wait();
                self.ended(outcome)
            }
        }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if let Some(ticket) = &mut self.ticket {
            ticket.recycle(buffer);
        }
    }
}
