//! Limits far above what a machine that pauses for some seconds takes. Cases about limits set their own.

use std::time::Duration;

use gimmal_transport::{
    ConnectOptions, ListenOptions,
    testing::{patient_connect, patient_listen},
};

/// Some cases wait until a client that has gone is given up, so it is not a minute.
const HANDSHAKE: Duration = Duration::from_secs(10);

pub(super) fn listening() -> ListenOptions {
    ListenOptions { handshake_timeout: HANDSHAKE, ..patient_listen() }
}

pub(super) fn connecting() -> ConnectOptions {
    ConnectOptions { handshake_timeout: HANDSHAKE, ..patient_connect() }
}
