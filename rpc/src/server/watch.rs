//! The end of the runtime that a server's handlers use.

use std::{
    any::Any,
    fmt,
    future::pending,
    sync::{Arc, Weak},
};

use crate::{command::Command, draining::Signal, shared::Shared, workers::Place};

/// Watches the runtime of a server, as long as this is there.
pub(super) struct Watch {
    _is_served: Arc<()>,
    _task: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// When the runtime ends, `ended` is set, and the workers at `places` end their handlers and drain.
    pub(super) fn new(shared: &Arc<Shared>, ended: &Arc<Signal>, places: &[Place]) -> Self {
        let is_served = Arc::new(());
        let task = shared.runtime.as_ref().map(|runtime| {
            let sentinel = Sentinel {
                is_served: Arc::downgrade(&is_served),
                shared: Arc::clone(shared),
                ended: Arc::clone(ended),
                places: places.to_vec(),
            };
            runtime.spawn(Box::pin(async move {
                let _sentinel = sentinel;
                pending::<()>().await;
            }))
        });
        Self { _is_served: is_served, _task: task }
    }
}

/// Part of a task that never ends: a runtime drops it when the runtime itself ends.
struct Sentinel {
    is_served: Weak<()>,
    shared: Arc<Shared>,
    ended: Arc<Signal>,
    places: Vec<Place>,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if self.is_served.strong_count() == 0 {
            return;
        }
        tracing::warn!("the runtime of a server has ended: its handlers end, and it takes no more calls");
        self.shared.drain();
        for place in &self.places {
            // A full inbox has commands of clients only, whose calls are refused from now on.
            let _ = place.handle().submit(Command::RuntimeEnded);
        }
        self.ended.set();
    }
}
