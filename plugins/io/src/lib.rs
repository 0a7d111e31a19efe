//! Byte streams over gimmal: many on one connection, in both directions, each with back-pressure of its own.
//!
//! ```text
//!  open(client, "name") ──────────► Incoming::accept
//!   SendStream ── window in bytes ─► RecvStream
//!   RecvStream ◄─ window in bytes ── SendStream
//! ```
//! A stream is a call of one method: opening it is one message, and calls go on beside it. The worker empties its connection into the
//! stream's own window whatever the reader does. So a reader that does not read stops its own writer, and nobody else.
//!
//! | end | the other side reads or writes |
//! |---|---|
//! | [`SendStream::finish`], `shutdown` | all bytes, then the end |
//! | [`SendStream::reset`] | [`ErrorKind::ConnectionReset`](std::io::ErrorKind) with [`Code`] |
//! | [`SendStream::abandon`] | that too, without the bytes that had not left |
//! | [`RecvStream::stop`] | [`ErrorKind::BrokenPipe`](std::io::ErrorKind) with [`Code`] |
//! | the connection is lost | [`ErrorKind::ConnectionReset`](std::io::ErrorKind) |
//!
//! **Drops.** A reader that is dropped before its end stops with code 0. A writer that is dropped finishes. It resets with code 0 if
//! the reader was dropped before it with bytes that it had not read, as TCP does, and while the thread panics.
//!
//! **Cancellation.** Every `async fn` here is cancel safe unless it says otherwise: a future that is dropped before it is ready has
//! moved no bytes. That holds for the methods of one call too, such as tokio's `read` and `write`, and not for loops over them, such as
//! `read_exact` and `write_all`.
//!
//! **Limits.** All are fields of the server's and the client's `Config`, and sizes are bytes:
//!
//! | what | limit | beyond it |
//! |---|---|---|
//! | streams of a connection that are open | `window` here, `serving_max` there | at most `waiting_max` wait here; refused there |
//! | streams of a worker that are open | `tasks_max` of the server | refused |
//! | streams that are opened at once | `engine.inbox` | refused |
//! | streams that wait to be accepted | the backlog of [`serve`] | refused |
//! | bytes that were not read, of a stream | `stream_window`, growing up to 4 MiB | the writer waits |
//! | bytes that were not read, of a connection | `stream_budget` | smaller windows, 4 KiB at least |
//! | bytes that were written and their worker has not taken | 64 KiB, or 1 MiB of writes of 16 KiB and more | the writer waits |
//! | bytes that the worker has taken and have not left | as many again | the writer waits |
//!
//! A stream has no deadline. It lives until both halves have ended, its connection is lost, or one side drops it.
//!
//! **Whose streams they are.** [`Duplex`] and its halves implement the traits of tokio (feature `tokio`, a default) and of the futures
//! crates (`futures`). [`Duplex`] is a connection of hyper (`hyper`) and of tonic's own transport (`tonic`); [`Incoming`] is a listener
//! of axum (`axum`). [`Duplex::blocking`] makes one for threads that may block. [`open_local`] opens streams that a task of the
//! user's own runtime moves, without a worker's thread.
//!
//! ```
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 1)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (streams, mut incoming) = gimmal_io::serve(16);
//! let _server = gimmal::serve("mem://io-echo", streams)?;
//! let client = gimmal::connect("mem://io-echo")?;
//!
//! let mut stream = gimmal_io::open(&client, "echo");
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//!
//! let (name, mut accepted) = incoming.accept().await.ok_or("the server is gone")?;
//! let mut heard = String::new();
//! accepted.read_to_string(&mut heard).await?;
//! assert_eq!((&*name, &*heard), ("echo", "hello"));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(any(feature = "tokio", feature = "futures", feature = "hyper"))]
#[macro_use]
mod traits;

#[cfg(feature = "axum")]
mod axum;
mod blocking;
mod copy;
mod duplex;
mod error;
#[cfg(feature = "futures")]
mod futures;
mod held;
#[cfg(feature = "hyper")]
mod hyper;
mod incoming;
mod open;
mod recv;
mod send;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tonic")]
mod tonic;

pub use blocking::Blocking;
pub use copy::copy_bidirectional;
pub use duplex::{Duplex, Foreign};
pub use error::Code;
pub use incoming::{Incoming, Streams, serve};
pub use open::{Carrying, open, open_local};
pub use recv::RecvStream;
pub use send::SendStream;
#[cfg(feature = "tonic")]
pub use tonic::Connector;
