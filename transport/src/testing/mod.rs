//! What the tests of this crate and of others need of it.

mod builder;
mod came;
mod certificates;
#[cfg(all(test, any(feature = "shm", feature = "tcp")))]
pub(crate) mod process;

use std::time::Duration;

use crate::{ConnectOptions, ListenOptions};

pub use builder::{BuilderCall, no_call_undoes_another};
pub use came::{Came, next_frames, poll};
pub use certificates::{Authority, Issued};

/// Longer than a machine that is busy with something else stands still.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of a client that is given up by no limit. Tests of these limits set their own.
#[must_use]
pub fn patient_connect() -> ConnectOptions {
    ConnectOptions { connect_timeout: PATIENCE, handshake_timeout: PATIENCE, ..ConnectOptions::default() }
}

/// Options of a server that gives up no client. Tests of the limit set their own.
#[must_use]
pub fn patient_listen() -> ListenOptions {
    ListenOptions { handshake_timeout: PATIENCE, ..ListenOptions::default() }
}

/// All of `region`, for a test that is the peer of the code under test.
#[cfg(feature = "testing")]
#[must_use]
pub fn words(region: crate::mem::Region) -> crate::Words {
    crate::Words::of(region)
}
