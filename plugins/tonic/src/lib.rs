//! gRPC over gimmal: tonic's generated clients and servers, unchanged. No HTTP/2 runs between the processes.
//!
//! ```text
//!  tonic's stub ─► Channel ─► gimmal_http::Client ══ shared memory, RDMA or TCP ══► gimmal_http::Serve ─► tonic's service
//! ```
//!
//! ```
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
//! let (_, service) = tonic_health::server::health_reporter();
//! let server = gimmal_tonic::Server::builder().add_service(service).listen("mem://grpc")?;
//!
//! let mut client = HealthClient::new(gimmal_tonic::connect("mem://grpc").await?);
//! client.check(HealthCheckRequest::default()).await?;
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! | in gRPC | here |
//! |---|---|
//! | `grpc-timeout` | the call's deadline: the caller ends then, and the handler is dropped, streams too |
//! | cancellation | a call, a stream or a cancellation handle that is dropped or fired drops the handler |
//! | metadata, trailers, status details, compression | as tonic writes them |
//! | `UNAVAILABLE` | no connection, or one that ended; a call that certainly did not run is made again, up to 3 times |
//! | message limits | tonic's own: 4 MiB for a message that is read |
//!
//! What tonic's own server and channel have for HTTP/2 alone is not here: TLS settings, windows, frame sizes, keep-alive pings,
//! connection ages and `accept_http1`. gimmal's [configuration](gimmal::Config) has their counterparts.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod channel;
#[cfg(feature = "connect-info")]
mod connect_info;
mod router;
mod server;
mod status;

pub use channel::{Channel, LocalChannel, Responding, ResponseBody, connect, connect_lazy};
pub use gimmal_http::Peer;
pub use router::{Answer, Answers, Routes};
pub use server::{Router, Server};
pub use status::{fate, status_of};
