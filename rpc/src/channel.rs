//! What a generated client calls through, and the call it gets.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::{Bulk, Loan, LoanError, UserBytes};

use crate::{
    codec::{Codec, Compose, Decode, DecodeError},
    error::CallError,
    metadata::{Metadata, TRACEPARENT, TRACESTATE},
    method::Method,
    output::{Fallible, Plain, WithLoan},
    response::{Body, Response, ResponseStatus},
    stream::{Streams, Tie},
};

/// How long a call may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Deadline {
    /// As the client's configuration says.
    #[default]
    Default,
    /// This long from the start of the call.
    In(Duration),
    /// As long as it takes.
    Never,
}

/// Options of a call: how long it may take, whether it waits for a connection, and its metadata.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// # use gimmal::Cx;
/// # #[gimmal::service(crate = gimmal_rpc)]
/// # trait Hello { async fn hello(&self, cx: &Cx, name: String) -> String; }
/// # struct Greeter;
/// # impl Hello for Greeter { async fn hello(&self, _: &Cx, name: String) -> String { format!("Hello, {name}!") } }
/// use std::time::Duration;
///
/// use gimmal::{CallOptions, Client};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-options")?;
/// let client = HelloClient::new(Client::builder().connect("mem://doc-options")?);
/// let patient = client.with_options(CallOptions::default().timeout(Duration::from_secs(60)));
/// assert_eq!(patient.hello("Ada".into()).wait()?, "Hello, Ada!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// How long it may take.
    pub(crate) deadline: Deadline,
    /// Whether the call waits for a connection when there is none, instead of failing at once (not run). Calls with
    /// loans or streams do not wait.
    pub wait_for_ready: bool,
    /// Pairs that the handler reads with [`Cx::metadata`](crate::Cx::metadata). One-way requests carry none.
    pub metadata: Option<Arc<Metadata>>,
    /// What [`CallOptions::within`] found to be left, which no other call lengthens.
    left: Option<Duration>,
}

impl CallOptions {
    /// Ends the call after `timeout`, counted from its start, in place of [`Config::deadline`](crate::Config::deadline). `None`: it
    /// takes as long as it takes, as calls with streams do anyway. It ends earlier where [`within`](CallOptions::within) says so.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.deadline = timeout.into().map_or(Deadline::Never, Deadline::In);
        match self.left {
            Some(left) => self.timeout_at_most(left),
            None => self,
        }
    }

    /// Ends the call after `limit` at the latest; a shorter time-out that was set before stays.
    pub(crate) fn timeout_at_most(mut self, limit: Duration) -> Self {
        self.deadline = Deadline::In(match self.deadline {
            Deadline::In(timeout) => timeout.min(limit),
            Deadline::Default | Deadline::Never => limit,
        });
        self
    }

    /// Waits for a connection, within the deadline, instead of failing at once when there is none. Calls with streams or loans
    /// do not wait: make them again.
    #[must_use]
    pub const fn wait_for_ready(mut self) -> Self {
        self.wait_for_ready = true;
        self
    }

    /// Sends `metadata` with the call, in place of what was set before; a trace context stays, unless `metadata` has
    /// one.
    #[must_use]
    pub fn metadata(mut self, metadata: Metadata) -> Self {
        let before = self.metadata.replace(Arc::new(metadata));
        if let Some(before) = before {
            self.trace(&before);
        }
        self.metadata = self.metadata.filter(|metadata| !metadata.is_empty());
        self
    }

    /// What goes with a call of `method`.
    #[inline]
    pub(crate) fn noted(&self, method: &Method) -> Option<&Metadata> {
        self.metadata.as_deref().filter(|_| !method.is_oneway)
    }

    /// Hands trace context on, where it was not set.
    fn trace(&mut self, theirs: &Metadata) {
        if theirs.get(TRACEPARENT).is_none()
            || self.metadata.as_ref().is_some_and(|ours| ours.get(TRACEPARENT).is_some())
        {
            return;
        }
        let mut ours = self.metadata.as_deref().cloned().unwrap_or_default();
        for key in [TRACEPARENT, TRACESTATE] {
            if let Some(value) = theirs.get(key) {
                // Without room for it the call goes without it.
                let _ = ours.insert(key, value);
            }
        }
        self.metadata = Some(Arc::new(ours));
    }

    pub(crate) fn inherit(mut self, theirs: Option<&Metadata>, left: Option<Duration>) -> Self {
        if let Some(theirs) = theirs {
            self.trace(theirs);
        }
        if let Some(left) = left {
            self.left = Some(self.left.map_or(left, |before| before.min(left)));
            self = self.timeout_at_most(left);
        }
        self
    }

    /// How long a call of a method with streams may take: as long as it takes, where nothing else was said. Streams are read and
    /// written at their users' pace.
    pub(crate) fn resolve_streams<T: From<Option<Duration>>>(&self) -> T {
        self.resolve(None.into())
    }

    /// How long the call may take, where the configuration says `default`.
    #[inline]
    pub(crate) fn resolve<T: From<Option<Duration>>>(&self, default: T) -> T {
        match self.deadline {
            Deadline::Default => default,
            Deadline::In(timeout) => Some(timeout).into(),
            Deadline::Never => None.into(),
        }
    }
}

