//! Pending notifications of the control thread. They are delivered in batches, so that a sleeping thread is woken
//! once per batch.

use std::sync::mpsc::SendError;

use crate::{
    AcceptError,
    verbs::control::{
        connect::Attempt,
        lane::{Holdings, LinkParts},
        mailbox::Then,
        thread::Control,
    },
};

/// As many are told of together, at most: the first of them waits for the last.
const TOGETHER: usize = 16;

/// Pending notifications of the control thread.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    pub(crate) connected: Vec<(Box<Attempt>, LinkParts)>,
    pub(crate) accepted: Vec<(Then, Result<LinkParts, AcceptError>)>,
    /// Of queue pairs that are gone.
    pub(crate) destroyed: Vec<Holdings>,
}

impl Untold {
    fn len(&self) -> usize {
        self.connected.len() + self.accepted.len() + self.destroyed.len()
    }

    /// Frees the seats of what was destroyed. Deregistering takes long: it comes before any port is woken.
    pub(crate) fn scatter(&mut self) {
        self.destroyed.iter_mut().for_each(Holdings::deregister);
        self.destroyed.clear();
    }
}

impl Control {
    /// Tells everybody, if that are many.
    pub(crate) fn tell_of_many(&mut self) {
        if self.untold.len() >= TOGETHER {
            self.tell();
        }
    }

    /// Tells everybody.
    pub(crate) fn tell(&mut self) {
        for (then, outcome) in std::mem::take(&mut self.untold.accepted) {
            (then.0)(outcome);
        }
        for (attempt, parts) in std::mem::take(&mut self.untold.connected) {
            if let Err(SendError(Ok(parts))) = attempt.outcome.send(Ok(parts)) {
                self.discard(parts);
            }
        }
        self.untold.scatter();
    }
}
