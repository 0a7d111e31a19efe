//! The client: a service of requests.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use gimmal_rpc::{
    CallOptions, Code, ReadError, Status, Stream, TransportError,
    channel::{Beside, Ticket as _},
    engine::transport::Instant,
    response::{Failure, ResponseStatus},
    stream::{CallerEnds, Tie, caller_ends},
};
use http::{Method, Request, Response, request, response};
use tokio::sync::oneshot;

use crate::{
    body::{Body, Streamed, bytes_of, poll_failed},
    carrier::{Carrier, Spawn},
    error::Error,
    head::{self, HEAD_BYTES_MAX},
    messages::{self, Arrived, Asked, BESIDE, CALL, Contents, EXCHANGE, Item, METHODS, Piece, READY, Wire},
    outgoing::{BoxError, Gathered, Pumped, Upload, gather},
    pieces::Pieces,
    rules,
    timeout::Timeout,
};

/// Attempts of a request that certainly did not run.
const ATTEMPTS: u32 = 3;

/// A service of `tower` that sends requests over a client of gimmal: `C` is a [`gimmal::Client`], or a
/// [`gimmal::tokio::LocalClient`]. A clone shares the connection. The request's URI is not resolved.
///
/// A request waits for a connection for 1 s when there is none ([`wait_for_ready`](Client::wait_for_ready)). One whose body was
/// there at once is sent again when it certainly did not run, because its connection ended, its server goes away, or its worker had
/// no room for it.
///
/// Requests are made in a runtime of tokio: it runs the tasks that send bodies. Dropping the future of a request cancels it.
#[derive(Clone, Debug)]
pub struct Client<C> {
    channel: C,
    patience: Duration,
}

impl<C: Carrier> Client<C> {
    /// Makes a service that sends requests over `channel`.
    #[must_use]
    pub const fn new(channel: C) -> Self {
        Self { channel, patience: Duration::from_secs(1) }
    }

    /// Sets how long a request waits for a connection when there is none. Default 1 s.
    #[must_use]
    pub const fn wait_for_ready(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the client of gimmal.
    #[must_use]
    pub const fn channel(&self) -> &C {
        &self.channel
    }
}

impl<C, B> tower_service::Service<Request<B>> for Client<C>
where
    C: Carrier + Spawn<Upload<B>>,
    B: http_body::Body<Error: Into<BoxError>> + Unpin,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Responding<C, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // A full window is a queue in the client, and a full queue the request's own error.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Responding<C, B> {
        let (parts, body) = request.into_parts();
        let timeout = parts.extensions.get::<Timeout>();
        Responding {
            client: self.clone(),
            deadline: timeout.map(|Timeout(timeout)| Instant::now() + *timeout),
            head_bytes: head::request_bytes(&parts),
            parts,
            body: Some(body),
            gathered: None,
            attempts: 0,
            state: State::Begin,
        }
    }
}

enum State<C: Carrier> {
    Begin,
    /// Waits for a connection.
    Connecting(C::Ticket),
    Open(Open<C>),
    /// The answer comes next, or says that its items begin.
    Answering(C::Ticket),
    Over,
}

struct Open<C: Carrier> {
    down: Stream<Item>,
    // Before the ticket, so that streams are given up before the call is cancelled.
    tie: Tie,
    ticket: C::Ticket,
    failed: Option<oneshot::Receiver<BoxError>>,
}

/// A request in flight: a future that ends with the head of the response and its [`Body`], or with an [`Error`]. Dropping it
/// cancels the request.
#[must_use = "a request is made when this is polled"]
pub struct Responding<C: Carrier, B> {
    client: Client<C>,
    parts: request::Parts,
    /// What a reader counts for its head.
    head_bytes: usize,
    deadline: Option<Instant>,
    /// Until it has ended, or is sent by a task of its own.
    body: Option<B>,
    gathered: Option<Gathered>,
    attempts: u32,
    state: State<C>,
}

impl<C: Carrier, B> fmt::Debug for Responding<C, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Responding({} {})", self.parts.method, self.parts.uri.path())
    }
}

// Nothing of it is pinned in place.
impl<C: Carrier, B> Unpin for Responding<C, B> {}

