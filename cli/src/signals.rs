//! Signals that end a command in order, and the one that does not.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::say::complain;

/// Ready when the process is asked to end.
pub(crate) async fn asked_to_end() {
    tokio::select! {
        () = arrives(SignalKind::terminate()) => {}
        () = arrives(SignalKind::interrupt()) => {}
    }
}

/// Ready when this signal arrives. Never where that cannot be told: then the signal ends the process itself.
async fn arrives(kind: SignalKind) {
    match signal(kind) {
        Ok(mut arrivals) => drop(arrivals.recv().await),
        Err(error) => {
            complain(&format!("signal {}: {error}", kind.as_raw_value()));
            std::future::pending().await
        }
    }
}

/// From now on SIGHUP does not end the process: `systemctl reload` sends it to each of them, also to one that has nothing to read again.
pub(crate) fn outlive_hangup() -> io::Result<()> {
    signal(SignalKind::hangup()).map(drop)
}
