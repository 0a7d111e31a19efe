//! A second call beside one that is slow; the first answer counts and the other call is cancelled.

use std::{
    task::{Context, Poll, Waker},
    time::Duration,
};

use gimmal_engine::transport::{Instant, Loan, LoanError, UserBytes};

use crate::{
    again::{Again, repeatable},
    cell::block,
    channel::{Beside, CallOptions, Channel, SLEEP, Ticket},
    codec::Compose,
    here,
    memory::{Accessor, Handed},
    method::Method,
    response::Response,
    timer::Alarm,
};

/// A channel that makes a call a second time when its answer takes longer than `after`, if its method is `#[idempotent]`. The
/// first answer counts, and the other call is cancelled. A failure counts only when the other call cannot do better.
///
/// It is of use around a channel over several servers. Both calls share one deadline. Calls with loans or streams, and with
/// arguments above 16 MiB, are made once, and so is a call that is waited for on the thread of a worker.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let _server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-hedge")?;
/// use std::time::Duration;
///
/// use gimmal::{balance::Balanced, layer::Hedge};
///
/// let servers = vec!["mem://doc-hedge".to_owned()]; // of use with several
/// let channel = Hedge::new(Balanced::builder().connect(servers)?, Duration::from_millis(20));
/// assert_eq!(HelloClient::new(channel).hello("world".into()).wait()?, "Hello, world!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Hedge<C> {
    channel: C,
    after: Duration,
}

impl<C: Channel> Hedge<C> {
    /// Makes slow calls on `channel` twice. `after` is best a little above the usual time of an answer.
    pub fn new(channel: C, after: Duration) -> Self {
        Self { channel, after }
    }
}

impl<C: Channel> Channel for Hedge<C> {
    type Ticket = Hedged<C>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Hedged<C> {
        let mut spare = None;
        if beside.is_nothing() && method.is_idempotent {
            let again = Again::new(
                method,
                options,
                self.channel.default_timeout(),
                (self.after, self.after),
                arguments,
            );
            let at = Instant::now() + self.after;
            spare = again.ok().map(|again| Box::new(Spare { again, at, alarm: None }));
        }
        let first = match &spare {
            Some(spare) => self.channel.start(method, options, Beside::default(), &spare.again.body[..]),
            None => self.channel.start(method, options, beside, arguments),
        };
        let channel = spare.is_some().then(|| self.channel.clone());
        Hedged { tickets: [Some(first), None], channel, spare }
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

impl<C: Accessor> Accessor for Hedge<C> {
    fn hand_access(&self, handed: Handed) {
        self.channel.hand_access(handed);
    }
}

/// The second call, not yet made.
#[derive(Debug)]
struct Spare {
    again: Again,
    at: Instant,
    alarm: Option<Alarm>,
}

/// A call that may be made twice.
#[derive(Debug)]
pub struct Hedged<C: Channel> {
    tickets: [Option<C::Ticket>; 2],
    /// Of a call that may be made twice.
    channel: Option<C>,
    spare: Option<Box<Spare>>,
}

// Nothing in it is pinned.
impl<C: Channel> Unpin for Hedged<C> {}

impl<C: Channel> Hedged<C> {
    /// What either came to: a failure counts only when the other cannot do better.
    fn poll_both(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        for at in 0..2 {
            let Some(ticket) = &mut self.tickets[at] else { continue };
            let Poll::Ready(response) = ticket.poll(context) else { continue };
            let other = self.tickets[1 - at].is_some();
            if !other || repeatable(&response).is_none() {
                // The other is cancelled.
                self.tickets[1 - at] = None;
                self.spare = None;
                return Poll::Ready(response);
            }
            self.tickets[at] = None;
        }
        Poll::Pending
    }

    /// Waits on a worker's thread, which may be the one that would have to bring the answer: each call's own wait knows. It blocks, so
    /// no second call is made.
    #[cold]
    fn wait_on_worker(&mut self) -> Response {
        let mut response = Response::taken();
        for ticket in self.tickets.iter_mut().flatten() {
            response = ticket.wait();
            if repeatable(&response).is_none() {
                break;
            }
        }
        response
    }
}

impl<C: Channel> Ticket for Hedged<C> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        if let Poll::Ready(response) = self.poll_both(context) {
            return Poll::Ready(response);
        }
        let Some(spare) = &mut self.spare else { return Poll::Pending };
        if Instant::now() < spare.at {
            spare.alarm = Some(Alarm::new(spare.at, context.waker()));
            return Poll::Pending;
        }
        let Some(spare) = self.spare.take() else { return Poll::Pending };
        if let Some((options, channel)) = spare.again.options().zip(self.channel.as_ref()) {
            let second =
                channel.start(spare.again.method, &options, Beside::default(), &spare.again.body[..]);
            let free = usize::from(self.tickets[0].is_some());
            self.tickets[free] = Some(second);
        }
        self.poll_both(context)
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.tickets {
            // Calls with streams are made once.
            [Some(only), None] if self.channel.is_none() => only.poll_first(context),
            _ => self.poll(context),
        }
    }

    fn wait(&mut self) -> Response {
        let Some(channel) = self.channel.clone() else {
            // Made once.
            return self.tickets.iter_mut().flatten().next().map_or_else(Response::taken, Ticket::wait);
        };
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(response) = self.poll(&mut context) {
                return response;
            }
            let idle =
                self.spare.as_ref().map_or(SLEEP, |spare| spare.at.remaining().max(Duration::from_nanos(1)));
            if !channel.drive(idle) {
                if here::is_worker() {
                    return self.wait_on_worker();
                }
                return block(|context| self.poll(&mut Context::from_waker(context.waker())));
            }
        }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if let Some(ticket) = self.tickets.iter_mut().flatten().next() {
            ticket.recycle(buffer);
        }
    }

    fn detach(&mut self) {
        self.tickets.iter_mut().flatten().for_each(Ticket::detach);
    }
}
