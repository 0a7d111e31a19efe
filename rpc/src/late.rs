//! What clients ask of a worker whose inbox is full, and what must not be lost for it: that a call is cancelled, or a connection
//! closed. It needs no place there.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use gimmal_engine::transport::{ConnId, Negotiated};

use crate::{cell::CallCell, shared::lock};

/// What has come late for one worker, and for its successor when it has panicked.
#[derive(Default)]
pub(crate) struct Late {
    /// Something is in it: a look at an empty one is a load.
    any: AtomicBool,
    asked: Mutex<Asked>,
}

#[derive(Default)]
pub(crate) struct Asked {
    /// Calls that nobody waits for any more. Their connections are those that they were made on.
    pub(crate) cancels: Vec<(ConnId, Arc<CallCell>)>,
    /// Connections that nobody uses any more. Another one of this worker's successor may have the same name.
    pub(crate) closes: Vec<(ConnId, Arc<Negotiated>)>,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Late({})", self.any())
    }
}

impl Late {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Adds to what was asked. The worker is to be rung then.
    pub(crate) fn ask(&self, add: impl FnOnce(&mut Asked)) {
        let mut asked = lock(&self.asked);
        add(&mut asked);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes all of it. It is dropped outside of the lock: cells hold wakers, which are foreign code.
    pub(crate) fn take(&self) -> Asked {
        let mut asked = lock(&self.asked);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *asked)
    }
}
