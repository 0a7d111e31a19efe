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
//! | `gimmal://host:port` | a server on this host through shared memory, any other by RDMA | `shm`, `verbs` |
//!
//! # Ways to call
//!
//! - [`Client`] is `Clone + Send + Sync`: any thread, any async runtime, or [`wait`](Call::wait). A worker thread does
//!   the work.
//! - [`DrivenClient`] is moved by a future of a current-thread runtime, beside the tasks that call: no second thread. Any
//!   event loop that can wait for a descriptor will do ([`Driver::run`]). Fastest is [`Driver::run_until`], which polls one
//!   future of yours as soon as an answer came: about a microsecond for a call over shared memory.
//! - [`InlineClient`] makes the waiting thread the worker: the lowest latency, no second thread. A [`Pipeline`] on it has the
//!   highest rate: many calls of a raw method, told apart by tags.
//!
//! # Handlers that borrow
//!
//! The arguments of an `async fn` are owned, because its future outlives the message. A method with `#[inline]` is a
//! plain `fn` that runs to its end on the worker; what it borrows is read where the request landed.
//! Inline and raw methods are for short work: nothing else of their worker runs meanwhile, and over shared memory a peer with
//! many calls waiting is shown up to eight of their answers together.
//!
//! ```
//! use gimmal::Cx;
//!
//! #[gimmal::service]
//! trait Sums {
//!     #[inline]
//!     fn sum(&self, cx: &Cx, what: &str, bytes: &[u8]) -> u64;
//! }
//!
//! struct Adder;
//!
//! impl Sums for Adder {
//!     fn sum(&self, _: &Cx, _: &str, bytes: &[u8]) -> u64 {
//!         bytes.iter().map(|byte| u64::from(*byte)).sum()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = gimmal::serve("mem://sums", serve_sums(Adder))?;
//! let client = SumsClient::new(gimmal::connect("mem://sums")?);
//! assert_eq!(client.sum("ones", &[1; 100]).wait()?, 100);
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! Where bytes are owned, as in a `Vec<u8>` that an async method takes or returns, or an item of a `Stream<Vec<u8>>`, the codec
//! copies them once, as one piece. To serde a vector inside a struct of your own is a sequence of numbers: give such a field
//! [`serde_bytes`](https://docs.rs/serde_bytes), or it takes a thousand steps for a kilobyte.
//!
//! A struct of fixed size need not be encoded at all: a method with `#[codec(Zerocopy)]` (feature `zerocopy`) sends it as it lies
//! in memory, and an inline one reads it where it landed, as `InPlace<'_, T>`.
//!
//! Answers are borrowed by who asks for it: [`reply`](Call::reply) and [`wait_reply`](Call::wait_reply) end with a [`Reply`], which has
//! the answer as it came. Its [`get`](Reply::get) is a `&str` for a method that returns a `String`, a `&[u8]` for a `Vec<u8>`, and
//! what [`Lend`] says for types of your own; nothing is allocated for it.
//!
//! ```
//! # use gimmal::Cx;
//! #[gimmal::service]
//! trait Names {
//!     async fn name(&self, cx: &Cx, number: u32) -> String;
//! }
//! # struct Book;
//! # impl Names for Book {
//! #     async fn name(&self, _: &Cx, number: u32) -> String { format!("number {number}") }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = gimmal::serve("mem://names", serve_names(Book))?;
//! # let client = NamesClient::new(gimmal::connect("mem://names")?);
//! let reply = client.name(7).wait_reply()?;
//! let name: &str = reply.get()?;
//! assert_eq!(name, "number 7");
//! # drop(server);
//! # Ok(())
//! # }
//! ```
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
//! `None` means that everything that was sent has been read. An upload comes to it only by [`Sink::finish`]: a sink that is dropped, by an
//! early return, a time-out or a panic, gives the upload up, and the handler reads [`ReadError::Aborted`]. A download comes to it only when
//! its handler returned `Ok`; if the call fails, the server dies or the call is dropped, the caller reads [`ReadError::Over`]. So match
//! on `Err` before you commit what came. Items of a stream are in order, and come before the result of their call; other calls, one-way
//! ones too, may pass them.
//!
//! ```
//! use gimmal::{Cx, Sink, Stream};
//!
//! #[gimmal::service]
//! trait Words {
//!     async fn count(&self, cx: &Cx, words: Stream<String>, longest: Sink<String>) -> Result<u32, String>;
//!     #[oneway]
//!     async fn forget(&self, cx: &Cx, word: String);
//! }
//!
//! struct Counter;
//!
//! impl Words for Counter {
//!     async fn count(
//!         &self,
//!         _: &Cx,
//!         mut words: Stream<String>,
//!         mut longest: Sink<String>,
//!     ) -> Result<u32, String> {
//!         let (mut count, mut length) = (0, 0);
//!         while let Some(word) = words.next().await {
//!             let word = word.map_err(|error| error.to_string())?; // the caller gave up
//!             count += 1;
//!             if word.len() > length {
//!                 length = word.len();
//!                 let _ = longest.send(&word).await; // refused when the caller is gone
//!             }
//!         }
//!         Ok(count)
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
//! words.finish(); // no more
//! let longest: Result<Vec<_>, _> = std::iter::from_fn(|| longest.next_wait()).collect();
//! assert_eq!(longest?, ["a", "rose", "rosebush"]);
//! assert_eq!(call.wait()?, 5);
//! client.forget("rose".into()).wait()?; // it has left; nobody says more, unless asked:
//! let reflection = gimmal::reflect::ReflectionClient::new(client.channel().clone());
//! let delivery = reflection.delivery().wait()?; // of all one-way requests before it on this connection
//! assert_eq!((delivery.started, delivery.refused), (1, 0));
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
//! # Cancel safety
//!
//! What is lost when a future is dropped before it is ready, as `select!` and time-outs do:
//!
//! | future | dropped before it is ready |
//! |---|---|
//! | a call, [`reply`](Call::reply), [`noted`](Call::noted) | The call is cancelled, and its streams are given up. Polled by reference, `&mut call`, no answer is lost. |
//! | [`Stream::next`] | No item is lost. |
//! | [`Sink::send`] | The item was not sent. |
//! | [`Topic::publish`] | No subscriber gets the item. |
//! | [`Topic::feed`] | The subscription ends. Polled by reference, no item is lost. |
//! | [`Driver::run_until`] | `main` is dropped; calls and streams outside of it go on with the next driver future. |
//! | [`Driver::run`] | The connection ends. |
//!
//! [`Sink::finish`] is no future: it neither waits nor fails, and the call's result tells what became of the upload.
//!
//! # Beside the arguments
//!
//! [`Metadata`] goes with a call and with its answer, whatever that comes to; nested calls that are made
//! [`within`](CallOptions::within) a handler's context inherit its deadline and trace context.
//!
//! ```
//! use gimmal::{CallOptions, Cx, Metadata, MetadataError};
//!
//! #[gimmal::service]
//! trait Cook {
//!     async fn cook(&self, cx: &Cx, dish: String) -> u32;
//! }
//!
//! struct Kitchen;
//!
//! impl Cook for Kitchen {
//!     async fn cook(&self, cx: &Cx, _: String) -> u32 {
//!         let tenant = cx.metadata().and_then(|metadata| metadata.text("tenant").map(str::to_owned));
//!         let mut beside = Metadata::new();
//!         let _: Result<(), MetadataError> = beside.insert("cooked-for", tenant.unwrap_or_default());
//!         cx.answer_metadata(beside);
//!         7
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = gimmal::serve("mem://cook", serve_cook(Kitchen))?;
//! let mut metadata = Metadata::new();
//! metadata.insert("tenant", "table 4")?;
//! let client = CookClient::new(gimmal::connect("mem://cook")?);
//! let client = client.with_options(CallOptions::default().metadata(metadata));
//! let (minutes, metadata) = client.cook("soup".into()).wait_noted(); // or `noted().await`
//! assert_eq!((minutes?, metadata.text("cooked-for")), (7, Some("table 4")));
//! # drop(server);
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
//! // Memory of your own, as it lies: over RDMA it is registered once and read there, over shared memory copied once.
//! let kept = gimmal::UserBytes::new(vec![1; 100_000]);
//! assert_eq!(client.put("again".into(), client.channel().lend(&kept)?).wait()?, 100_000);
//! # Ok(())
//! # }
//! ```
//!
//! A loan goes with calls of the client that made it, or with the answer of the call whose [`Cx`] made it; any other ends its call,
//! not run. It is free when the other side has dropped the [`Bulk`] or [`Pulled`]. A connection has at most 65,536 loans under way
//! each way: a call with one more ends as [`TransportError::TooManyLoans`], not run.
//!
//! # Servers that go and come
//!
//! [`Server::shutdown`] frees the address at once, sends the clients elsewhere, refuses new calls (not run) and waits for the
//! handlers that run, one-way ones included, and for their answers to be there; a new process that was started with [`ServerBuilder::take_over`] has the address meanwhile. A [`Client`]
//! makes its next connection by itself. Calls made until then fail at once (not run), wait for it
//! ([`CallOptions::wait_for_ready()`]), or are made again by [`Retry`]: those that did not run always, those that may have run
//! if their method is `#[idempotent]`.
//!
//! ```
//! use gimmal::{Cx, Retry, RetryPolicy};
//!
//! #[gimmal::service]
//! trait Clock {
//!     #[idempotent]
//!     async fn seconds(&self, cx: &Cx) -> u64;
//! }
//!
//! struct Wall;
//!
//! impl Clock for Wall {
//!     async fn seconds(&self, _: &Cx) -> u64 {
//!         7
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = gimmal::serve("mem://clock", serve_clock(Wall))?;
//! let client = gimmal::connect("mem://clock")?;
//! let client = ClockClient::new(Retry::new(client, RetryPolicy::default()));
//! assert_eq!(client.seconds().wait()?, 7);
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! [`Retry`] is a layer: a channel around a channel. [`layer`] has more: time-outs, limits of number and rate, hedging,
//! tokens, logging, metrics, and the same for services. [`Balanced`] is a channel over several servers.
//!
//! # Who may connect
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = gimmal::Key::from_file("/etc/gimmal.key")?; // head -c 32 /dev/urandom, mode 0600
//! let client = gimmal::Client::builder().key(key.clone()).connect("rdma://10.0.0.1:7471")?;
//! let server = gimmal::Server::builder().key(key); // .service(..).listen(..)
//! # let _ = (client, server);
//! # Ok(())
//! # }
//! ```
//!
//! Both sides prove the key, over fresh randomness, before either discloses an address. The bytes of messages are neither
//! signed nor hidden: a key says who may connect. In shared memory the kernel says which user is at the other end; without
//! a word only this user and root ([`Allow`]). Who was let in is trusted with the bytes that it sends: they are read where they
//! landed. Where that goes too far, `config.engine.listen.trust` (or `connect.trust`) is
//! [`Trust::None`](engine::transport::Trust): they are copied first, and nobody is given memory to write.
//!
//! A peer that reads more than it was sent finds no other peer's messages. Bulk is different: memory for loans, and for values above
//! a message, is used again without being wiped, and a peer that was offered any of it can read what lies beside it, also later and
//! for other peers of the same worker. Peers that must not see each other's bulk need servers of their own.
//!
//! Who may call is another question. [`layer::WithToken`] around a channel puts a token beside every call, and a service behind
//! [`layer::Authorize`] runs only calls whose token it accepts; the others end with `unauthenticated`, not run:
//!
//! ```
//! # use gimmal::{Guarded, Layered, Cx, Server, layer::{WithToken, token::tokens}};
//! # #[gimmal::service]
//! # pub trait Vault { async fn open(&self, cx: &Cx) -> u32; }
//! # struct Safe;
//! # impl Vault for Safe { async fn open(&self, _: &Cx) -> u32 { 7 } }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(Guarded::new(serve_vault(Safe), tokens(["s3cret"]))).listen("mem://vault")?;
//! let channel = gimmal::connect("mem://vault")?;
//! let client = VaultClient::new(Layered::new(channel.clone(), WithToken::new("s3cret")));
//! assert_eq!(client.open().wait()?, 7);
//! assert!(VaultClient::new(channel).open().wait().is_err());
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! Tokens travel as metadata and are not hidden; use them over a key, or on a host's own memory.
//!
//! # Blocking in handlers
//!
//! A handler that blocks (a lock, a file, [`wait`](Call::wait) for a call to another server) holds up its worker: the worker's
//! other calls wait, and end at their deadlines. It costs nobody's connection: peers see, over RDMA too, that the process lives. Only
//! where an RDMA connection has no READs (`initiator_depth` of 0) does a peer give up a worker that answers nothing for its
//! `heartbeat_ms`. So await what can be awaited, and hand long work to threads of your own; a future that they complete
//! wakes the handler. Waiting for a call that its own worker would have to serve could never end: it is refused at once, with
//! [`TransportError::OwnWorker`], as is connecting to a server whose only worker the handler runs on. With several workers, a connect or
//! a wait may be for one of the others, and is allowed. [`Server::shutdown`] from a handler of that server returns `false` at once and goes
//! on by itself; dropping a server or a client there does not block. The blocking ends of streams and topics (`next_wait`, `send_wait`,
//! `publish_wait`) never block a worker: where they would, they are refused, since what they wait for may be its own to bring.
//!
//! # Signals
//!
//! gimmal installs no signal handler, and its threads block every signal that is sent to the process. Signals stay with your
//! threads: handlers, `sigwait` and signalfd work as without gimmal. A thread that a handler of a service starts inherits its
//! worker's signal mask; processes started by [`std::process::Command`] do not.
//!
//! # Tests of your own
//!
//! `#[gimmal::service(mock)]` also makes a mock, whose methods do what the test sets: an async function of the arguments, or a
//! plain one for an inline or raw method. (A service is a plain trait: any struct can stand in.) Behind a `mem://` address (any
//! name, within the process) it answers through the whole stack, with no device, file or socket; failures are tested the same
//! way: a handler that is pending for ever, an error, a server that is dropped.
//!
//! ```
//! use gimmal::Cx;
//!
//! #[gimmal::service(mock)]
//! trait Prices {
//!     async fn price(&self, cx: &Cx, item: String) -> Result<u32, String>;
//! }
//!
//! /// The code under test.
//! fn sum(prices: &PricesClient, items: &[&str]) -> Option<u32> {
//!     items.iter().map(|item| prices.price((*item).into()).wait().ok()).sum()
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mock = MockPrices::new().price(|item| async move {
//!     if item == "gold" { Err("sold out".into()) } else { Ok(3) }
//! });
//! let server = gimmal::serve("mem://prices", serve_prices(mock))?;
//! let prices = PricesClient::new(gimmal::connect("mem://prices")?);
//! assert_eq!(sum(&prices, &["tin", "lead"]), Some(6));
//! assert_eq!(sum(&prices, &["tin", "gold"]), None);
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! # What went wrong, by its words
//!
//! | words | what to do |
//! |---|---|
//! | `authentication failed; check that both sides have the same key` | the server has none of the client's key among its own |
//! | `it asks for a shared key and this side gave none` | give the client the key |
//! | `it has no shared key and this side wants one proved` | give the server the key, or connect without |
//! | `did not prove that it has the shared key` | another program has the address, or a server with another key |
//! | `uid N is not on its allow-list` | the server's [`Allow`] lacks this user |
//! | `the hello was not gimmal's: a foreign client on this port` | two programs use one port |
//! | `it speaks protocol version N, this side M` | upgrade the older one |
//! | `it is overloaded; try again later` | `accepted_max`, `port.connections` or the backlog is full |
//! | `the server is shutting down` | not run: make the call elsewhere, or let [`Retry`] do so |
//! | `the connection ended: … (the call may have run)` | the server died while the call was on its way |
//! | `nested deeper than 128 levels` | a value contains itself too often: send it flat. `Some`, a sequence, a map and a variant with contents are a level each |
//! | `no connection became ready before the deadline` | nobody listened for as long as the call waited |
//! | `nobody listens on …; start the server first` | the server is not there, or elsewhere |
//! | `is on another host and cannot be reached by RDMA …; tcp is not there yet` | both hosts need an RDMA device |
//!
//! # A look inside
//!
//! Every server tells about itself ([`reflect`]), unless it was built without:
//!
//! ```sh
//! gimmal call shm://hello                          # what it serves
//! gimmal call shm://hello Hello.hello world        # a call by hand: arguments as JSON
//! gimmal top  shm://hello                          # connections, counters, health
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
