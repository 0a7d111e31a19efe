//! RPC and messaging over RDMA and shared memory.
//!
//! A service is a trait; the URL says how it is reached.
//!
//! ```
//! use gimmal::{Client, Cx, Server};
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
//! assert_eq!(client.hello("world".into()).wait()?, "Hello, world!"); // or `.await`, on any runtime
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
//!
//! # Ways to call
//!
//! - [`Client`] is `Clone + Send + Sync`: any thread, any async runtime, or [`wait`](Call::wait). A worker thread does
//!   the work.
//! - [`DrivenClient`] is moved by a future of a current-thread runtime, beside the tasks that call: no second thread. Any
//!   event loop that can wait for a descriptor will do ([`Driver::run`]).
//! - [`InlineClient`] makes the waiting thread the worker: the lowest latency, no second thread.
//!
//! # What can go wrong, and what may be repeated
//!
//! Every failed call is a [`CallError`] and knows its [`Fate`]: [`NotRun`](Fate::NotRun) (never sent, or refused
//! before dispatch) may be repeated, [`MaybeRan`](Fate::MaybeRan) only if the method is idempotent,
//! [`Ran`](Fate::Ran) has run.
//!
//! ```
//! # use gimmal::{CallError, CallOptions, Code, Cx, Fate};
//! # #[gimmal::service]
//! # trait Slow { async fn slow(&self, cx: &Cx); }
//! # struct Sloth;
//! # impl Slow for Sloth { async fn slow(&self, _: &Cx) { std::future::pending().await } }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = gimmal::serve("mem://slow", serve_slow(Sloth))?;
//! let client = SlowClient::new(gimmal::connect("mem://slow")?);
//! let impatient = CallOptions::default().timeout(std::time::Duration::from_millis(20));
//! let error = client.with_options(impatient).slow().wait().unwrap_err();
//! assert_eq!(error.fate(), Fate::MaybeRan);
//! assert_eq!(error.status().map(|status| status.code()), Some(Code::DeadlineExceeded));
//! # Ok(())
//! # }
//! ```
//!
//! # Streams and one-way messages
//!
//! A `Stream<T>` argument is items from the caller, a `Sink<T>` items to it; the client's method gives its own ends and
//! the call. A reader that is slow slows its sender, and nobody else. `#[oneway]` methods are not answered.
//!
//! ```
//! use gimmal::{Cx, Sink, Stream};
//!
//! #[gimmal::service]
//! trait Words {
//!     async fn count(&self, cx: &Cx, words: Stream<String>, longest: Sink<String>) -> u32;
//!     #[oneway]
//!     async fn forget(&self, cx: &Cx, word: String);
//! }
//!
//! struct Counter;
//!
//! impl Words for Counter {
//!     async fn count(&self, _: &Cx, mut words: Stream<String>, mut longest: Sink<String>) -> u32 {
//!         let (mut count, mut length) = (0, 0);
//!         while let Some(Ok(word)) = words.next().await {
//!             count += 1;
//!             if word.len() > length {
//!                 length = word.len();
//!                 let _ = longest.send(&word).await; // refused when the caller is gone
//!             }
//!         }
//!         count
//!     }
//!
//!     async fn forget(&self, _: &Cx, _: String) {}
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = gimmal::serve("mem://words", serve_words(Counter))?;
//! let client = WordsClient::new(gimmal::connect("mem://words")?);
//! let (mut words, mut longest, call) = client.count();
//! for word in ["a", "rose", "is", "a", "rosebush"] {
//!     words.send_wait(&word.to_owned())?; // or `send(..).await`
//! }
//! drop(words); // no more
//! let longest: Result<Vec<_>, _> = std::iter::from_fn(|| longest.next_wait()).collect();
//! assert_eq!(longest?, ["a", "rose", "rosebush"]);
//! assert_eq!(call.wait()?, 5);
//! client.forget("rose".into()).wait()?; // it has left; nobody says more
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! # Publish and subscribe
//!
//! A [`Topic`] in the server feeds any number of sinks; [`Behind`] says what happens to a subscriber that is slower
//! than the publisher.
//!
//! ```
//! use gimmal::{Behind, Cx, Sink, Topic};
//!
//! #[gimmal::service]
//! trait News {
//!     async fn follow(&self, cx: &Cx, items: Sink<String>);
//! }
//!
//! struct Desk(Topic<String>);
//!
//! impl News for Desk {
//!     async fn follow(&self, _: &Cx, items: Sink<String>) {
//!         self.0.feed(items).await;
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let topic = Topic::new(16, Behind::DropOldest);
//! let server = gimmal::serve("mem://news", serve_news(Desk(topic.clone())))?;
//! let client = NewsClient::new(gimmal::connect("mem://news")?);
//! let (mut items, call) = client.follow();
//! while topic.subscribers() == 0 {
//!     std::thread::yield_now();
//! }
//! topic.publish_wait(&"rain".to_owned())?; // or `publish(..).await`
//! assert_eq!(items.next_wait().transpose()?.as_deref(), Some("rain"));
//! # drop((call, server));
//! # Ok(())
//! # }
//! ```
//!
//! # Large data
//!
//! Arguments and answers are encoded into the transmit ring. What does not fit in a message (a quarter of `ring_bytes`)
//! is encoded into registered memory instead, up to [`Config::message_bytes_max`], and the other side decodes it where
//! it lies (shared memory) or brings it by RDMA READ. Data that should not pass a codec at all travels beside it, as a
//! [`Loan`]:
//!
//! ```
//! use gimmal::{AllocateError, Bulk, Channel, Cx, WithLoan};
//!
//! #[gimmal::service]
//! trait Store {
//!     async fn get(&self, cx: &Cx, bytes: u32) -> Result<WithLoan<u32>, String>;
//!     async fn put(&self, cx: &Cx, name: String, content: Bulk) -> u64;
//! }
//!
//! struct Memory;
//!
//! impl Store for Memory {
//!     async fn get(&self, cx: &Cx, bytes: u32) -> Result<WithLoan<u32>, String> {
//!         let mut loan = cx.loan(bytes as usize).map_err(|error| error.to_string())?;
//!         loan.fill(7);
//!         Ok(WithLoan::new(1, loan))
//!     }
//!
//!     async fn put(&self, _: &Cx, _: String, content: Bulk) -> u64 {
//!         content.len() as u64
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = gimmal::serve("mem://store", serve_store(Memory))?;
//! let client = StoreClient::new(gimmal::connect("mem://store")?);
//! let pulled = client.get(1 << 20).wait()?;
//! assert_eq!((pulled.value, pulled.len(), pulled[0]), (1, 1 << 20, 7));
//! let mut loan = client.channel().loan(100_000)?;
//! loan.fill(1);
//! assert_eq!(client.put("name".into(), loan).wait()?, 100_000);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

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
