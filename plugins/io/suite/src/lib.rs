//! Tokio, with streams of `gimmal-io` in the place of its TCP sockets. An address of 127.0.0.2 is one in memory; all others are TCP.

#![forbid(unsafe_code)]

mod blocking;
pub mod net;

/// The names of `std::net`, for threads that block.
pub mod std_net {
    pub use crate::blocking::{Listener as TcpListener, Socket as TcpStream};
}

pub use tokio_itself::*;