impl<C, B> Responding<C, B>
where
    C: Carrier + Spawn<Upload<B>>,
    B: http_body::Body<Error: Into<BoxError>> + Unpin,
{
    /// What goes with a call that starts now.
    fn options(&self, most: Option<Duration>) -> CallOptions {
        let left = self.deadline.map(|deadline| deadline.remaining());
        let timeout = match (left, most) {
            (Some(left), Some(most)) => Some(left.min(most)),
            (left, most) => left.or(most),
        };
        CallOptions::default().timeout(timeout)
    }

    fn check(&self) -> Result<(), Error> {
        if let Some(what) = rules::not_carried(&self.parts) {
            return Err(Error::NotCarried(what));
        }
        if self.head_bytes > HEAD_BYTES_MAX {
            return Err(Error::HeadTooLarge);
        }
        if self.deadline.is_some_and(|deadline| deadline.has_passed()) {
            let why = "the deadline passed before the request was sent";
            return Err(Error::Call(Failure::Status(Status::refused(Code::DeadlineExceeded, why))));
        }
        Ok(())
    }

    /// Whether a question that failed leaves open if the server is there.
    fn is_to_wait(&self, failure: &Failure) -> bool {
        self.client.channel.is_ready() || matches!(failure, Failure::Transport(TransportError::Closed { .. }))
    }

    /// Waits for a connection, if there is none.
    fn begin(&mut self, context: &mut Context<'_>) -> Result<State<C>, Error> {
        self.check()?;
        self.attempts += 1;
        if self.client.channel.is_ready() {
            return self.start(context);
        }
        let options = self.options(Some(self.client.patience)).wait_for_ready();
        let channel = &self.client.channel;
        Ok(State::Connecting(channel.start(&METHODS[READY], &options, Beside::default(), &[][..])))
    }

    fn gathered(&mut self, context: &mut Context<'_>, room: usize) -> Result<Gathered, Error> {
        if let Some(gathered) = self.gathered.take() {
            return Ok(gathered);
        }
        let Some(body) = &mut self.body else { return Ok(Gathered::default()) };
        let gathered = gather(Pin::new(body), context, room).map_err(Error::Unsent)?;
        if gathered.is_whole {
            let said = rules::content_length(&self.parts.headers).map_err(|_| Error::ContentLength)?;
            if said.is_some_and(|said| said != gathered.bytes as u64) {
                return Err(Error::ContentLength);
            }
        }
        Ok(gathered)
    }

    fn start(&mut self, context: &mut Context<'_>) -> Result<State<C>, Error> {
        let limit = self.client.channel.message_bytes_max().saturating_sub(BESIDE);
        let room = limit.saturating_sub(self.head_bytes);
        let gathered = self.gathered(context, room)?;
        let heads = head::trailers_bytes(gathered.trailers.as_ref());
        if heads > HEAD_BYTES_MAX {
            return Err(Error::HeadTooLarge);
        }
        let fits = gathered.is_whole && gathered.bytes + heads <= room;
        let (channel, options) = (&self.client.channel, self.options(None));
        if fits {
            let (data, trailers) = (&gathered.data, gathered.trailers.as_ref());
            let asked = Asked { parts: &self.parts, data, trailers };
            let ticket = channel.start(&METHODS[CALL], &options, Beside::down_later(), &asked);
            self.gathered = Some(gathered);
            return Ok(State::Answering(ticket));
        }
        let (beside, ends) = caller_ends::<Wire, Piece, Item>(true);
        let asked = Asked { parts: &self.parts, data: &Pieces::default(), trailers: None };
        let ticket = channel.start(&METHODS[EXCHANGE], &options, beside, &asked);
        let CallerEnds { up, down, tie } = ends;
        let failed = up.map(|sink| {
            let (sender, receiver) = oneshot::channel();
            self.upload(gathered, limit, sink, sender);
            receiver
        });
        Ok(State::Open(Open { down, tie, ticket, failed }))
    }

    /// Sends the rest of the body in a task of its own.
    fn upload(
        &mut self,
        gathered: Gathered,
        limit: usize,
        sink: gimmal_rpc::Sink<Piece>,
        failed: oneshot::Sender<BoxError>,
    ) {
        if let Some(body) = self.body.take() {
            let pumped = Pumped::new(Box::pin(body), gathered, limit);
            self.client.channel.spawn(Upload::new(pumped, sink, failed));
        }
    }

    /// What the answer says, where no response began before. The request is not needed any more.
    fn ended(
        &mut self,
        ended: gimmal_rpc::response::Response,
        recycle: impl FnOnce(Vec<u8>),
    ) -> Result<Response<Body>, Error> {
        let headers = mem::take(&mut self.parts.headers);
        match messages::answer(bytes_of(ended, recycle)?, headers)? {
            Arrived::Whole(parts, contents) => self.whole(parts, contents),
            Arrived::End(_) => Err(Error::Malformed("the end of a response that has not begun")),
        }
    }

    fn whole(&self, parts: response::Parts, contents: Contents) -> Result<Response<Body>, Error> {
        let said = rules::content_length(&parts.headers).map_err(|_| Error::ResponseLength)?;
        let is_bodiless = rules::is_bodiless(&self.parts.method, parts.status);
        if said.is_some_and(|said| said != contents.data.len() as u64) && !is_bodiless {
            return Err(Error::ResponseLength);
        }
        Ok(Response::from_parts(parts, Body::whole(contents)))
    }

    /// A response whose body comes in items.
    fn streamed(&mut self, open: Open<C>, head: &Bytes) -> Result<Response<Body>, Error> {
        let parts = head::read_response(head, head, mem::take(&mut self.parts.headers))?;
        let Open { down, tie, ticket, failed } = open;
        let said = rules::content_length(&parts.headers).map_err(|_| Error::ResponseLength)?;
        let said = said.filter(|_| self.parts.method != Method::HEAD);
        let streamed = Streamed {
            _tie: Some(tie),
            first: Bytes::new(),
            items: down,
            trailers: None,
            end: Some(C::end(ticket)),
            is_ending: false,
            is_cut: false,
            failed,
        };
        Ok(Response::from_parts(parts, Body::stream(streamed, said)))
    }
}

