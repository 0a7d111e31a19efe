//! Address handles: where a message goes, and where one came from.

use std::{fmt, mem::MaybeUninit, ptr::NonNull, sync::Arc};

use super::{
    grh::{GRH_BYTES, Grh},
    name::{Gid, Qkey, QpNumber},
    private::AnswerData,
    way::Way,
};
use crate::{
    error::{DeviceError, system},
    sys,
    verbs::context::{Context, Pd, address},
};

/// An `ibv_ah`. Every send that is on its way holds it, so it is destroyed after the last of them.
#[derive(Debug)]
pub(super) struct Handle {
    raw: NonNull<sys::ibv_ah>,
    pd: Arc<Pd>,
}

// SAFETY: an address handle never changes after it was made; libibverbs lets any thread name and destroy it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(pd: &Arc<Pd>, attributes: &sys::ibv_ah_attr) -> Result<Arc<Self>, DeviceError> {
        let mut attributes = *attributes;
        // SAFETY: the domain is live; the attributes are read during the call only.
        let raw = unsafe { sys::ibv_create_ah(pd.raw(), &raw mut attributes) };
        let raw = sys::pointer_result(raw).map_err(system("ibv_create_ah"))?;
        Ok(Arc::new(Self { raw, pd: Arc::clone(pd) }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }

    pub(super) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: ours alone: every send that named it held an `Arc` until the device completed it, or until the
        // queue pair was destroyed.
        let returned = unsafe { sys::ibv_destroy_ah(self.raw.as_ptr()) };
        if let Err(errno) = sys::verbs_result(returned) {
            tracing::warn!(errno, "ibv_destroy_ah failed");
        }
    }
}

/// Where messages go: an address handle, a queue pair number and a queue key.
///
/// Made by a look-up, a join or [`Datagram::reply_to`](super::Datagram::reply_to), each of which enters the kernel:
/// keep it as long as you write to it. It may outlive its end point and is good for that one only.
#[derive(Clone, Debug)]
pub struct Peer {
    pub(super) handle: Arc<Handle>,
    qp: QpNumber,
    qkey: Qkey,
    gid: Gid,
    data: Option<Arc<AnswerData>>,
}

impl Peer {
    pub(super) fn new(pd: &Arc<Pd>, way: &Way, data: Option<AnswerData>) -> Result<Self, DeviceError> {
        Ok(Self {
            handle: Handle::new(pd, &way.attributes)?,
            qp: way.qp,
            qkey: way.qkey,
            gid: Gid(address(&way.attributes.grh.dgid).octets()),
            data: data.map(Arc::new),
        })
    }

    /// Replaces the queue key, for an endpoint whose key the CM does not know.
    #[must_use]
    pub fn with_qkey(mut self, qkey: Qkey) -> Self {
        self.qkey = qkey;
        self
    }

    /// Replaces the queue pair, for protocols that carry its number in their messages.
    #[must_use]
    pub fn with_qp(mut self, qp: QpNumber) -> Self {
        self.qp = qp;
        self
    }

    /// The queue pair; [`QpNumber::MULTICAST`] for a group.
    #[must_use]
    pub fn qp(&self) -> QpNumber {
        self.qp
    }

    /// The key that messages carry.
    #[must_use]
    pub fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// The port or the group.
    #[must_use]
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// What the other side's answer carried, padded with zeroes to 136 bytes; empty unless it was looked up.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.data.as_ref().map_or(&[], |data| data.bytes())
    }
}

/// The sender of a datagram: enough to answer it. All of it comes from the network, which can forge it.
#[derive(Clone, Copy)]
pub struct Source {
    /// The sender's queue pair.
    pub qp: QpNumber,
    header: [u8; GRH_BYTES],
    flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `IBV_WC_GRH`: the first 40 bytes hold a header.
const WITH_GRH: u32 = sys::ibv_wc_flags::IBV_WC_GRH.0;

impl Source {
    pub(super) fn new(wc: &sys::ibv_wc, header: [u8; GRH_BYTES]) -> Self {
        Self {
            qp: QpNumber::new(wc.src_qp),
            header,
            flags: wc.wc_flags & WITH_GRH,
            pkey_index: wc.pkey_index,
            slid: wc.slid,
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
        }
    }

    /// The network header; `None` on a local InfiniBand network without one, or when it is neither form.
    #[must_use]
    pub fn grh(&self) -> Option<Grh> {
        if self.flags & WITH_GRH == 0 { None } else { Grh::parse(&self.header) }
    }

    /// The way back, by `ibv_init_ah_from_wc`.
    pub(super) fn way(&self, context: &Context, port: u8, qkey: Qkey) -> Result<Way, DeviceError> {
        let mut wc: sys::ibv_wc = sys::zeroed();
        wc.src_qp = self.qp.get();
        wc.wc_flags = self.flags;
        wc.pkey_index = self.pkey_index;
        wc.slid = self.slid;
        wc.sl = self.sl;
        wc.dlid_path_bits = self.dlid_path_bits;
        let mut grh = MaybeUninit::<sys::ibv_grh>::uninit();
        const { assert!(size_of::<sys::ibv_grh>() == GRH_BYTES) };
        // SAFETY: the place has exactly these 40 bytes, and a byte array may be stored anywhere.
        unsafe { grh.as_mut_ptr().cast::<[u8; GRH_BYTES]>().write_unaligned(self.header) };
        let mut attributes: sys::ibv_ah_attr = sys::zeroed();
        // SAFETY: the context is open; the three places are ours and initialised.
        let returned = unsafe {
            sys::ibv_init_ah_from_wc(context.raw(), port, &raw mut wc, grh.as_mut_ptr(), &raw mut attributes)
        };
        // -1 without an errno: the header is neither form, or was sent to an address that is not the port's.
        let step = "ibv_init_ah_from_wc";
        sys::verbs_result(returned).map_err(|_| DeviceError::System { step, errno: libc::EINVAL })?;
        Ok(Way { attributes, qp: self.qp, qkey })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("qp", &self.qp).field("grh", &self.grh()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(flags: u32) -> sys::ibv_wc {
        let mut wc: sys::ibv_wc = sys::zeroed();
        wc.src_qp = 0x11;
        wc.wc_flags = flags;
        wc
    }

    #[test]
    fn a_header_counts_only_when_the_completion_says_so() {
        let mut header = [0; GRH_BYTES];
        header[0] = 0x60;
        header[7] = 9;
        assert_eq!(Source::new(&completion(WITH_GRH), header).grh().unwrap().hops, 9);
        assert_eq!(Source::new(&completion(0), header).grh(), None);
        assert_eq!(Source::new(&completion(WITH_GRH), [0; GRH_BYTES]).grh(), None, "neither form");
        assert_eq!(Source::new(&completion(0), header).qp, QpNumber::new(0x11));
    }
}
