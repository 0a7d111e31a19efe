//! An id with its queue pair, completion queue and memory: what both sides prepare before they connect.

use std::sync::Arc;

use crate::{
    cm::{
        device::Device,
        error::{CmError, above, call},
        memory::{Access, Blocks, Buffer, RemoteBuffer, Span, Work},
        operation::Operation,
        params::DeviceDepths,
        shared::SharedReceives,
        view::{QpView, view},
    },
    id::{
        address::CmAddress,
        channel::EventChannel,
        cm_id::{CmId, IdInfo},
        own_qp::OwnQp,
        params::QpRequest,
        space::QpType,
    },
    verbs::{
        context::Pd,
        cq::Cq,
        events::{AsyncEvent, DeviceEvent},
        gather::{self, PIECES_MAX},
        qp::Qp,
        srq::Srq,
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
    /// Pieces of memory that one request may name.
    pub pieces: u32,
    /// Bytes that the device takes with a request, see [`SendFlags::inline`](crate::cm::SendFlags::inline).
    pub inline_bytes: u32,
    /// The maker of the queue pair.
    pub maker: QpMaker,
}

impl Default for QpPlan {
    fn default() -> Self {
        Self { send_entries: 16, recv_entries: 16, pieces: 1, inline_bytes: 0, maker: QpMaker::Cm }
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
    /// Where its receives come from, if not from a queue of its own.
    pub(crate) shared: Option<SharedReceives>,
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
    pub(crate) fn new(
        mut id: CmId,
        channel: Arc<EventChannel>,
        plan: QpPlan,
        shared: Option<SharedReceives>,
    ) -> Result<Self, CmError> {
        let device = Device::of(&id)?;
        if plan.maker == QpMaker::Us && device.limits.iwarp {
            return Err(CmError::Unsupported {
                what: "a queue pair of our own making",
                why: "the CM of iWARP has no CONNECT_RESPONSE; let it make the queue pair",
            });
        }
        let (entries, pieces) = (device.limits.qp_entries, device.limits.pieces.min(MOST_PIECES));
        for (field, value, limit) in [
            ("send_entries", plan.send_entries, entries),
            ("recv_entries", plan.recv_entries, entries),
            ("pieces", plan.pieces, pieces),
        ] {
            if value == 0 || value > limit {
                return Err(above(field, value.into(), limit.into()));
            }
        }
        let pd = match &shared {
            Some(shared) => shared.with(|_, pd, of| {
                let is_same = of.context.key() == device.context.key();
                let other =
                    CmError::Unsupported { what: "the shared receives", why: "they are another device's" };
                is_same.then(|| Arc::clone(pd)).ok_or(other)
            })?,
            None => Pd::new(&device.context)?,
        };
        // Of receives that are shared, any number may complete here.
        let receives = shared.as_ref().map_or(plan.recv_entries, SharedReceives::entries);
        let entries = plan.send_entries.saturating_add(receives);
        let queue = Cq::with_entries(&device.context, &device.limits, entries)?;
        let (qp, own) = match &shared {
            Some(shared) => shared.with(|srq, _, _| make(&mut id, &pd, &queue, plan, Some(srq.srq()))),
            None => make(&mut id, &pd, &queue, plan, None),
        }?;
        Ok(Self {
            qp,
            own,
            id,
            memory: Blocks::new(),
            shared,
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
        self.post_receive_into(&[span], token)
    }

    /// Posts a receive that fills several pieces, one after the other. None at all is enough for the number of a
    /// [`Transfer::WriteImm`](crate::cm::Transfer::WriteImm).
    ///
    /// # Errors
    /// As [`Endpoint::post_receive`]; [`CmError::Device`] for more pieces than the plan has.
    pub fn post_receive_into(&mut self, pieces: &[Span], token: u64) -> Result<(), CmError> {
        if self.shared.is_some() {
            return Err(CmError::Unsupported { what: "a receive", why: "post it to the SharedReceives" });
        }
        if self.receives == self.plan.recv_entries {
            return Err(CmError::Full);
        }
        self.fits(pieces)?;
        let (id, pieces) = self.memory.post(Work::new(Operation::Receive, token, pieces))?;
        if let Err(errno) = gather::post_receive(&self.qp, id, &pieces) {
            self.memory.end(id);
            return Err(call("ibv_post_recv")(errno));
        }
        self.receives += 1;
        Ok(())
    }

    /// Refuses more pieces than the queue pair takes.
    pub(crate) fn fits(&self, pieces: &[Span]) -> Result<(), CmError> {
        let (count, limit) = (pieces.len() as u64, u64::from(self.plan.pieces));
        if count > limit { Err(above("pieces", count, limit)) } else { Ok(()) }
    }

    /// What the library knows of the id: addresses, GIDs, partition, port.
    #[must_use]
    pub fn info(&self) -> IdInfo {
        self.id.info()
    }

    /// Whether an event of [`DeviceEvents`](crate::verbs::DeviceEvents) is about this endpoint: its queue pair, its
    /// completion queue, its shared receives, or its whole device.
    #[must_use]
    pub fn concerns(&self, event: &AsyncEvent) -> bool {
        use DeviceEvent as E;
        if event.device != self.device.context.key() {
            return false;
        }
        match event.kind {
            E::CqErr => event.element == self.queue.address(),
            E::SrqErr | E::SrqLimit => self
                .shared
                .as_ref()
                .is_some_and(|shared| shared.with(|srq, _, _| srq.srq().address() == event.element)),
            E::QpFatal
            | E::QpReqErr
            | E::QpAccessErr
            | E::CommEst
            | E::SqDrained
            | E::PathMig
            | E::PathMigErr
            | E::LastWqe => event.element == self.qp.raw().addr(),
            E::PortActive
            | E::PortErr
            | E::LidChange
            | E::PkeyChange
            | E::SmChange
            | E::ClientReregister
            | E::GidChange => event.element == usize::from(self.id.info().port),
            E::DeviceFatal | E::WqFatal | E::Other(_) => true,
        }
    }

    pub(crate) fn qp_number(&self) -> u32 {
        if self.own.is_some() { self.qp.number() } else { 0 }
    }
}

const MOST_PIECES: u32 = 32;
const _: () = assert!(MOST_PIECES as usize == PIECES_MAX);

/// Makes the queue pair of `id`.
fn make(
    id: &mut CmId,
    pd: &Arc<Pd>,
    queue: &Arc<Cq>,
    plan: QpPlan,
    srq: Option<&Srq>,
) -> Result<(Qp, Option<OwnQp>), CmError> {
    let request = QpRequest {
        send_entries: plan.send_entries,
        recv_entries: if srq.is_some() { 0 } else { plan.recv_entries },
        pieces: plan.pieces,
        inline_bytes: plan.inline_bytes,
        srq,
        kind: QpType::Rc,
        create_flags: None,
    };
    match plan.maker {
        QpMaker::Cm => {
            let qp = id.create_qp(pd, queue, queue, request);
            Ok((qp.map_err(call("rdma_create_qp"))?, None))
        }
        QpMaker::Us => {
            let own = OwnQp::new(id, pd, queue, queue, request)?;
            Ok((own.licence(), Some(own)))
        }
    }
}