/// The longest sleep of a thread that waits for an answer, or for an item of a stream; a deadline wakes it earlier.
pub(crate) const SLEEP: Duration = Duration::from_secs(1);

/// What goes with a call beside its arguments: a loan, or the worker's ends of its streams, or nothing.
#[derive(Default, Debug)]
pub struct Beside {
    pub(crate) loan: Option<Loan>,
    pub(crate) streams: Option<Streams>,
}

impl Beside {
    /// Whether the call has its arguments alone, so that it can be made again.
    #[inline]
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.loan.is_none() && self.streams.is_none()
    }
}

impl From<Option<Loan>> for Beside {
    #[inline]
    fn from(loan: Option<Loan>) -> Self {
        Self { loan, streams: None }
    }
}

/// A way to make calls: [`Client`](crate::Client), [`LocalClient`](crate::LocalClient), and what [layers](crate::layer) and
/// [`Balanced`](crate::balance::Balanced) make of them. A generated client is generic over its channel.
pub trait Channel: Clone {
    /// A call in flight, which a [`Call`] is made of.
    type Ticket: Ticket;

    /// Starts a call. Never waits for the peer, and never fails here: the ticket tells. A channel around another hands `beside` on.
    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> Self::Ticket;

    /// How long a call may take whose options say nothing; `None`: no limit, or not known. A channel around another hands it on.
    fn default_timeout(&self) -> Option<Duration>;

    /// Where calls move by the caller's own turns: one turn, which idles at most for `idle` when nothing was to do. `false`
    /// where a worker moves them. A channel around another hands it on.
    fn drive(&self, idle: Duration) -> bool;

    /// Returns registered memory of `bytes`, to be sent as an argument of a call on the same connection. A call of another client
    /// ends with [`TransportError::ForeignLoan`](crate::TransportError::ForeignLoan), not run. It may hold bytes of an earlier
    /// [loan](Loan): write all of it. Takes locks, and may map and register memory.
    ///
    /// A loan has at most [`bulk_bytes_max`](gimmal_engine::transport::PortConfig::bulk_bytes_max) (1 GiB). The loans of a connection,
    /// and what was pulled for it, have at most [`loan_bytes_max`](gimmal_engine::transport::PortConfig::loan_bytes_max) (4 GiB). A
    /// loan counts until the peer is done with it, or it is dropped unsent.
    ///
    /// # Errors
    /// [`LoanError::TooLarge`] above the first limit, [`LoanError::Port`] above the second or when there is no memory,
    /// [`LoanError::Closed`] without a connection. [`Balanced`](crate::Balanced) always fails.
    fn loan(&self, bytes: usize) -> Result<Loan, LoanError>;

    /// Lends memory of the user's, to be sent as an argument of a call on the same connection. Over RDMA it is registered as it lies,
    /// which may take long the first time, and stays so for the next time. Elsewhere it is copied once.
    ///
    /// # Errors
    /// Those of [`Channel::loan`]; [`LoanError::Port`] also when the memory cannot be registered.
    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError>;

    /// Starts a call of a raw method with the default options, by hand: no macro, no codec. Does not block.
    #[inline]
    fn call_raw(&self, method: &'static Method, request: &[u8]) -> RawCall<Self> {
        self.call_raw_with(method, &CallOptions::default(), request)
    }

    /// Starts a call of a raw method with `options`, by hand: no macro, no codec. Does not block.
    #[inline]
    fn call_raw_with(&self, method: &'static Method, options: &CallOptions, request: &[u8]) -> RawCall<Self> {
        Call::new(self.start(method, options, Beside::default(), request))
    }
}

