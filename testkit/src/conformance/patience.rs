//! Limits that a machine does not reach which pauses for some seconds. Cases about limits set their own.

use std::time::Duration;

use gimmal_transport::{ConnectOptions, ListenOptions};

/// Some cases wait until a client that has gone is given up, so it is not a minute.
const HANDSHAKE: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(60);

pub(super) fn listening() -> ListenOptions {
    ListenOptions { handshake_timeout: HANDSHAKE, ..ListenOptions::default() }
}

pub(super) fn connecting() -> ConnectOptions {
    ConnectOptions { connect_timeout: CONNECT, handshake_timeout: HANDSHAKE, ..ConnectOptions::default() }
}
