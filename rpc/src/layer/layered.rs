//! A look at every call before it starts and after it ended.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::{Loan, LoanError, UserBytes};

use crate::{
    channel::{Beside, CallOptions, Channel, Ticket},
    codec::Compose,
    memory::{Accessor, Handed},
    method::Method,
    response::Response,
    status::Status,
};

/// What is done before a call starts and after it ended, for clients: [`Layered`] puts it around a channel. Neither may block,
/// since both run on the caller's thread or task. Of several layers the outermost is first before a call, and last after it.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let _server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-layer")?;
/// use gimmal::{CallOptions, Client, Code, Method, Status, layer::{Layer, Layered}}; // `gimmal::info::Method`
///
/// /// Makes only calls that may be repeated.
/// #[derive(Clone)]
/// struct Harmless;
///
/// impl Layer for Harmless {
///     type Seen = ();
///
///     fn before(&self, method: &'static Method, _: &mut CallOptions) -> Result<(), Status> {
///         match method.is_idempotent {
///             true => Ok(()),
///             false => Err(Status::refused(Code::FailedPrecondition, "this client only reads")),
///         }
///     }
/// }
///
/// let client = HelloClient::new(Layered::new(Client::connect("mem://doc-layer")?, Harmless));
/// assert_eq!(client.hello("Ada".into()).wait()?, "Hello, Ada!"); // `hello` is `#[idempotent]`
/// # Ok(())
/// # }
/// ```
pub trait Layer: Clone {
    /// What is kept while the call is in flight. It is dropped with a call that is cancelled, or goes on without its caller.
    type Seen;

    /// Runs before the call starts, and may change its options.
    ///
    /// # Errors
    /// The call ends with this status, and was not made. Make it with [`Status::refused`], so that its fate says so.
    fn before(&self, method: &'static Method, options: &mut CallOptions) -> Result<Self::Seen, Status>;

    /// Runs after the call has ended, in whatever way. A call that was dropped, or detached, is not seen here. By default does
    /// nothing.
    fn after(&self, method: &'static Method, seen: Self::Seen, response: &Response) {
        let _ = (method, seen, response);
    }
}

/// A channel with a [`Layer`] around it, which is a channel.
#[derive(Clone, Debug)]
pub struct Layered<C, L> {
    channel: C,
    layer: L,
}

impl<C: Channel, L: Layer> Layered<C, L> {
    /// Puts `layer` around `channel`.
    pub fn new(channel: C, layer: L) -> Self {
        Self { channel, layer }
    }
}

impl<C: Channel, L: Layer> Channel for Layered<C, L> {
    type Ticket = Watched<C::Ticket, L>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Self::Ticket {
        let mut options = options.clone();
        let (state, ticket) = match self.layer.before(method, &mut options) {
            Ok(seen) => (State::Seen(seen), Some(self.channel.start(method, &options, beside, arguments))),
            Err(status) => (State::Refused(status), None),
        };
        Watched { layer: self.layer.clone(), method, state, ticket }
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

impl<C: Accessor, L: Layer> Accessor for Layered<C, L> {
    fn hand_access(&self, handed: Handed) {
        self.channel.hand_access(handed);
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
    fn ended(&mut self, response: Response) -> Response {
        if let State::Seen(seen) = std::mem::replace(&mut self.state, State::Over) {
            self.layer.after(self.method, seen, &response);
        }
        response
    }

    fn unmade(&mut self) -> Response {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Refused(status) => status.into(),
            _ => Response::taken(),
        }
    }
}

impl<T: Ticket, L: Layer> Ticket for Watched<T, L> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.ticket {
            None => Poll::Ready(self.unmade()),
            Some(ticket) => match ticket.poll(context) {
                Poll::Ready(response) => Poll::Ready(self.ended(response)),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let Some(ticket) = &mut self.ticket else { return Poll::Ready(self.unmade()) };
        match ticket.poll_first(context) {
            Poll::Ready(response) if !response.has_begun() => Poll::Ready(self.ended(response)),
            polled => polled,
        }
    }

    fn wait(&mut self) -> Response {
        match &mut self.ticket {
            None => self.unmade(),
            Some(ticket) => {
                let response = ticket.wait();
                self.ended(response)
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