/// A call in flight, not yet decoded. Dropping it cancels the call.
///
/// What a ticket around another must hand on has no default, so that none is forgotten.
pub trait Ticket: Unpin {
    /// Returns how the call ended, once.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response>;

    /// As [`Ticket::poll`], of a call with [`Beside::down_later`]: when an item comes before the answer, returns the stream
    /// ([`ResponseStatus::Begun`]), and the ticket has the answer still. A ticket around another hands it on.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response>;

    /// Blocks until the call ended.
    fn wait(&mut self) -> Response;

    /// Blocks until the call ended. A value that is only bytes may be shown to `visit` where it landed: nothing is returned
    /// then. `visit` runs once at most, and must not use the channel.
    fn wait_in_place(&mut self, visit: &mut dyn FnMut(&[u8])) -> Option<Response> {
        let _ = visit;
        Some(self.wait())
    }

    /// Takes back a buffer that a response brought.
    fn recycle(&mut self, buffer: Vec<u8>);

    /// Lets the call go on when this is dropped, where that is possible. A ticket around another hands it on.
    fn detach(&mut self);
}

/// What a method's result is on the caller's side; implemented by the macro's spelling of results.
pub trait Received<D> {
    /// The answer.
    type Value;
    /// The method's error.
    type Error;

    /// Decodes an answer.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn value(body: &[u8], bulk: Option<Bulk>) -> Result<Self::Value, DecodeError>;

    /// Decodes the method's error.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn error(body: &[u8]) -> Result<Self::Error, DecodeError>;
}

pub(crate) fn no_error() -> Result<Infallible, DecodeError> {
    Err(DecodeError::new("an error, of a method that has none"))
}

impl<T, D: for<'a> Decode<'a, T>> Received<D> for Plain<T> {
    type Value = T;
    type Error = Infallible;

    #[inline]
    fn value(body: &[u8], _: Option<Bulk>) -> Result<T, DecodeError> {
        D::decode(body)
    }

    fn error(_: &[u8]) -> Result<Infallible, DecodeError> {
        no_error()
    }
}

/// The result of a one-way call: its request left.
#[derive(Debug)]
pub struct OneWay;

impl<D> Received<D> for OneWay {
    type Value = ();
    type Error = Infallible;

    fn value(_: &[u8], _: Option<Bulk>) -> Result<(), DecodeError> {
        Ok(())
    }

    fn error(_: &[u8]) -> Result<Infallible, DecodeError> {
        no_error()
    }
}

impl<T, D: for<'a> Decode<'a, T>> Received<D> for WithLoan<T> {
    type Value = WithLoan<T, Bulk>;
    type Error = Infallible;

    fn value(body: &[u8], bulk: Option<Bulk>) -> Result<WithLoan<T, Bulk>, DecodeError> {
        Ok(WithLoan { value: D::decode(body)?, loan: bulk })
    }

    fn error(_: &[u8]) -> Result<Infallible, DecodeError> {
        no_error()
    }
}

impl<O: Received<D>, E, D: for<'a> Decode<'a, E>> Received<D> for Fallible<O, E> {
    type Value = O::Value;
    type Error = E;

    #[inline]
    fn value(body: &[u8], bulk: Option<Bulk>) -> Result<O::Value, DecodeError> {
        O::value(body, bulk)
    }

    fn error(body: &[u8]) -> Result<E, DecodeError> {
        D::decode(body)
    }
}

/// A call in flight: a future of any runtime, or [`wait`](Call::wait) for the answer. It has started before it is polled. Dropping it
/// cancels the call.
///
/// Polled by reference it is cancel safe: `&mut call` may be polled, left and polled again, and no answer is lost. Dropping a call with
/// streams gives them up: nothing that is done to its [`Sink`](crate::Sink) afterwards is taken for the end of the upload.
///
/// ```
#[doc = include_str!("doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let _server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-call")?;
/// use gimmal::Client;
///
/// let client = HelloClient::new(Client::connect("mem://doc-call")?);
/// let (one, other) = (client.hello("Ada".into()), client.hello("Eve".into())); // both are in flight
/// assert_eq!(one.wait()?, "Hello, Ada!"); // or `one.await?`
/// drop(other); // cancels it
/// # Ok(())
/// # }
/// ```
#[must_use = "a call that is dropped is cancelled: await it, or wait for it"]
pub struct Call<C: Channel, D, O, S = ()> {
    /// Before the ticket, so that streams are given up before the call is cancelled.
    streams: S,
    pub(crate) ticket: C::Ticket,
    output: PhantomData<fn() -> (D, O)>,
}

