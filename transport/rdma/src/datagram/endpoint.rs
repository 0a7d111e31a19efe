//! A datagram end point: its id, its queue pair and everything it owns.

use std::{collections::VecDeque, fmt, net::SocketAddr, sync::Arc, time::Duration};

use super::{
    config::{DatagramConfig, DatagramCounters},
    error::{OpenError, SendError},
    event::DatagramEvent,
    multicast::Joined,
    name::{Qkey, QpNumber},
    peer::{Peer, Source},
    queue::{Parts, Queue, Received},
    request::Pending,
    way::with_scope,
};
use crate::{
    error::{DeviceError, system},
    id::{
        channel::EventChannel,
        cm_id::CmId,
        event::{CmEvent, EventKind},
        params::QpRequest,
        space::{PortSpace, QpType},
    },
    sys,
    verbs::context::{Context, Pd, mtu_bytes},
    wait::Deadline,
};

/// One queue pair for datagrams on one device. See [the module](super).
pub struct Datagram {
    // In the order of their drop: the queue pair goes first, with its id; then nobody reads or writes the slots.
    pub(super) id: CmId,
    pub(super) listener: Option<CmId>,
    pub(super) requests: Vec<Pending>,
    pub(super) groups: Vec<Joined>,
    pub(super) queue: Queue,
    pub(super) pd: Arc<Pd>,
    pub(super) context: Arc<Context>,
    pub(super) channel: Arc<EventChannel>,
    pub(super) events: VecDeque<DatagramEvent>,
    pub(super) config: DatagramConfig,
    pub(super) local: SocketAddr,
    pub(super) port_number: u8,
    pub(super) number: QpNumber,
    pub(super) next_number: u64,
    pub(super) next_group: u32,
    /// The device was removed.
    pub(super) gone: bool,
}

/// Where an end point is, and what it can send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramInfo {
    /// Our address on the device; its port means nothing.
    pub local: SocketAddr,
    /// Our queue pair.
    pub qp: QpNumber,
    /// The device: `rxe0`.
    pub device: String,
    /// The device's port, from 1.
    pub port: u8,
    /// The largest message: the port's active MTU, in bytes. A path with a smaller one drops larger messages without a
    /// word.
    pub message_bytes_max: usize,
}

impl Datagram {
    /// Opens an end point on the device that has the address `local`, whose port is not used: see
    /// [`listen`](Self::listen).
    ///
    /// # Errors
    /// No RDMA device has this address; the device has no datagrams; a limit of the configuration or the device.
    pub fn bind(local: SocketAddr, config: &DatagramConfig) -> Result<Self, OpenError> {
        config.check()?;
        let channel = EventChannel::new()?;
        let refused = |why: &str| OpenError::Address { address: local, why: why.to_owned() };
        if local.ip().is_unspecified() {
            return Err(refused("an end point lives on one device: give the address of one"));
        }
        let id = CmId::new(&channel, PortSpace::Udp).map_err(system("rdma_create_id"))?;
        let address = with_scope(SocketAddr::new(local.ip(), 0), local);
        id.bind(address).map_err(|errno| match errno {
            libc::ENODEV | libc::EADDRNOTAVAIL => refused("no RDMA device has it; see `rdma link`"),
            errno => OpenError::Device(DeviceError::System { step: "rdma_bind_addr", errno }),
        })?;
        Self::build(id, channel, config, address)
    }

