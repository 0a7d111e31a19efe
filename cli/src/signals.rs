//! Signals that end a command in order, and the one that does not.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Ready when the process is asked to end.
pub(crate) async fn asked_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// From now on SIGHUP does not end the process: `systemctl reload` sends it to each of them, also to one that has nothing to read again.
pub(crate) fn outlive_hangup() -> io::Result<()> {
    signal(SignalKind::hangup()).map(drop)
}
