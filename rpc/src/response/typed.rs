//! A response with the types of its method.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Body, Response, ResponseStatus};
use crate::{
    channel::{Call, Channel, Received, Ticket as _},
    codec::{Codec, Decode},
    error::CallError,
    lend::{Lend, Lends},
    metadata::Metadata,
};

/// How a call ended: with the value or the error of its method, or with neither; and the metadata that the server sent.
///
/// The value can be borrowed from the bytes as they arrived, for which nothing is allocated or copied. A value above a message's size
/// is read where the server has it in shared memory, or where RDMA READ brought it. To drop the response gives its memory back.
///
/// ```
/// # use gimmal_rpc::{Cx, LocalClient, Metadata, Server};
/// # #[gimmal_rpc::service(crate = gimmal_rpc)]
/// # trait Names { async fn name(&self, cx: &Cx, number: u32) -> String; }
/// # struct Book;
/// # impl Names for Book { async fn name(&self, _: &Cx, number: u32) -> String { format!("number {number}") } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = Server::builder().service(serve_names(Book)).listen("mem://typed-response")?;
/// # let client = NamesClient::new(LocalClient::connect("mem://typed-response")?);
/// let response = client.name(7).response().wait(); // or `.response().await`
/// let name: &str = response.borrowed()?;
/// assert_eq!(name, "number 7");
/// assert_eq!(response.metadata().text("trace"), None);
/// let name: String = response.value()?;
/// # drop((name, server));
/// # Ok(())
/// # }
/// ```
pub struct TypedResponse<C: Channel, D, O> {
    /// `None` where the response was taken before.
    ticket: Option<C::Ticket>,
    response: Response,
    output: PhantomData<fn() -> (D, O)>,
}

static NO_METADATA: Metadata = Metadata::new();

impl<C: Channel, D, O> fmt::Debug for TypedResponse<C, D, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TypedResponse({:?}, {} bytes)", self.response.status, self.response.body.bytes().len())
    }
}

impl<C: Channel, D, O> TypedResponse<C, D, O> {
    #[inline(always)]
    pub(crate) const fn new(ticket: Option<C::Ticket>, response: Response) -> Self {
        Self { ticket, response, output: PhantomData }
    }

    /// Returns the metadata that the server sent, whatever the call came to; empty if it sent none.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.response.metadata.as_deref().unwrap_or(&NO_METADATA)
    }
}

impl<C: Channel, D: Codec, O: Received<D>> TypedResponse<C, D, O> {
    /// Decodes the value, with the bulk that the server lent beside it.
    ///
    /// # Errors
    /// How the call failed, as [`Call::wait`] returns it; [`TransportError::Decode`](crate::TransportError::Decode) for bytes that
    /// are no value.
    pub fn value(mut self) -> Result<O::Value, CallError<O::Error>> {
        let lent = self.response.lent.take().map(|bulk| *bulk);
        self.bytes().and_then(|bytes| O::value(bytes, lent).map_err(CallError::undecoded))
    }

    /// Returns the value's bytes, as they arrived.
    ///
    /// # Errors
    /// How the call failed, as [`Call::wait`] returns it.
    #[inline]
    pub fn bytes(&self) -> Result<&[u8], CallError<O::Error>> {
        match self.response.status {
            ResponseStatus::Ok => Ok(self.response.body.bytes()),
            ResponseStatus::Error | ResponseStatus::Begun(_) | ResponseStatus::Failed(_) => Err(self.error()),
        }
    }

    /// Decodes the value, borrowed from its bytes: `&str` for a `String`, as [`Lend`] says.
    ///
    /// # Errors
    /// How the call failed, as [`Call::wait`] returns it; [`TransportError::Decode`](crate::TransportError::Decode) for bytes that
    /// are no value.
    #[inline]
    pub fn borrowed<'a>(&'a self) -> Result<<O::Owned as Lend>::Lent<'a>, CallError<O::Error>>
    where
        O: Lends<D>,
        O::Owned: Lend,
        D: Decode<'a, <O::Owned as Lend>::Lent<'a>>,
    {
        self.borrowed_as()
    }

    /// Decodes the value as another type that is written alike, which may borrow from the bytes.
    ///
    /// # Errors
    /// How the call failed, as [`Call::wait`] returns it; [`TransportError::Decode`](crate::TransportError::Decode) for bytes that
    /// are no `V`.
    #[inline]
    pub fn borrowed_as<'a, V>(&'a self) -> Result<V, CallError<O::Error>>
    where
        D: Decode<'a, V>,
    {
        D::decode(self.bytes()?).map_err(CallError::undecoded)
    }

    #[cold]
    fn error(&self) -> CallError<O::Error> {
        match &self.response.status {
            ResponseStatus::Failed(failure) => CallError::of((**failure).clone()),
            ResponseStatus::Ok | ResponseStatus::Error | ResponseStatus::Begun(_) => {
                O::error(self.response.body.bytes()).map_or_else(CallError::undecoded, CallError::App)
            }
        }
    }
}

impl<C: Channel, D, O> Drop for TypedResponse<C, D, O> {
    #[inline(always)]
    fn drop(&mut self) {
        if let (Some(ticket), Body::Owned(bytes)) = (&mut self.ticket, &mut self.response.body) {
            ticket.recycle(mem::take(bytes));
        }
    }
}

/// A call that ends with its [`TypedResponse`]: a future of any runtime, or [`wait`](ResponseCall::wait). To drop it cancels the call.
///
/// Polled by reference it is cancel safe: no response is lost.
#[must_use = "a call that is dropped is cancelled: await it, or wait for it"]
pub struct ResponseCall<C: Channel, D, O, S = ()> {
    /// `None` once it has ended.
    call: Option<Call<C, D, O, S>>,
}

impl<C: Channel, D: Codec, O: Received<D>, S> Call<C, D, O, S> {
    /// Turns the call into one that ends with its whole response. The value can be borrowed from the bytes as they arrived,
    /// and the metadata that the server sent is with it.
    #[inline]
    pub fn response(self) -> ResponseCall<C, D, O, S> {
        ResponseCall { call: Some(self) }
    }
}

impl<C: Channel, D, O, S> fmt::Debug for ResponseCall<C, D, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCall").finish_non_exhaustive()
    }
}

impl<C: Channel, D, O, S> ResponseCall<C, D, O, S> {
    /// Blocks the thread until the call has ended, at the latest at its deadline. On a local client this runs the worker's turns. A
    /// failure is in the response. Not for tasks of a runtime: they await the call.
    #[inline(always)]
    pub fn wait(self) -> TypedResponse<C, D, O> {
        let Some(Call { mut ticket, .. }) = self.call else {
            return TypedResponse::new(None, Response::taken());
        };
        let response = ticket.wait();
        TypedResponse::new(Some(ticket), response)
    }
}

impl<C: Channel, D, O, S: Unpin> Future for ResponseCall<C, D, O, S> {
    type Output = TypedResponse<C, D, O>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = &mut self.call else {
            return Poll::Ready(TypedResponse::new(None, Response::taken()));
        };
        let Poll::Ready(response) = call.ticket.poll(context) else { return Poll::Pending };
        Poll::Ready(TypedResponse::new(self.call.take().map(|call| call.ticket), response))
    }
}
