//! Typed calls on the engine: services, codecs, deadlines, cancellation, honest errors.
//!
//! ```text
//!  caller                                                             callee
//!  XClient ─ encode, in the transmit ring ─► Request ─► decode, where it landed ─► handler
//!  Call    ◄─ decode ◄─ Response ◄──────── encode, in the transmit ring ◄──────── answer
//! ```
//!
//! At most once: a call is a slot and a generation, and every failure carries its [`Fate`]. A [`Client`] is handed
//! around between threads and runtimes; a [`LocalClient`] runs on the thread that waits, or by a task of the runtime that
//! calls. A [`Server`] runs handlers on its workers: raw ones to completion, async ones as futures that may wait for timers and other threads, not for
//! the worker. Services are traits with [`macro@service`].
//!
//! A handler may wait on any thread, so its future is `Send`; one that is not is no handler:
//!
//! ```compile_fail
//! use gimmal_rpc::Cx;
//!
//! #[gimmal_rpc::service(crate = gimmal_rpc)]
//! trait Greeter {
//!     async fn hello(&self, cx: &Cx) -> u32;
//! }
//!
//! struct Local;
//!
//! impl Greeter for Local {
//!     async fn hello(&self, _: &Cx) -> u32 {
//!         let shared = std::rc::Rc::new(5);
//!         std::future::ready(()).await;
//!         *shared
//!     }
//! }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(not(any(feature = "shm", feature = "tcp", feature = "verbs")))]
compile_error!("gimmal needs a way to move bytes: the feature shm, tcp or verbs at least");

mod admission;
mod again;
pub mod balance;
#[doc(hidden)]
pub mod batch;
#[doc(hidden)]
pub mod bytes;
mod calls;
#[doc(hidden)]
pub mod cell;
pub mod channel;
pub mod client;
pub mod codec;
mod command;
pub mod config;
mod copied;
pub mod cx;
pub mod draining;
pub mod error;
mod exposition;
#[cfg(feature = "zerocopy")]
mod flat;
#[doc(hidden)]
pub mod frame;
mod here;
#[doc(hidden)]
pub mod id;
mod large;
mod late;
pub mod layer;
pub mod lend;
pub mod local;
pub mod memory;
#[cfg(feature = "evolve")]
mod messagepack;
pub mod metadata;
pub mod method;
mod nested;
mod node;
mod oneshot;
#[doc(hidden)]
pub mod output;
pub mod pipeline;
mod provider;
mod reach;
#[doc(hidden)]
pub mod ready;
mod reconnect;
pub mod reflect;
pub mod response;
pub mod response_writer;
mod route;
pub mod runtime;
pub mod server;
pub mod service;
pub mod shape;
mod shared;
pub mod stats;
pub mod status;
pub mod stream;
#[doc(hidden)]
pub mod task;
mod timeout;
#[doc(hidden)]
pub mod timer;
pub mod topic;
mod wake;
mod workers;

pub use admission::Admitted;
pub use balance::{Balanced, Dns, Pick, Resolver};
pub use channel::{Call, CallOptions, Channel, RawCall, StreamCall};
pub use client::{Client, ClientBuilder};
#[cfg(feature = "bincode")]
pub use codec::Bincode;
pub use codec::{Postcard, Raw};
pub use config::{Config, Reconnect};
pub use cx::{CancelToken, Cx, Identity, Origin};
pub use draining::Draining;
pub use error::{CallError, ConnectError, ServeError, TransportError};
#[cfg(feature = "zerocopy")]
pub use flat::{InPlace, Zerocopy};
pub use gimmal_engine as engine;
pub use gimmal_engine::transport::{
    Allow, Bulk, Certificate, Credentials, Instant, Key, KeyError, Loan, Negotiated, Tls, UserBytes,
    UserMemory,
};
pub use gimmal_macros::{Shape, service};
pub use layer::{Guarded, Hedge, Layer, Layered, Retry, RetryPolicy, ServerLayer};
pub use lend::Lend;
pub use local::{Driver, LocalClient};
#[cfg(feature = "evolve")]
pub use messagepack::MessagePack;
pub use metadata::{Metadata, MetadataError};
pub use method::{Method, MethodKind};
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub use node::world;
pub use output::WithLoan;
pub use pipeline::{Answered, Pipeline};
pub use response_writer::ResponseWriter;
pub use runtime::Runtime;
pub use server::{LocalServer, Server, ServerBuilder};
pub use service::Service;
pub use shape::Shape;
pub use stats::Stats;
pub use status::{Code, Fate, Status};
pub use stream::{ReadError, Sink, Stream, StreamError};
pub use topic::{Behind, Fed, Published, Topic};

