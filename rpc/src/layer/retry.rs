//! Calls that failed are made again where that is safe: those that did not run always, those that may have run only
//! if their method is marked `#[idempotent]`.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::{Loan, LoanError, UserBytes};

use crate::{
    again::{Again, repeatable},
    channel::{Beside, CallOptions, Channel, Ticket},
    codec::Compose,
    memory::{Accessor, Handed},
    method::Method,
    response::Response,
    status::Fate,
};

/// How often [`Retry`] makes a call, and how long it waits between two attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// Attempts at most, the first one among them; 0 and 1: a call is made once. Default 5.
    pub attempts: u32,
    /// The wait before the second attempt. It doubles for each next one, and each is drawn between half of it and all of it. Default
    /// 5 ms.
    pub first: Duration,
    /// The longest wait. Default 500 ms.
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 5, first: Duration::from_millis(5), max: Duration::from_millis(500) }
    }
}

/// A channel that makes failed calls again, where that is safe and may help:
///
/// - A call that did not run is made again. One that may have run is made again only if its method is `#[idempotent]`.
/// - The failure is a connection that ended, a client with too many calls, or a status
///   [`Unavailable`](crate::Code::Unavailable) or [`ResourceExhausted`](crate::Code::ResourceExhausted).
/// - Attempts are left ([`RetryPolicy::attempts`]), and so is time: a deadline covers all attempts and the waits between them.
///
/// Otherwise the call ends with the last failure. Calls with loans or streams, and with arguments above 16 MiB, are made once.
/// The arguments of each other call are kept in a buffer of its own until it ends.
///
/// A wait between two attempts is a timer for a call that is awaited. [`Call::wait`](crate::Call::wait) sleeps on its thread. Cancel
/// safe, as every call is: dropping it cancels the attempt that is in flight, and no other follows.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let _server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-retry")?;
/// use gimmal::{CallOptions, Client, layer::{Retry, RetryPolicy}};
///
/// let channel = Retry::new(Client::connect("mem://doc-retry")?, RetryPolicy { attempts: 3, ..RetryPolicy::default() });
/// // During a restart, calls wait for the new server instead of failing at once.
/// let client = HelloClient::new(channel).with_options(CallOptions::default().wait_for_ready());
/// assert_eq!(client.hello("world".into()).wait()?, "Hello, world!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Retry<C> {
    channel: C,
    policy: RetryPolicy,
}

impl<C: Channel> Retry<C> {
    /// Repeats calls on `channel` as `policy` says.
    pub fn new(channel: C, policy: RetryPolicy) -> Self {
        Self { channel, policy }
    }
}

impl<C: Channel> Channel for Retry<C> {
    type Ticket = Retrying<C>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Retrying<C> {
        let waits = (self.policy.first, self.policy.max);
        let may_repeat = beside.is_nothing() && self.policy.attempts > 1;
        let again = may_repeat
            .then(|| Again::new(method, options, self.channel.default_timeout(), waits, arguments).ok())
            .flatten();
        let ticket = match &again {
            // Encoded once: the copy is what leaves.
            Some(again) => self.channel.start(method, options, Beside::default(), &again.body[..]),
            None => self.channel.start(method, options, beside, arguments),
        };
        let again = again.map(|again| Box::new((self.channel.clone(), again)));
        Retrying { ticket: Some(ticket), again, left: self.policy.attempts.saturating_sub(1), last: None }
    }

    fn drive(&self, idle: Duration) -> bool {
        self.channel.drive(idle)
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.channel.default_timeout()
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        self.channel.loan(bytes)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.channel.lend(bytes)
    }
}

impl<C: Accessor> Accessor for Retry<C> {
    fn hand_access(&self, handed: Handed) {
        self.channel.hand_access(handed);
    }
}

/// A call that may be made again.
#[derive(Debug)]
pub struct Retrying<C: Channel> {
    ticket: Option<C::Ticket>,
    again: Option<Box<(C, Again)>>,
    left: u32,
    last: Option<Response>,
}

// Nothing in it is pinned.
impl<C: Channel> Unpin for Retrying<C> {}

impl<C: Channel> Retrying<C> {
    /// Whether `response` is one that another attempt may follow.
    fn may_repeat(&self, response: &Response) -> bool {
        let Some(again) = self.again.as_ref().filter(|_| self.left > 0) else { return false };
        match repeatable(response) {
            Some(Fate::NotRun) => true,
            Some(Fate::MaybeRan) => again.1.method.is_idempotent,
            Some(Fate::Ran) | None => false,
        }
    }

    /// An attempt failed, and another may follow.
    fn failed(&mut self, response: Response) {
        (self.ticket, self.last) = (None, Some(response));
        self.left -= 1;
    }

    /// Makes the next attempt, if there is time for it.
    fn restart(&mut self) -> bool {
        let Some((channel, again)) = self.again.as_deref() else { return false };
        let options = again.options();
        self.ticket =
            options.map(|options| channel.start(again.method, &options, Beside::default(), &again.body[..]));
        self.ticket.is_some()
    }
}

impl<C: Channel> Ticket for Retrying<C> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        loop {
            if let Some(ticket) = &mut self.ticket {
                let Poll::Ready(response) = ticket.poll(context) else { return Poll::Pending };
                if !self.may_repeat(&response) {
                    return Poll::Ready(response);
                }
                self.failed(response);
                if let Some(again) = &mut self.again {
                    again.1.pause(context);
                }
            }
            let Some(again) = &mut self.again else { return Poll::Ready(Response::taken()) };
            if again.1.poll_rested(context).is_pending() {
                return Poll::Pending;
            }
            if !self.restart() {
                return Poll::Ready(self.last.take().unwrap_or_else(Response::taken));
            }
        }
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.ticket {
            // Calls with streams are made once.
            Some(ticket) if self.again.is_none() => ticket.poll_first(context),
            _ => self.poll(context),
        }
    }

    /// Each attempt is waited for as its channel does it: the caller's own turns may be what moves it.
    fn wait(&mut self) -> Response {
        loop {
            if let Some(ticket) = &mut self.ticket {
                let response = ticket.wait();
                if !self.may_repeat(&response) {
                    return response;
                }
                self.failed(response);
            }
            let Some(again) = &mut self.again else { return Response::taken() };
            again.1.rest();
            if !self.restart() {
                return self.last.take().unwrap_or_else(Response::taken);
            }
        }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if let Some(ticket) = &mut self.ticket {
            ticket.recycle(buffer);
        }
    }

    fn detach(&mut self) {
        self.ticket.iter_mut().for_each(Ticket::detach);
    }
}