/// A call of a raw method: it ends with the bytes of its answer.
pub type RawCall<C> = Call<C, crate::codec::Raw, Plain<Vec<u8>>>;

/// A call with streams. It ends with the method's result, after the items of its streams.
pub type StreamCall<C, D, O> = Call<C, D, O, Tie>;

impl<C: Channel, D, O, S> fmt::Debug for Call<C, D, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// Of a ticket that shows nothing and says that it did.
#[cold]
fn unread<T>() -> Result<T, DecodeError> {
    Err(DecodeError::new("an answer that was not shown"))
}

/// The error of a call that ended without a value.
#[cold]
fn error_of<D, O: Received<D>>(status: ResponseStatus, body: &[u8]) -> CallError<O::Error> {
    match status {
        ResponseStatus::Failed(failure) => CallError::of(*failure),
        ResponseStatus::Ok | ResponseStatus::Error | ResponseStatus::Begun(_) => {
            O::error(body).map_or_else(CallError::undecoded, CallError::App)
        }
    }
}

/// The bytes of a value, as they arrived.
pub(crate) fn body_of<D, O: Received<D>>(response: Response) -> Result<Body, CallError<O::Error>> {
    match (response.status, response.lent) {
        (ResponseStatus::Ok, None) => Ok(response.body),
        (ResponseStatus::Ok, Some(_)) => {
            Err(CallError::undecoded(DecodeError::new("bulk that was not asked for")))
        }
        (status, _) => Err(error_of::<D, O>(status, response.body.bytes())),
    }
}

impl<C: Channel, D: Codec, O: Received<D>> Call<C, D, O> {
    /// A call by its ticket, and nothing more: a call of two words is returned, and kept, in registers.
    #[inline]
    pub fn new(ticket: C::Ticket) -> Self {
        Self { streams: (), ticket, output: PhantomData }
    }
}

impl<C: Channel, D: Codec, O: Received<D>> StreamCall<C, D, O> {
    /// A call by its ticket, which gives up `streams` when it is dropped.
    pub(crate) fn with_streams(ticket: C::Ticket, streams: Tie) -> Self {
        Self { streams, ticket, output: PhantomData }
    }

    /// Lets the call go on without its caller, to the ends of its streams. Its result is lost. On a
    /// [`LocalClient`](crate::LocalClient) it is cancelled instead, because nobody would move it. Does not block.
    pub fn detach(mut self) {
        self.streams.loosen();
        self.ticket.detach();
    }
}

impl<C: Channel, D: Codec, O: Received<D>, S> Call<C, D, O, S> {
    /// Blocks the thread until the call has ended, at the latest at its deadline, and returns its value. On a local client this runs
    /// the worker's turns, and the value is decoded where it landed. Not for tasks of a runtime: they await the call.
    ///
    /// # Errors
    /// The variants of [`CallError`] name each cause, and [`CallError::fate`] says whether the handler ran. On a worker's thread that
    /// would have to serve the call itself it is [`TransportError::OwnWorker`](crate::TransportError::OwnWorker), at once.
    #[inline]
    pub fn wait(mut self) -> Result<O::Value, CallError<O::Error>> {
        let (mut value, mut wrong) = (None, None);
        // Not one place for both: what holds either is moved as a whole, and a value just written is slow to read in other
        // pieces than it was written in.
        let mut read = |body: &[u8]| match O::value(body, None) {
            Ok(read) => value = Some(read),
            Err(error) => wrong = Some(error),
        };
        match self.ticket.wait_in_place(&mut read) {
            None => match value {
                Some(value) => Ok(value),
                None => wrong.map_or_else(unread, Err).map_err(CallError::undecoded),
            },
            Some(response) => self.decode(response),
        }
    }