/// What the code of [`macro@service`] names. It may change at any time.
#[doc(hidden)]
pub mod __macro {
    pub use std::sync::{Arc, LazyLock};
    pub use std::vec::Vec;

    use crate::{
        Code,
        channel::{Beside, Received},
        codec::{Compose, DecodeError, Encode},
        shape::Field,
        stream::{Lane, Lanes, Streams, lanes},
    };
    pub use crate::{
        bytes::{Bytes, InOnePiece, PlainBytes},
        channel::{Call, CallOptions, Channel, OneWay, RawCall, StreamCall},
        client::Client,
        codec::{Codec, Decode, Encoded, Postcard, Raw},
        cx::Cx,
        local::LocalClient,
        method::{Method, MethodKind, ids_are_distinct},
        output::{Fallible, Plain},
        pipeline::Pipeline,
        response_writer::{RawOutcome, ResponseWriter},
        service::Service,
        shape::{Contents, Describing, Shape, Shapes, Type, TypeRef, Variant},
        status::Status,
        stream::{Sink, Stream},
        task::Seat,
    };
    pub use gimmal_engine::transport::{Bulk, Loan};
    pub use send_wrapper::SendWrapper;

    /// A field of a shape: whether it is optional for a reader, and whether a writer may leave it out.
    #[must_use]
    pub fn field(
        name: &str,
        ty: TypeRef,
        is_optional: bool,
        may_be_absent: bool,
        aliases: Vec<String>,
    ) -> Field {
        Field { name: name.to_owned(), ty, is_optional, may_be_absent, aliases }
    }

    /// A name of a shape.
    #[must_use]
    pub fn text(name: &str) -> String {
        name.to_owned()
    }

    /// Parts of a shape.
    #[must_use]
    pub fn list<T, const N: usize>(parts: [T; N]) -> Vec<T> {
        parts.into()
    }

    /// Starts a typed call.
    #[inline]
    pub fn start<C: Channel, D: Codec, O: Received<D>>(
        channel: &C,
        method: &'static Method,
        options: &CallOptions,
        loan: Option<Loan>,
        arguments: &impl Compose,
    ) -> Call<C, D, O> {
        Call::new(channel.start(method, options, loan.into(), arguments))
    }

    /// The worker's ends of a call's streams.
    #[derive(Debug)]
    pub struct Ends(Lanes);

    /// Lanes for a call that streams in these directions.
    #[must_use]
    pub fn ends(up: bool, down: bool) -> Ends {
        Ends(lanes(up, down))
    }

    impl Ends {
        /// Where the caller's items go in.
        #[must_use]
        pub fn sink<C: Channel, E: Encode<T>, T>(&self, channel: &C) -> Sink<T, C> {
            let lane = self.0.tx.clone().unwrap_or_else(Lane::new);
            Sink::new::<E>(lane, channel.clone())
        }

        /// Where the handler's items come out.
        #[must_use]
        pub fn stream<C: Channel, D: for<'a> Decode<'a, T>, T>(&self, channel: &C) -> Stream<T, C> {
            let lane = self.0.rx.clone().unwrap_or_else(Lane::new);
            Stream::new::<D>(lane, channel.clone())
        }
    }

    /// Starts a typed call with streams.
    pub fn start_streams<C: Channel, D: Codec, O: Received<D>>(
        channel: &C,
        method: &'static Method,
        options: &CallOptions,
        ends: Ends,
        arguments: &impl Compose,
    ) -> StreamCall<C, D, O> {
        let streams = ends.0.tie();
        let beside = Beside { loan: None, streams: Some(Streams::Made(Box::new(ends.0))) };
        StreamCall::with_streams(channel.start(method, options, beside, arguments), streams)
    }

    /// A refusal of what are no arguments.
    #[cold]
    pub fn not_decoded(error: &DecodeError) -> Status {
        Status::refused(Code::InvalidArgument, format!("arguments: {error}"))
    }

    /// The answer of an inline method.
    #[inline]
    pub fn put<C, O: crate::output::Output<C>>(
        writer: &mut ResponseWriter<'_>,
        output: &O,
    ) -> Result<(), Status> {
        writer.put(output)
    }

    /// An argument that is bulk; an empty one does not travel.
    pub fn bulk(bulk: Option<Bulk>) -> Result<Bulk, Status> {
        bulk.map_or_else(
            || {
                let empty = Loan::anonymous(0, 0);
                empty.map(Bulk::own).map_err(|error| Status::refused(Code::Internal, error.to_string()))
            },
            Ok,
        )
    }

    /// A method that the service does not have: the table and the dispatcher come from one macro.
    pub fn no_method() -> Status {
        Status::refused(Code::Internal, "a method that its service does not have")
    }
}
