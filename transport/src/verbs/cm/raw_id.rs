//! Calls on an id that only the raw CM makes; our own connections need fewer.

use std::{mem::MaybeUninit, ptr::NonNull, sync::Arc, time::Duration};

use crate::verbs::{
    cm::{CmId, ConnectParams, EventChannel, id::milliseconds},
    raw::address::{CmAddress, RAW_BYTES, RawCmAddress},
    sys,
};

impl CmId {
    /// An id in a port space of its own choice (`RDMA_PS_*`).
    pub(crate) fn in_space(channel: &Arc<EventChannel>, port_space: u32) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is live; `raw` is a place for one pointer; no context is kept with the id.
        let returned =
            unsafe { sys::rdma_create_id(channel.raw(), &raw mut raw, std::ptr::null_mut(), port_space) };
        sys::cm_result(returned)?;
        let raw = NonNull::new(raw).ok_or(sys::errno::EINVAL)?;
        Ok(Self { raw, has_qp: false, channel: Arc::clone(channel) })
    }

    pub(crate) fn bind_to(&self, address: &CmAddress) -> Result<(), i32> {
        let mut address = RawCmAddress::from(address);
        // SAFETY: the id is live; the address is read during the call only, as long as its family says.
        sys::cm_result(unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    /// `backlog` 0 is the kernel's own maximum (`net.rdma_ucm.max_backlog`).
    pub(crate) fn listen_with(&self, backlog: u16) -> Result<(), i32> {
        // SAFETY: the id is live.
        sys::cm_result(unsafe { sys::rdma_listen(self.raw.as_ptr(), i32::from(backlog)) })
    }

    pub(crate) fn resolve_from(
        &self,
        from: Option<&CmAddress>,
        to: &CmAddress,
        timeout: Duration,
    ) -> Result<(), i32> {
        let mut to = RawCmAddress::from(to);
        let mut from = from.map(RawCmAddress::from);
        let from = from.as_mut().map_or(std::ptr::null_mut(), RawCmAddress::as_mut_ptr);
        // SAFETY: the id is live; both addresses are locals that outlive the call, which only reads them.
        sys::cm_result(unsafe {
            sys::rdma_resolve_addr(self.raw.as_ptr(), from, to.as_mut_ptr(), milliseconds(timeout))
        })
    }

    /// Sets a `u8` option of the id's level.
    pub(crate) fn set_byte(&self, option: i32, mut value: u8) -> Result<(), i32> {
        let place = (&raw mut value).cast();
        // SAFETY: the id is live; the value is read during the call only and has the size given.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), sys::OPTION_ID, option, place, size_of::<u8>())
        })
    }

    /// Gives the path records (`ibv_path_data`, as bytes) instead of resolving the route.
    pub(crate) fn set_paths(&self, mut records: Vec<u64>) -> Result<(), i32> {
        let bytes = size_of_val(records.as_slice());
        let place = records.as_mut_ptr().cast();
        // SAFETY: the id is live; the records are read during the call only, are as many bytes as said, and lie
        // in words, which is at least the alignment of the C structure.
        sys::cm_result(unsafe {
            sys::rdma_set_option(self.raw.as_ptr(), sys::OPTION_IB, sys::OPTION_IB_PATH, place, bytes)
        })
    }

    /// Moves the id and its pending events to another channel.
    pub(crate) fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<(), i32> {
        // SAFETY: both channels are live, and no event of the id is unacked: events are acked when they are read.
        sys::cm_result(unsafe { sys::rdma_migrate_id(self.raw.as_ptr(), channel.raw()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// May block: siw connects its TCP socket inside.
    pub(crate) fn connect(&self, params: &ConnectParams) -> Result<(), i32> {
        let mut raw = params.raw();
        // SAFETY: the id is live; the parameters point into `params`, which outlives the call.
        sys::cm_result(unsafe { sys::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Tells the passive side that a queue pair of our own making is ready.
    pub(crate) fn establish(&self) -> Result<(), i32> {
        // SAFETY: the id is live; with a queue pair of the CM's the call fails and does nothing.
        sys::cm_result(unsafe { sys::rdma_establish(self.raw.as_ptr()) })
    }

    pub(crate) fn remote_ece(&self, ece: &mut sys::ibv_ece) -> Result<(), i32> {
        // SAFETY: the id is live; the place is ours.
        sys::cm_result(unsafe { sys::rdma_get_remote_ece(self.raw.as_ptr(), ece) })
    }

    pub(crate) fn set_local_ece(&self, mut ece: sys::ibv_ece) -> Result<(), i32> {
        // SAFETY: the id is live; the options are read during the call only.
        sys::cm_result(unsafe { sys::rdma_set_local_ece(self.raw.as_ptr(), &raw mut ece) })
    }

    pub(crate) fn reject_ece(&self, private: &[u8]) -> Result<(), i32> {
        let len = u8::try_from(private.len()).unwrap_or(0);
        // SAFETY: the id is live; the bytes are read during the call only.
        sys::cm_result(unsafe { sys::rdma_reject_ece(self.raw.as_ptr(), private.as_ptr().cast(), len) })
    }

    /// What a queue pair of our own must be told to enter `state`, and the mask that says which fields.
    pub(crate) fn qp_attributes(&self, state: u32) -> Result<(sys::ibv_qp_attr, i32), i32> {
        // SAFETY: integers and unions of integers, for which zero is a value.
        let mut attributes: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the id is live; both places are ours.
        sys::cm_result(unsafe {
            sys::rdma_init_qp_attr(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        })?;
        Ok((attributes, mask))
    }

    /// Where the peer is, in any family.
    pub(crate) fn peer_address(&self) -> Option<CmAddress> {
        // SAFETY: the id is live; the union is 128 bytes, all initialised by the library.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: the first bytes of the union; a byte array has no alignment.
        CmAddress::parse(&unsafe { place.cast::<[u8; RAW_BYTES]>().read() })
    }

    /// Where we are, in any family.
    pub(crate) fn local_address(&self) -> Option<CmAddress> {
        // SAFETY: as in `peer_address`.
        let place = unsafe { &raw const (*self.raw.as_ptr()).route.addr.src_addr_union };
        // SAFETY: as in `peer_address`.
        CmAddress::parse(&unsafe { place.cast::<[u8; RAW_BYTES]>().read() })
    }
}