    /// Blocks the thread until the call has ended, and lends the bytes of its value to `read`. On a local client this runs the
    /// worker's turns, and the bytes are read where they landed: nothing is copied or allocated. `read` must not use the client.
    ///
    /// # Errors
    /// Those of [`Call::wait`]; `read` is not called then.
    #[inline]
    pub fn wait_with<R>(mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R, CallError<O::Error>> {
        let (mut read, mut result) = (Some(read), None);
        let mut lend = |body: &[u8]| result = read.take().map(|read| read(body));
        match self.ticket.wait_in_place(&mut lend) {
            None => result.map_or_else(unread, Ok).map_err(CallError::undecoded),
            Some(Response {
                status: ResponseStatus::Ok,
                body: Body::Owned(bytes),
                lent: None,
                metadata: None,
            }) => {
                lend(&bytes);
                self.ticket.recycle(bytes);
                result.map_or_else(unread, Ok).map_err(CallError::undecoded)
            }
            Some(response) => match response.status {
                ResponseStatus::Ok => {
                    lend(response.body.bytes());
                    result.map_or_else(unread, Ok).map_err(CallError::undecoded)
                }
                status => Err(error_of::<D, O>(status, response.body.bytes())),
            },
        }
    }

    #[inline]
    fn decode(&mut self, response: Response) -> Result<O::Value, CallError<O::Error>> {
        match response {
            Response { status: ResponseStatus::Ok, body: Body::Owned(bytes), lent: None, metadata: None } => {
                let value = O::value(&bytes, None);
                self.ticket.recycle(bytes);
                value.map_err(CallError::undecoded)
            }
            response => Self::decode_other(response),
        }
    }

    #[cold]
    fn decode_other(response: Response) -> Result<O::Value, CallError<O::Error>> {
        let Response { status, body, lent, .. } = response;
        match status {
            ResponseStatus::Ok => {
                O::value(body.bytes(), lent.map(|bulk| *bulk)).map_err(CallError::undecoded)
            }
            status => Err(error_of::<D, O>(status, body.bytes())),
        }
    }
}

impl<C: Channel, D: Codec, O: Received<D>, S: Unpin> Future for Call<C, D, O, S> {
    type Output = Result<O::Value, CallError<O::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.ticket.poll(context).map(|response| self.decode(response))
    }
}

#[cfg(test)]
mod tests {
    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Metadata {
        let mut metadata = Metadata::new();
        for (key, value) in pairs {
            metadata.insert(key, value).unwrap();
        }
        metadata
    }

    #[test]
    fn no_call_option_undoes_another() {
        let calls: &[BuilderCall<CallOptions>] = &[
            ("timeout", |options| options.timeout(Duration::from_secs(5))),
            ("wait_for_ready", CallOptions::wait_for_ready),
            ("metadata", |options| options.metadata(pairs(&[("ours", "1")]))),
            ("within", |options| {
                options.inherit(Some(&pairs(&[(TRACEPARENT, "theirs")])), Some(Duration::from_secs(6)))
            }),
        ];
        no_call_undoes_another(CallOptions::default, calls, |options| {
            let notes = options.metadata.as_deref().map(|notes| {
                notes
                    .iter()
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect::<std::collections::BTreeMap<_, _>>()
            });
            (options.deadline, options.wait_for_ready, notes, options.left)
        });
    }

    /// The last time-out counts, and a trace context of the call's own wins.
    #[test]
    fn the_last_word_of_one_method_counts() {
        let twice = CallOptions::default().timeout(Duration::from_secs(1)).timeout(Duration::from_secs(2));
        assert_eq!(twice.deadline, Deadline::In(Duration::from_secs(2)));
        let forever = twice.timeout(None);
        assert_eq!(forever.deadline, Deadline::Never);
        assert_eq!(
            forever.inherit(None, Some(Duration::from_secs(3))).deadline,
            Deadline::In(Duration::from_secs(3))
        );
        let (long, left) = (Duration::from_secs(60), Duration::from_secs(6));
        let inherited = CallOptions::default().inherit(None, Some(left)).timeout(long);
        assert_eq!(inherited.deadline, Deadline::In(left));
        let theirs = pairs(&[(TRACEPARENT, "theirs")]);
        let ours =
            CallOptions::default().inherit(Some(&theirs), None).metadata(pairs(&[(TRACEPARENT, "ours")]));
        assert_eq!(ours.metadata.unwrap().text(TRACEPARENT), Some("ours"));
        let none = CallOptions::default().metadata(pairs(&[("a", "1")])).metadata(Metadata::new());
        assert_eq!(none.metadata, None);
    }
}
