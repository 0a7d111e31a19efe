//! HTTP over gimmal: requests and responses of services of `tower`, as gimmal's own messages. No HTTP/2 runs between the
//! processes.
//!
//! ```text
//!  Client: Service<Request<B>> ─ whole: one message ──────────► Serve<S> ─► S: Service<Request<Body>>
//!                              ─ else:  a message, then items ─►
//!                              ◄─ whole: one message, with the trailers
//!                              ◄─ else:  head, data as items, then the trailers as the call's answer
//! ```
//!
//! A body that is there at once travels in one message with its head. Any other body is a stream with back-pressure from end to
//! end. Dropping a response, or its body, cancels the handler. A body that ends with an error aborts the call: it never looks
//! complete to the other side. `CONNECT`, `Upgrade` and informational responses are not carried.
//!
//! ```
//! use axum::{Router, routing::get};
//! use http_body_util::{BodyExt as _, Empty};
//! use tower_service::Service as _;
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::new().route("/hello", get(async || "Hello!"));
//! let server = gimmal::Server::builder()
//!     .runtime(gimmal::tokio::Tokio::current()?)
//!     .service(gimmal_http::Serve::new(router))
//!     .listen("mem://http-hello")?;
//!
//! let mut client = gimmal_http::Client::new(gimmal::Client::connect_async("mem://http-hello").await?);
//! let request = http::Request::get("/hello").body(Empty::<bytes::Bytes>::new())?;
//! let response = client.call(request).await?;
//! assert_eq!(response.into_body().collect().await?.to_bytes(), "Hello!");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod block;
mod body;
mod carrier;
mod client;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod head;
mod messages;
mod names;
mod outgoing;
mod peer;
mod pieces;
mod rules;
mod serve;
mod timeout;

pub use body::Body;
pub use carrier::{Carrier, End, Spawn};
pub use client::{Client, Responding};
pub use error::Error;
pub use head::HEAD_BYTES_MAX;
pub use outgoing::Upload;
pub use peer::Peer;
pub use serve::Serve;
pub use timeout::Timeout;
