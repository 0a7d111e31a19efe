//! End points in one call (`rdma_create_ep(3)`).

use crate::{
    cm::{
        active::{Routed, connects},
        error::{CmError, call},
        listener::Listener,
        target::Target,
    },
    error::require_libraries,
    id::{channel::EventChannel, sync::SyncId},
};

impl Target {
    /// Makes an id, and resolves the target's address and route (`rdma_create_ep(3)`). The library gives each of the two
    /// steps 2 s; the id has an event channel of its own from then on. The target's `ai_connect` data goes before the
    /// private data by itself.
    ///
    /// # Errors
    /// [`CmError::Device`] with the step's errno; [`CmError::Unsupported`] for datagrams.
    pub fn create_ep(&self) -> Result<Routed, CmError> {
        let id = self.sync_id()?;
        let channel = EventChannel::new()?;
        Routed::of(id.into_channel(&channel).map_err(call("rdma_migrate_id"))?, channel)
    }

    /// Makes an id that is bound to a passive target, and listens (`rdma_create_ep(3)`, `rdma_listen(3)`). Its requests
    /// come by `rdma_get_request(3)`.
    ///
    /// # Errors
    /// [`CmError::Device`]: EADDRINUSE, EADDRNOTAVAIL, ENODEV; [`CmError::Unsupported`] for datagrams.
    pub fn listen_ep(&self, backlog: u16) -> Result<Listener, CmError> {
        let id = self.sync_id()?;
        id.listen(backlog).map_err(call("rdma_listen"))?;
        Ok(Listener::of(id))
    }

    fn sync_id(&self) -> Result<SyncId, CmError> {
        require_libraries()?;
        connects(self.port_space, self.qp_type)?;
        // SAFETY: a live entry of a consistent shape, which is lent during the call.
        self.lend(|entry| unsafe { SyncId::create_ep(entry) }).map_err(call("rdma_create_ep"))
    }
}