impl<C, B> Future for Responding<C, B>
where
    C: Carrier + Spawn<Upload<B>>,
    B: http_body::Body<Error: Into<BoxError>> + Unpin,
{
    type Output = Result<Response<Body>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Over => return Poll::Pending,
                State::Begin => this.state = this.begin(context)?,
                State::Connecting(ticket) => match ready!(ticket.poll(context)).failure() {
                    // The server is there, or the connection on which it was asked is not: neither is an answer.
                    Some(failure) if this.attempts < ATTEMPTS && this.is_to_wait(failure) => {
                        this.state = State::Begin;
                    }
                    Some(failure) => {
                        let failure = failure.clone();
                        this.state = State::Over;
                        let is_late = this.deadline.is_some_and(|deadline| deadline.has_passed());
                        let error = if is_late { Error::Call } else { Error::NotConnected };
                        return Poll::Ready(Err(error(failure)));
                    }
                    None => this.state = this.start(context)?,
                },
                State::Open(open) => {
                    if let Poll::Ready(error) = poll_failed(&mut open.failed, context) {
                        this.state = State::Over;
                        return Poll::Ready(Err(Error::Body(error)));
                    }
                    let item = ready!(open.down.poll_next(context));
                    let State::Open(mut open) = mem::replace(&mut this.state, State::Over) else { continue };
                    match item {
                        Some(Ok(Item::Head(head))) => return Poll::Ready(this.streamed(open, &head)),
                        Some(Ok(_)) => return Poll::Ready(Err(Error::Malformed("data before the head"))),
                        ended @ (Some(Err(_)) | None) => {
                            if matches!(ended, Some(Err(ReadError::Over)) | None) {
                                // The call has ended: nothing is left to give up.
                                open.tie.loosen();
                            }
                            this.state = State::Answering(open.ticket);
                        }
                    }
                }
                State::Answering(ticket) => {
                    let ended = ready!(ticket.poll_first(context));
                    let State::Answering(mut ticket) = mem::replace(&mut this.state, State::Over) else {
                        continue;
                    };
                    if let ResponseStatus::Begun(begun) = ended.status {
                        let (down, tie) = begun.ends::<Wire, Item>();
                        this.state = State::Open(Open { down, tie, ticket, failed: None });
                        continue;
                    }
                    let may_repeat = this.gathered.is_some() && this.attempts < ATTEMPTS;
                    if may_repeat && ended.failure().is_some_and(Failure::is_unready) {
                        this.state = State::Begin;
                        continue;
                    }
                    return Poll::Ready(this.ended(ended, |buffer| ticket.recycle(buffer)));
                }
            }
        }
    }
}
