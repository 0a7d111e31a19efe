//! An established connection that no port has adopted yet. Dropping it disconnects.

use std::sync::Arc;

use gimmal_rdma::verbs::Cq;

use crate::verbs::control::{
    lane::LinkParts,
    mailbox::{Command, ControlHandle},
};

/// See [`Provider::Link`](crate::Provider::Link).
#[derive(Debug)]
pub struct VerbsLink {
    control: Arc<ControlHandle>,
    parts: Option<Box<LinkParts>>,
}

impl VerbsLink {
    pub(crate) fn new(parts: LinkParts, control: &Arc<ControlHandle>) -> Self {
        Self { control: Arc::clone(control), parts: Some(Box::new(parts)) }
    }

    /// The completion queue of its queue pair.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.parts.as_ref().map(|parts| &parts.lane.holdings.cq)
    }

    /// For the port that adopts it, which destroys it from then on.
    pub(crate) fn into_parts(mut self) -> Option<Box<LinkParts>> {
        self.parts.take()
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.control.send(Command::Destroy { handle: parts.handle, lane: parts.lane });
        }
    }
}
