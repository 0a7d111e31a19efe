//! An id with its queue pair, completion queue and memory: what both sides prepare before they connect.

use std::sync::Arc;

use crate::{
    cm::{
        error::{CmError, above, call},
        memory::{Access, Blocks, Buffer, RemoteBuffer, Span, Work},
        operation::Operation,
        own_qp::{OwnQp, QpView, view},
        params::DeviceDepths,
    },
    id::{
        address::CmAddress,
        channel::EventChannel,
        cm_id::{CmId, IdOption},
        event::CmEvent,
        params::QpRequest,
        space::QpType,
    },
    verbs::{
        context::{Context, DeviceLimits, Pd},
        cq::Cq,
        lists::RecvList,
        qp::Qp,
    },
};

/// Which side of the API makes the queue pair, and takes it through its states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QpMaker {
    /// `rdma_create_qp(3)`.
    #[default]
    Cm,
    /// We, with `rdma_init_qp_attr(3)`, CONNECT_RESPONSE and `rdma_establish(3)`. Not on iWARP, whose CM has neither.
    Us,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpPlan {
    /// Sends, READs and WRITEs that may be posted at a time.
    pub send_entries: u32,
    /// Receives that may be posted at a time.
    pub recv_entries: u32,
    /// The maker of the queue pair.
    pub maker: QpMaker,
}

impl Default for QpPlan {
    fn default() -> Self {
        Self { send_entries: 16, recv_entries: 16, maker: QpMaker::Cm }
    }
}

/// The device that an id is bound to.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    pub(crate) limits: DeviceLimits,
}

impl Device {
    pub(crate) fn of(id: &CmId) -> Result<Self, CmError> {
        let unbound = CmError::Unsupported { what: "the device", why: "the id is bound to none" };
        let context = id.context()?.ok_or(unbound)?;
        let limits = context.query()?;
        Ok(Self { context, limits })
    }

    pub(crate) fn depths(&self) -> DeviceDepths {
        DeviceDepths {
            responder_resources: self.limits.responder_resources,
            initiator_depth: self.limits.initiator_depth,
        }
    }

    /// Sets how long the queue pair of `id` waits for an ACK.
    pub(crate) fn set_ack_timeout(&self, id: &CmId, exponent: u8) -> Result<(), CmError> {
        if self.limits.iwarp {
            return Err(CmError::Unsupported { what: "an ACK timeout", why: "iWARP has TCP's" });
        }
        if exponent > 31 {
            return Err(above("ack_timeout", exponent.into(), 31));
        }
        id.set(IdOption::AckTimeout(exponent)).map_err(call("rdma_set_option(ACK_TIMEOUT)"))
    }

    /// What the CM's event says that the peer gives, as (responder_resources, initiator_depth).
    pub(crate) fn granted_by(&self, event: &CmEvent) -> (u8, u8) {
        let said = (event.responder_resources, event.initiator_depth);
        // siw's event has the two the other way round.
        if self.limits.iwarp { (said.1, said.0) } else { said }
    }
}

/// An id with its queue pair, completion queue and memory: what both sides prepare before they connect. Fields are
/// dropped in this order, which is the only safe one: queue pair and id first.
#[derive(Debug)]
pub struct Endpoint {
    /// The licence to post; of the queue pair of `own` or of `id`.
    pub(crate) qp: Qp,
    pub(crate) own: Option<OwnQp>,
    pub(crate) id: CmId,
    pub(crate) memory: Blocks,
    pub(crate) receives: u32,
    pub(crate) sends: u32,
    pub(crate) plan: QpPlan,
    pub(crate) queue: Arc<Cq>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) device: Device,
    pub(crate) channel: Arc<EventChannel>,
}

