//! The edge to `tower` (feature `tower`): raw calls as a `Service`, our layers as `Layer`s.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use super::{Layer, Layered};
use crate::{
    channel::{CallOptions, Channel, RawCall},
    error::CallError,
    method::Method,
};

/// A call by hand, as a request of `tower`: a method, and its arguments as bytes.
#[derive(Clone, Debug)]
pub struct Request {
    /// A raw method, or one whose arguments the caller of the service encoded.
    pub method: &'static Method,
    /// How long the call may take, whether it waits for a connection, and its metadata.
    pub options: CallOptions,
    /// The arguments, as the method's codec writes them.
    pub body: Vec<u8>,
}

/// A channel as a service of `tower`: any of its layers goes around it. It is always ready: calls above the window wait in the
/// client. Its response is the bytes of the answer, its error the call's. Dropping the future cancels the call.
#[derive(Clone, Debug)]
pub struct Calls<C>(pub C);

impl<C: Channel> tower_service::Service<Request> for Calls<C> {
    type Response = Vec<u8>;
    type Error = CallError<Infallible>;
    type Future = RawCall<C>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // A full window is a queue in the client, and a full queue the call's own error.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> RawCall<C> {
        self.0.call_raw_with(request.method, &request.options, &request.body)
    }
}

/// A [`Layer`] of gimmal as a layer of `tower`, around channels.
#[derive(Clone, Debug)]
pub struct Around<L>(pub L);

impl<C: Channel, L: Layer> tower_layer::Layer<C> for Around<L> {
    type Service = Layered<C, L>;

    fn layer(&self, channel: C) -> Layered<C, L> {
        Layered::new(channel, self.0.clone())
    }
}
