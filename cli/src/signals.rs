//! Signals that end a command in order.

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