/// What has an endpoint can do what an endpoint can.
macro_rules! endpoints {
    ($($name:ident)*) => { $(
        impl std::ops::Deref for $name {
            type Target = Endpoint;

            fn deref(&self) -> &Endpoint {
                &self.endpoint
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Endpoint {
                &mut self.endpoint
            }
        }
    )* };
}
pub(crate) use endpoints;

impl Endpoint {
    pub(crate) fn new(mut id: CmId, channel: Arc<EventChannel>, plan: QpPlan) -> Result<Self, CmError> {
        let device = Device::of(&id)?;
        if plan.maker == QpMaker::Us && device.limits.iwarp {
            return Err(CmError::Unsupported {
                what: "a queue pair of our own making",
                why: "the CM of iWARP has no CONNECT_RESPONSE; let it make the queue pair",
            });
        }
        for (field, value) in [("send_entries", plan.send_entries), ("recv_entries", plan.recv_entries)] {
            if value == 0 || value > device.limits.qp_entries {
                return Err(above(field, value.into(), device.limits.qp_entries.into()));
            }
        }
        let pd = Pd::new(&device.context)?;
        let entries = plan.send_entries.saturating_add(plan.recv_entries);
        let queue = if device.limits.iwarp {
            Cq::new(&device.context, &device.limits)
        } else {
            Cq::with_entries(&device.context, &device.limits, entries)
        }?;
        let request = QpRequest {
            send_entries: plan.send_entries,
            recv_entries: plan.recv_entries,
            inline_bytes: 0,
            srq: None,
            kind: QpType::Rc,
        };
        let (qp, own) = match plan.maker {
            QpMaker::Cm => {
                let qp = id.create_qp(&pd, &queue, &queue, request);
                (qp.map_err(call("rdma_create_qp"))?, None)
            }
            QpMaker::Us => {
                let own = OwnQp::new(&id, &pd, &queue, request)?;
                (own.licence(), Some(own))
            }
        };
        Ok(Self {
            qp,
            own,
            id,
            memory: Blocks::new(),
            receives: 0,
            sends: 0,
            plan,
            queue,
            pd,
            device,
            channel,
        })
    }

    /// `rxe0`.
    #[must_use]
    pub fn device(&self) -> String {
        self.device.context.name()
    }

    /// Whether the fabric is iWARP: the active side sends first, and RNR and ACK timers mean nothing.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.device.limits.iwarp
    }

    /// What the device can have outstanding.
    #[must_use]
    pub fn device_depths(&self) -> DeviceDepths {
        self.device.depths()
    }

    /// Our own address, with the port that was chosen.
    #[must_use]
    pub fn local_address(&self) -> Option<CmAddress> {
        self.id.info().local
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_address(&self) -> Option<CmAddress> {
        self.id.info().peer
    }

    /// What `ibv_query_qp(3)` shows.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn query(&self) -> Result<QpView, CmError> {
        view(&self.qp)
    }

    /// Registered memory of `bytes`, zeroed; it lives as long as the endpoint.
    ///
    /// # Errors
    /// [`CmError::Device`] when memory cannot be mapped or locked.
    pub fn add_buffer(&mut self, bytes: usize, access: Access) -> Result<Buffer, CmError> {
        self.memory.add(&self.pd, bytes, access, self.device.limits.iwarp)
    }

    /// Copies `bytes` to the start of `span`.
    ///
    /// # Errors
    /// [`CmError::Posted`] while the device has any of it, [`CmError::Device`] when it does not fit.
    pub fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), CmError> {
        self.memory.write(span, bytes)
    }

    /// Copies the start of `span` out.
    ///
    /// # Errors
    /// As [`Endpoint::write`], but only while the device may write it.
    pub fn read(&self, span: Span, into: &mut [u8]) -> Result<(), CmError> {
        self.memory.read(span, into)
    }

    /// What a peer needs to READ or WRITE `span`; give it only to a peer that you trust with these bytes.
    ///
    /// # Errors
    /// [`CmError::Unsupported`] for a buffer that was made without [`Access::RemoteRead`] or
    /// [`Access::RemoteWrite`].
    pub fn expose(&self, span: Span) -> Result<RemoteBuffer, CmError> {
        self.memory.expose(span)
    }

    /// Posts a receive. Before connect or accept, for what the peer sends first.
    ///
    /// # Errors
    /// [`CmError::Full`], [`CmError::Posted`], [`CmError::Device`].
    pub fn post_receive(&mut self, span: Span, token: u64) -> Result<(), CmError> {
        if self.receives == self.plan.recv_entries {
            return Err(CmError::Full);
        }
        let (id, local) = self.memory.post(Work { operation: Operation::Receive, token, span })?;
        let mut list = RecvList::new(1);
        list.push(id, Some(local));
        if let Err(error) = list.post(&self.qp) {
            self.memory.end(id);
            return Err(call("ibv_post_recv")(error.errno));
        }
        self.receives += 1;
        Ok(())
    }

    pub(crate) fn qp_number(&self) -> u32 {
        if self.own.is_some() { self.qp.number() } else { 0 }
    }
}
