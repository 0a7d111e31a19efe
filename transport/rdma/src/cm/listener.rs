//! The passive side: requests with everything they said, answered with an accept or a reject.

use std::{sync::Arc, time::Duration};

use crate::{
    cm::{
        connection::Connection,
        endpoint::{Endpoint, QpPlan, endpoints},
        error::{CmError, call},
        params::{AcceptParam, Depths, RejectData},
        shared::SharedReceives,
        wait::{self},
    },
    id::{
        address::CmAddress,
        channel::EventChannel,
        cm_id::{CmId, IdInfo},
        event::{CmEvent, EventKind},
        sync::SyncId,
    },
    wait::Deadline,
};

/// Listens.
#[derive(Debug)]
pub struct Listener(Source);

/// Where requests come from.
#[derive(Debug)]
enum Source {
    /// Events of a channel.
    Channel(CmId, Arc<EventChannel>),
    /// `rdma_get_request(3)`.
    Sync(SyncId),
}

impl Listener {
    pub(crate) fn new(id: CmId, channel: Arc<EventChannel>) -> Self {
        Self(Source::Channel(id, channel))
    }

    /// Of an id without a channel, which listens.
    pub(crate) fn of(id: SyncId) -> Self {
        Self(Source::Sync(id))
    }

    /// Where, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> Option<CmAddress> {
        match &self.0 {
            Source::Channel(id, _) => id.info().local,
            Source::Sync(id) => id.info().local,
        }
    }

    /// The next request, waiting at most `timeout`; it has an event channel of its own from here on.
    ///
    /// # Errors
    /// [`CmError::Event`] when the device goes away; drop the listener then.
    pub fn request(&mut self, timeout: Duration) -> Result<Option<Request>, CmError> {
        match &mut self.0 {
            Source::Channel(_, channel) => Self::next(channel, &Deadline::after(timeout)),
            Source::Sync(id) => {
                let Some(id) = id.request(timeout).map_err(call("rdma_get_request"))? else {
                    return Ok(None);
                };
                let event = id.event().ok_or_else(|| call("rdma_get_request")(libc::EINVAL))?;
                let channel = EventChannel::new()?;
                let id = id.into_channel(&channel).map_err(call("rdma_migrate_id"))?;
                Ok(Some(Request { id, channel, event }))
            }
        }
    }

    fn next(channel: &Arc<EventChannel>, limit: &Deadline) -> Result<Option<Request>, CmError> {
        const STEP: &str = "listening";
        loop {
            let mut event = match wait::next(channel, limit, STEP) {
                Ok(event) => event,
                Err(CmError::Timeout { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            match event.kind {
                EventKind::ConnectRequest => {}
                EventKind::DeviceRemoval => return Err(wait::failed(&event, STEP)),
                // Of a request that was dropped before it could be moved to its own channel.
                _ => {
                    tracing::debug!(?event, "passed over while {STEP}");
                    continue;
                }
            }
            let Some(mut id) = event.request.take() else { continue };
            let channel = EventChannel::new()?;
            id.migrate(&channel).map_err(call("rdma_migrate_id"))?;
            return Ok(Some(Request { id, channel, event }));
        }
    }
}

/// A request to connect. Dropping it rejects it.
#[derive(Debug)]
pub struct Request {
    pub(crate) id: CmId,
    channel: Arc<EventChannel>,
    event: CmEvent,
}

impl Request {
    /// What the request says: private data (on InfiniBand and RoCE all 56 bytes, padded with zeroes), depths as seen from
    /// here, flow control, retries, and the peer's queue pair (0 on iWARP).
    #[must_use]
    pub fn event(&self) -> &CmEvent {
        &self.event
    }

    /// The requester's address, and which of ours was asked.
    #[must_use]
    pub fn info(&self) -> IdInfo {
        self.id.info()
    }

    /// Refuses, with data for the other side (`rdma_reject(3)`).
    ///
    /// # Errors
    /// [`CmError::Device`] when the client is gone already.
    pub fn reject(self, private_data: &RejectData) -> Result<(), CmError> {
        self.id.reject(private_data.bytes()).map_err(call("rdma_reject"))
    }

    /// Makes the queue pair: post the receives for what the peer sends first, then accept.
    ///
    /// # Errors
    /// As [`Routed::endpoint`](crate::cm::Routed::endpoint); the request is rejected then.
    pub fn endpoint(self, plan: QpPlan) -> Result<Answering, CmError> {
        let endpoint = Endpoint::new(self.id, self.channel, plan, None)?;
        Ok(Answering { endpoint, event: self.event })
    }

    /// Makes the queue pair, whose receives come from `shared`.
    ///
    /// # Errors
    /// As [`Request::endpoint`]; [`CmError::Unsupported`] for receives of another device.
    pub fn endpoint_on(self, plan: QpPlan, shared: &SharedReceives) -> Result<Answering, CmError> {
        let endpoint = Endpoint::new(self.id, self.channel, plan, Some(shared.clone()))?;
        Ok(Answering { endpoint, event: self.event })
    }
}

/// A request with a queue pair. Dropping it rejects it.
#[derive(Debug)]
pub struct Answering {
    endpoint: Endpoint,
    event: CmEvent,
}

endpoints! { Answering }

impl Answering {
    /// How long our own queue pair waits for an ACK (`RDMA_OPTION_ID_ACK_TIMEOUT`): 4.096 us x 2^`exponent`.
    ///
    /// # Errors
    /// [`CmError::Device`] above 31, [`CmError::Unsupported`] on iWARP.
    pub fn ack_timeout(&self, exponent: u8) -> Result<(), CmError> {
        self.endpoint.device.set_ack_timeout(&self.endpoint.id, exponent)
    }

    /// `rdma_accept(3)`, and waits until the connection stands.
    ///
    /// # Errors
    /// [`CmError::Device`] when the client gave up before, [`CmError::Event`], [`CmError::Timeout`].
    pub fn accept(self, param: &AcceptParam, timeout: Duration) -> Result<Connection, CmError> {
        let Self { endpoint, event } = self;
        let limit = Deadline::after(timeout);
        let device = endpoint.device.depths();
        let said = endpoint.device.granted_by(&event);
        let depths = Depths::settle(param.responder_resources, param.initiator_depth, device, said);
        if let Some(own) = &endpoint.own {
            let (responder_resources, initiator_depth) = depths.granted();
            own.ready(&endpoint.id, responder_resources, initiator_depth)?;
        }
        let raw = param.raw(&depths, endpoint.qp_number());
        endpoint.id.accept(&raw).map_err(call("rdma_accept"))?;
        let mut connection = Connection::new(endpoint, depths, event);
        connection.await_established(&limit)?;
        Ok(connection)
    }

    /// Refuses, with data for the other side.
    ///
    /// # Errors
    /// [`CmError::Device`] when the client is gone already.
    pub fn reject(self, private_data: &RejectData) -> Result<(), CmError> {
        self.endpoint.id.reject(private_data.bytes()).map_err(call("rdma_reject"))
    }
}
