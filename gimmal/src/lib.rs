//! RPC and messaging between processes and hosts, over shared memory and RDMA, with one API.
//!
//! - **One API**: the URL decides whether a call goes through shared memory or RDMA.
//! - **Zero copy**: requests are read where they arrive, answers are written where they leave from.
//! - **Honest failures**: every failed call says whether its handler ran.
//!
//! ```
//! use gimmal::Cx;
//!
//! #[gimmal::service]
//! trait Hello {
//!     /// Greets.
//!     async fn hello(&self, cx: &Cx, name: String) -> String;
//! }
//!
//! struct Greeter;
//!
//! impl Hello for Greeter {
//!     async fn hello(&self, _: &Cx, name: String) -> String {
//!         format!("Hello, {name}!")
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = gimmal::serve("mem://hello", serve_hello(Greeter))?;
//! let client = HelloClient::new(gimmal::connect("mem://hello")?);
//! assert_eq!(client.hello("world".into()).wait()?, "Hello, world!"); // or `.await`, in any runtime
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! | URL | reaches | cargo feature |
//! |---|---|---|
//! | `shm://name`, `shm:///path` | processes of this host, through shared memory | `shm` (default) |
//! | `rdma://host:port` | other hosts: InfiniBand, RoCE, iWARP | `verbs` |
//! | `mem://name` | this process: unit tests | `sim` (default) |
//! | `gimmal://host:port` | a server on this host through shared memory, any other by RDMA | `shm`, `verbs` |
//!
//! Start with [`guide::start`]: a two-process service with state, typed errors, a stream, a deadline, Ctrl-C and tests.
//! [`guide`] lists all chapters. Linux only.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod guide;

#[doc(inline)]
pub use gimmal_rpc::*;

#[doc(hidden)]
pub use gimmal_rpc::__private;

/// Connects to a server: [`Client::connect`].
///
/// # Errors
/// See [`ConnectError`].
pub fn connect(url: &str) -> Result<Client, ConnectError> {
    Client::connect(url)
}

/// Serves one service with the default configuration; for more of either see [`Server::builder`].
///
/// # Errors
/// See [`ServeError`].
pub fn serve(url: &str, service: impl Service) -> Result<Server, ServeError> {
    Server::builder().service(service).listen(url)
}
