//! The caller's end of an attempt, which ends at its deadline whatever the control thread does.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use crate::{
    ConnectError, Connecting, Instant,
    verbs::control::{
        attempt::{Attempt, Outcome},
        link::VerbsLink,
        mailbox::{Command, ControlHandle, gone},
    },
};

/// How much later than the control thread's deadline a caller gives up by itself.
const GRACE: Duration = Duration::from_millis(200);

/// An attempt of the active side.
#[derive(Debug)]
pub struct VerbsConnecting {
    control: Arc<ControlHandle>,
    /// Until it came, or was given up.
    outcome: Option<Receiver<Outcome>>,
    ticket: u64,
    address: String,
    timeout: Duration,
    /// When we stop waiting for the control thread.
    limit: Instant,
}

impl VerbsConnecting {
    /// Hands the attempt to the control thread.
    pub(crate) fn start(
        control: &Arc<ControlHandle>,
        attempt: Attempt,
        outcome: Receiver<Outcome>,
    ) -> Result<Self, ConnectError> {
        let connecting = Self {
            control: Arc::clone(control),
            outcome: Some(outcome),
            ticket: attempt.ticket,
            address: attempt.address.clone(),
            timeout: attempt.options.connect_timeout,
            limit: attempt.deadline + GRACE,
        };
        if connecting.control.send(Command::Connect(Box::new(attempt))) {
            Ok(connecting)
        } else {
            Err(gone().into())
        }
    }

    fn give_up(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.control.send(Command::GiveUp { ticket: self.ticket, outcome });
        }
    }
}

impl Connecting for VerbsConnecting {
    type Link = VerbsLink;

    fn poll(&mut self, timeout: Duration) -> Option<Result<VerbsLink, ConnectError>> {
        let receiver = self.outcome.as_ref()?;
        let result = match receiver.recv_timeout(timeout.min(self.limit.remaining())) {
            Ok(outcome) => outcome.map(|parts| VerbsLink::new(parts, &self.control)),
            Err(RecvTimeoutError::Disconnected) => Err(gone().into()),
            Err(RecvTimeoutError::Timeout) if Instant::now() < self.limit => return None,
            // The control thread is stuck in a call: the caller's deadline does not depend on it.
            Err(RecvTimeoutError::Timeout) => {
                self.give_up();
                Err(ConnectError::Timeout {
                    address: self.address.clone(),
                    step: "waiting for the control thread",
                    timeout: self.timeout,
                })
            }
        };
        self.outcome = None;
        Some(result)
    }
}

impl Drop for VerbsConnecting {
    fn drop(&mut self) {
        self.give_up();
    }
}