    /// Opens an end point on the device that leads to `remote`, which need not answer.
    ///
    /// # Errors
    /// No RDMA device has a route there, or its neighbour did not answer within `timeout`; and as for
    /// [`bind`](Self::bind).
    pub fn toward(remote: SocketAddr, config: &DatagramConfig, timeout: Duration) -> Result<Self, OpenError> {
        config.check()?;
        let deadline = Deadline::after(timeout);
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel, PortSpace::Udp).map_err(system("rdma_create_id"))?;
        let failed = |event, status| OpenError::Resolve { address: remote, event, status };
        id.resolve_address(None, remote, timeout).map_err(|errno| failed("rdma_resolve_addr", -errno))?;
        let event = CmEvent::before(&channel, &deadline)?
            .ok_or_else(|| failed("no ADDR_RESOLVED in time", -libc::ETIMEDOUT))?;
        if event.kind != EventKind::AddrResolved || event.status != 0 {
            return Err(failed(event.kind.name(), event.status));
        }
        let local = id.info().local_ip().ok_or_else(|| failed("no source address", -libc::EADDRNOTAVAIL))?;
        Self::build(id, channel, config, local)
    }

    /// `id` is bound to a device.
    fn build(
        mut id: CmId,
        channel: Arc<EventChannel>,
        config: &DatagramConfig,
        local: SocketAddr,
    ) -> Result<Self, OpenError> {
        let unbound =
            || OpenError::Address { address: local, why: "it belongs to no RDMA device".to_owned() };
        let context = id.context()?.ok_or_else(unbound)?;
        let limits = context.query()?;
        if limits.iwarp {
            return Err(OpenError::NoDatagrams { device: context.name() });
        }
        for (field, value) in [("receives", config.receives), ("sends", config.sends)] {
            let limit = limits.qp_entries.min(limits.cq_entries.saturating_sub(1));
            if u32::from(value) > limit {
                let (value, limit) = (value.into(), limit.into());
                return Err(OpenError::Device(DeviceError::Limit { field, value, limit }));
            }
        }
        let port_number = id.info().port;
        let mtu = mtu_bytes(context.query_port(port_number)?.active_mtu);
        if mtu == 0 {
            let unknown = DeviceError::System { step: "ibv_query_port: active_mtu", errno: libc::EINVAL };
            return Err(unknown.into());
        }
        let pd = Pd::new(&context)?;
        let parts = Parts::new(&context, &limits, &pd, config, mtu as usize)?;
        let room = QpRequest {
            send_entries: config.sends.into(),
            recv_entries: config.receives.into(),
            pieces: 1,
            inline_bytes: 0,
            srq: None,
            kind: QpType::Ud,
            create_flags: None,
        };
        let (sends, receives) = (&parts.send_cq, &parts.receive_cq);
        let qp = id.create_qp(&pd, sends, receives, room).map_err(system("rdma_create_qp"))?;
        // SAFETY: the licence lives in the queue, which is dropped right behind the id, and posts nothing then.
        unsafe { id.end_qp_with_id() };
        let number = QpNumber::new(qp.number());
        // From here on the order of the fields is the order of destruction.
        let mut endpoint = Self {
            id,
            listener: None,
            requests: Vec::with_capacity(config.requests.into()),
            groups: Vec::new(),
            queue: Queue::new(qp, parts),
            pd,
            context,
            channel,
            events: VecDeque::new(),
            config: *config,
            local,
            port_number,
            number,
            next_number: 0,
            next_group: 0,
            gone: false,
        };
        if config.qkey != Qkey::UDP {
            // Legal in RTS.
            let attributes = sys::ibv_qp_attr { qkey: config.qkey.0, ..sys::zeroed() };
            let set = endpoint.queue.qp().modify(attributes, sys::ibv_qp_attr_mask::IBV_QP_QKEY);
            set.map_err(system("ibv_modify_qp"))?;
        }
        endpoint.queue.prepost()?;
        Ok(endpoint)
    }

    /// Where the end point is, and what it can send.
    #[must_use]
    pub fn info(&self) -> DatagramInfo {
        DatagramInfo {
            local: self.local,
            qp: self.number,
            device: self.context.name(),
            port: self.port_number,
            message_bytes_max: self.queue.mtu(),
        }
    }

    /// Sends a copy of `message`. Ok means that the device has it, nothing more.
    ///
    /// # Errors
    /// Too large, the send queue is full, or the device refused: nothing was sent.
    pub fn send(&mut self, to: &Peer, message: &[u8]) -> Result<(), SendError> {
        self.send_with(to, message.len(), None, |place| place.copy_from_slice(message))
    }

    /// Sends `bytes` bytes that `fill` writes where the device reads them, and four more as immediate data.
    /// What `fill` leaves alone holds an earlier message.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_with(
        &mut self,
        to: &Peer,
        bytes: usize,
        imm: Option<u32>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        if self.gone {
            return Err(SendError::DeviceGone);
        }
        if !to.handle.is_of(&self.pd) {
            return Err(SendError::Foreign);
        }
        self.queue.send(to, bytes, imm, fill)
    }

    /// Hands out messages that arrived, at most 32, and posts their receives again. Never waits; 0: there is none.
    ///
    /// # Errors
    /// The device refused.
    pub fn receive(&mut self, each: impl FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        self.queue.receive(each)
    }

    /// Returns the peer that sent a datagram. Keep the peer: this enters the kernel, which on RoCE resolves the
    /// sender's
    /// hardware address and waits for that at most a second if it does not know it.
    ///
    /// # Errors
    /// The datagram's header leads nowhere, or the device refused.
    pub fn reply_to(&self, source: &Source) -> Result<Peer, DeviceError> {
        let way = source.way(&self.context, self.port_number, self.config.qkey)?;
        Peer::new(&self.pd, &way, None)
    }

    /// Waits at most `timeout` until the device took every send; `false`: it has not.
    ///
    /// # Errors
    /// The device refused.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, SendError> {
        self.queue.drain(&Deadline::after(timeout))
    }

    /// What was done so far.
    pub fn counters(&mut self) -> DatagramCounters {
        self.queue.count()
    }

    /// Waits at most `timeout` for sends on their way, then leaves every group and destroys everything. Dropping an end
    /// point does the same without the wait.
    pub fn close(mut self, timeout: Duration) -> DatagramCounters {
        if let Err(error) = self.drain(timeout) {
            tracing::debug!(%error, "datagrams were on their way when their end point closed");
        }
        self.counters()
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.leave_all();
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("local", &self.local)
            .field("qp", &self.number)
            .field("listening", &self.listener.is_some())
            .field("groups", &self.groups)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_point_moves_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<Datagram>();
        is_send::<Peer>();
    }
}
