//! Workers, rings, credits, bulk and buffer ownership: turns completions into messages.
//!
//! A poll thread (a *worker*) owns its port, its connections and one [`App`]. A turn is
//! `inbox → frames → poll → timers → settle → flush`, bounded, and returns how much it did; idling is a separate
//! strategy ([`Idle`]). Nothing on the data path is shared, locked, allocated or logged.
//!
//! Ways in: [`Inline`], where the calling thread runs the turns, and [`Workers`], threads that take commands from any
//! other. What a connection may send is decided by [`proto`], which is pure: no thread, clock, lock or provider in it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod acceptor;
mod again;
pub mod alarm;
pub mod app;
pub mod config;
mod connection;
pub mod error;
mod holds;
pub mod inline;
pub mod io;
pub mod message;
mod one_sided;
mod overdue;
mod pace;
pub mod place;
pub mod proto;
mod slots;
mod table;
pub mod worker;

pub use acceptor::{Acceptor, Admit, Lost};
pub use alarm::Alarm;
pub use app::{Act, App, Pick};
pub use config::{Config, Plan};
pub use error::{ConfigError, LoanRefused, OpenError, PlaceError, SendError, StartError};
pub use gimmal_transport::{self as transport, RxBuf};
pub use inline::Inline;
pub use io::Io;
pub use message::{Head, Message, RemoteBulk};
pub use place::{Cpu, Cpus, NumaNode, Placement};
pub use worker::{Duty, Idle, Rest, Station, WorkerHandle, Workers};
