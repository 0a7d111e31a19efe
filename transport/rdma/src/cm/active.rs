//! The active side, one type for each step: what a step does not allow cannot be called.
//!
//! ```text
//!  Draft ─resolve─► Resolved ─resolve_route─► Routed ─endpoint─► Dialing ─connect─► Connection
//!    TOS, REUSEADDR,   TOS, ACK_TIMEOUT        ACK_TIMEOUT          buffers, receives
//!    AFONLY
//! ```
//! A step that fails, or whose deadline passes, leaves nothing.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    time::Duration,
};

use crate::{
    cm::{
        connection::Connection,
        device::Device,
        endpoint::{Endpoint, QpPlan, endpoints},
        error::{CmError, call},
        listener::Listener,
        params::{ConnectParam, Depths, DeviceDepths},
        shared::SharedReceives,
        target::Target,
        wait::{self},
    },
    error::DeviceError,
    id::{
        address::CmAddress,
        channel::EventChannel,
        cm_id::{CmId, IdOption},
        event::EventKind,
        params::ConnectParams,
        path::PathData,
        record::PathRecord,
        space::{PortSpace, QpType},
    },
    thread,
    wait::Deadline,
};

/// An id that is bound to nothing yet.
#[derive(Debug)]
pub struct Draft {
    id: CmId,
    channel: Arc<EventChannel>,
}

impl Draft {
    /// An id of its own event channel (`rdma_create_id(3)`).
    ///
    /// # Errors
    /// [`CmError::Device`] without an RDMA CM in the kernel; [`CmError::Unsupported`] in the port spaces of datagrams.
    pub fn new(port_space: PortSpace) -> Result<Self, CmError> {
        connects(Some(port_space), None)?;
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel, port_space).map_err(call("rdma_create_id"))?;
        Ok(Self { id, channel })
    }

    /// Type of service of what is set up from here on (`RDMA_OPTION_ID_TOS`): the byte of RFC 2474.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn type_of_service(&self, tos: u8) -> Result<(), CmError> {
        set_tos(&self.id, tos)
    }

    /// Lets the address be bound while another id has it that also allowed this (`RDMA_OPTION_ID_REUSEADDR`). Behind
    /// TIME_WAIT an address is free without it.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn reuse_address(&self, reuse: bool) -> Result<(), CmError> {
        self.id.set(IdOption::ReuseAddress(reuse)).map_err(call("rdma_set_option(REUSEADDR)"))
    }

    /// Listens on the bound family only (`RDMA_OPTION_ID_AFONLY`): like `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn one_family(&self, only: bool) -> Result<(), CmError> {
        self.id.set(IdOption::OneFamily(only)).map_err(call("rdma_set_option(AFONLY)"))
    }

    /// Binds to `address` and listens (`rdma_bind_addr(3)`, `rdma_listen(3)`). Port 0 chooses one. A wildcard address
    /// listens on all devices. `backlog` counts requests that nobody fetched; the kernel refuses more than that, and
    /// takes 0 as its own maximum.
    ///
    /// # Errors
    /// [`CmError::Device`]: EADDRINUSE, EADDRNOTAVAIL, ENODEV.
    pub fn listen(self, address: impl Into<CmAddress>, backlog: u16) -> Result<Listener, CmError> {
        self.id.bind(address).map_err(call("rdma_bind_addr"))?;
        self.id.listen(backlog).map_err(call("rdma_listen"))?;
        Ok(Listener::new(self.id, self.channel))
    }

    /// Binds to a device that reaches `to`, from `from` if given (`rdma_resolve_addr(3)`).
    ///
    /// # Errors
    /// [`CmError::Event`] when no device reaches it, [`CmError::Timeout`].
    pub fn resolve(
        self,
        from: Option<CmAddress>,
        to: impl Into<CmAddress>,
        timeout: Duration,
    ) -> Result<Resolved, CmError> {
        const STEP: &str = "resolving the address";
        let limit = Deadline::after(timeout);
        self.id.resolve_address(from, to, timeout).map_err(call("rdma_resolve_addr"))?;
        wait::expect(&self.channel, EventKind::AddrResolved, &limit, STEP)?;
        let device = Device::of(&self.id)?;
        Ok(Resolved { id: self.id, channel: self.channel, device })
    }
}

/// Refuses what is not connected reliably.
pub(crate) fn connects(space: Option<PortSpace>, kind: Option<QpType>) -> Result<(), CmError> {
    let (what, why) = match (space, kind) {
        (Some(PortSpace::Udp), _) | (_, Some(QpType::Ud)) => {
            ("a datagram queue pair", "connections are reliable; use datagram::Datagram")
        }
        (Some(PortSpace::IpOib), _) => ("the port space IPOIB", "its groups are IP over InfiniBand's own"),
        (_, Some(QpType::Uc)) => {
            ("an unreliable connection", "neither the CM's IP port spaces nor cm make one")
        }
        _ => return Ok(()),
    };
    Err(CmError::Unsupported { what, why })
}

fn set_tos(id: &CmId, tos: u8) -> Result<(), CmError> {
    id.set(IdOption::TypeOfService(tos)).map_err(call("rdma_set_option(TOS)"))
}

/// Bound to a device (ADDR_RESOLVED).
#[derive(Debug)]
pub struct Resolved {
    id: CmId,
    channel: Arc<EventChannel>,
    device: Device,
}

impl Resolved {
    /// `rxe0`.
    #[must_use]
    pub fn device(&self) -> String {
        self.device.context.name()
    }

    /// What the device can have outstanding.
    #[must_use]
    pub fn device_depths(&self) -> DeviceDepths {
        self.device.depths()
    }

    /// See [`Draft::type_of_service`].
    ///
    /// # Errors
    /// [`CmError::Device`].
    pub fn type_of_service(&self, tos: u8) -> Result<(), CmError> {
        set_tos(&self.id, tos)
    }

    /// How long our own queue pair waits for an ACK: 4.096 us x 2^`exponent`, 0 for ever
    /// (`RDMA_OPTION_ID_ACK_TIMEOUT`). Here it also sets the packet lifetime of a RoCE route.
    ///
    /// # Errors
    /// [`CmError::Device`] above 31, [`CmError::Unsupported`] on iWARP.
    pub fn ack_timeout(&self, exponent: u8) -> Result<(), CmError> {
        self.device.set_ack_timeout(&self.id, exponent)
    }

    /// `rdma_resolve_route(3)`.
    ///
    /// # Errors
    /// [`CmError::Event`], [`CmError::Timeout`].
    pub fn resolve_route(self, timeout: Duration) -> Result<Routed, CmError> {
        let limit = Deadline::after(timeout);
        self.id.resolve_route(timeout).map_err(call("rdma_resolve_route"))?;
        self.routed(&limit)
    }

    /// Takes these path records instead of asking the subnet (`RDMA_OPTION_IB_PATH`).
    ///
    /// # Errors
    /// [`CmError::Device`]: EINVAL where the link is not InfiniBand's.
    pub fn use_route(self, paths: &[PathData], timeout: Duration) -> Result<Routed, CmError> {
        let limit = Deadline::after(timeout);
        self.id.set(IdOption::Paths(paths)).map_err(call("rdma_set_option(IB_PATH)"))?;
        self.routed(&limit)
    }

    fn routed(self, limit: &Deadline) -> Result<Routed, CmError> {
        wait::expect(&self.channel, EventKind::RouteResolved, limit, "resolving the route")?;
        Ok(Routed { id: self.id, channel: self.channel, device: self.device })
    }
}

/// Has a route (ROUTE_RESOLVED).
#[derive(Debug)]
pub struct Routed {
    id: CmId,
    channel: Arc<EventChannel>,
    device: Device,
}

impl Routed {
    /// An id that has its route already.
    pub(crate) fn of(id: CmId, channel: Arc<EventChannel>) -> Result<Self, CmError> {
        let device = Device::of(&id)?;
        Ok(Self { id, channel, device })
    }

    /// The routes that the CM found.
    #[must_use]
    pub fn paths(&self) -> Vec<PathRecord> {
        PathRecord::of(&self.id)
    }

    /// The device that the route leaves by, and its port: `("rxe0", 1)`.
    #[must_use]
    pub fn device(&self) -> (String, u8) {
        (self.device.context.name(), self.id.info().port)
    }

    /// Our own address.
    #[must_use]
    pub fn local_address(&self) -> Option<CmAddress> {
        self.id.info().local
    }

    /// See [`Resolved::ack_timeout`]; here it leaves the route as it is.
    ///
    /// # Errors
    /// [`CmError::Device`] above 31, [`CmError::Unsupported`] on iWARP.
    pub fn ack_timeout(&self, exponent: u8) -> Result<(), CmError> {
        self.device.set_ack_timeout(&self.id, exponent)
    }

    /// Makes the queue pair.
    ///
    /// # Errors
    /// [`CmError::Device`] for sizes the device has not, [`CmError::Unsupported`] for a queue pair of our own making
    /// on iWARP, [`CmError::Device`].
    pub fn endpoint(self, plan: QpPlan) -> Result<Dialing, CmError> {
        Ok(Dialing { endpoint: Endpoint::new(self.id, self.channel, plan, None)? })
    }

    /// Makes the queue pair, whose receives come from `shared`.
    ///
    /// # Errors
    /// As [`Routed::endpoint`]; [`CmError::Unsupported`] for receives of another device.
    pub fn endpoint_on(self, plan: QpPlan, shared: &SharedReceives) -> Result<Dialing, CmError> {
        let shared = Some(shared.clone());
        Ok(Dialing { endpoint: Endpoint::new(self.id, self.channel, plan, shared)? })
    }
}

/// What is set on the way to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DialOptions {
    /// See [`Draft::type_of_service`].
    pub type_of_service: Option<u8>,
    /// See [`Resolved::ack_timeout`]; left out on iWARP.
    pub ack_timeout: Option<u8>,
    /// All of one attempt: resolving and connecting, over all targets.
    pub timeout: Duration,
    /// Sizes of the queue pair.
    pub plan: QpPlan,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            type_of_service: None,
            ack_timeout: None,
            timeout: Duration::from_secs(5),
            plan: QpPlan::default(),
        }
    }
}

/// Tries `targets` in order until one connects. `prepare` makes buffers and posts receives, once for each target
/// that has a device; `own_data` is our private data, which goes behind the target's `ai_connect` data.
///
/// # Errors
/// Of the last target that was tried; misuse and the deadline end it at once.
pub fn dial<T>(
    targets: &[Target],
    options: &DialOptions,
    param: &ConnectParam,
    mut prepare: impl FnMut(&mut Endpoint) -> Result<T, CmError>,
) -> Result<(Connection, T), CmError> {
    let limit = Deadline::after(options.timeout);
    let mut error = CmError::Resolve { what: "nothing".to_owned(), why: "there is no address".to_owned() };
    for target in targets {
        // Before anything is sent: what can never fit.
        let private_data = target.private_data(param.private_data.bytes())?;
        let param = ConnectParam { private_data, ..param.clone() };
        match one(target, options, &param, &limit, &mut prepare) {
            Err(CmError::Timeout { step, .. }) if limit.has_passed() => {
                return Err(wait::timed_out(&limit, step));
            }
            Err(why @ (CmError::Device(DeviceError::Limit { .. }) | CmError::Unsupported { .. })) => {
                return Err(why);
            }
            Err(why) => {
                tracing::debug!(%why, "trying the next address");
                error = why;
            }
            connected => return connected,
        }
    }
    Err(error)
}

fn one<T>(
    target: &Target,
    options: &DialOptions,
    param: &ConnectParam,
    limit: &Deadline,
    prepare: &mut impl FnMut(&mut Endpoint) -> Result<T, CmError>,
) -> Result<(Connection, T), CmError> {
    let to = target
        .destination
        .ok_or(CmError::Unsupported { what: "connecting", why: "the result is for listening" })?;
    connects(target.port_space, target.qp_type)?;
    let draft = Draft::new(target.port_space.unwrap_or(PortSpace::Tcp))?;
    if let Some(tos) = options.type_of_service {
        draft.type_of_service(tos)?;
    }
    let resolved = draft.resolve(target.source, to, limit.left())?;
    if let Some(exponent) = options.ack_timeout.filter(|_| !resolved.device.limits.iwarp) {
        resolved.ack_timeout(exponent)?;
    }
    let routed = if target.routes.is_empty() {
        resolved.resolve_route(limit.left())?
    } else {
        resolved.use_route(&target.routes, limit.left())?
    };
    let mut dialing = routed.endpoint(options.plan)?;
    let prepared = prepare(&mut dialing.endpoint)?;
    Ok((dialing.connect(param, limit.left())?, prepared))
}

/// Has a queue pair: add buffers and post receives, then connect.
#[derive(Debug)]
pub struct Dialing {
    endpoint: Endpoint,
}

endpoints! { Dialing }

impl Dialing {
    /// `rdma_connect(3)`, which has no deadline and may block: it runs on a thread of its own, and what it leaves
    /// behind after our deadline is cleared away there.
    ///
    /// # Errors
    /// [`CmError::Rejected`], [`CmError::Timeout`], [`CmError::Event`], [`CmError::Device`].
    pub fn connect(self, param: &ConnectParam, timeout: Duration) -> Result<Connection, CmError> {
        const STEP: &str = "connecting";
        let limit = Deadline::after(timeout);
        let device = self.endpoint.device.depths();
        // What the peer gives is not known yet.
        let free = (u8::MAX, u8::MAX);
        let offer = Depths::settle(param.responder_resources, param.initiator_depth, device, free);
        let raw = param.raw(&offer, self.endpoint.qp_number());
        let endpoint = call_connect(self.endpoint, raw, &limit)?;
        let wanted = if endpoint.own.is_some() { EventKind::ConnectResponse } else { EventKind::Established };
        let event = match wait::expect(&endpoint.channel, wanted, &limit, STEP) {
            Ok(event) => event,
            Err(error) => {
                if matches!(error, CmError::Timeout { .. }) {
                    reap(endpoint);
                }
                return Err(error);
            }
        };
        let peer = endpoint.device.granted_by(&event);
        let depths = Depths::settle(param.responder_resources, param.initiator_depth, device, peer);
        if let Some(own) = &endpoint.own {
            let (responder_resources, initiator_depth) = depths.granted();
            own.ready(&endpoint.id, responder_resources, initiator_depth)?;
            endpoint.id.establish().map_err(call("rdma_establish"))?;
        }
        Ok(Connection::new(endpoint, depths, event))
    }
}

fn call_connect(endpoint: Endpoint, param: ConnectParams, limit: &Deadline) -> Result<Endpoint, CmError> {
    let (done, returned) = sync_channel(0);
    let helper = thread::spawn("rdma-connect", move || {
        let result = endpoint.id.connect(&param);
        // Nobody waits any more: what is left of the attempt is dropped here, however long that takes.
        let _ = done.send((endpoint, result));
    });
    helper.map_err(|error| call("starting a thread")(error.raw_os_error().unwrap_or(0)))?;
    match returned.recv_timeout(limit.left()) {
        Ok((endpoint, Ok(()))) => Ok(endpoint),
        Ok((endpoint, Err(errno))) => {
            // siw says so from inside the call when nobody listens.
            if endpoint.is_iwarp() && errno != libc::EINVAL {
                Err(wait::rejected(errno.saturating_neg(), &[]))
            } else {
                Err(call("rdma_connect")(errno))
            }
        }
        Err(RecvTimeoutError::Timeout) => Err(wait::timed_out(limit, "connecting (inside rdma_connect)")),
        Err(RecvTimeoutError::Disconnected) => Err(call("rdma_connect")(0)),
    }
}

/// Destroying an id whose peer has not answered waits in the kernel for that answer on iWARP: not on this thread.
fn reap(endpoint: Endpoint) {
    if !endpoint.is_iwarp() {
        return;
    }
    if let Err(error) = thread::spawn("rdma-reap", move || drop(endpoint)) {
        tracing::warn!(%error, "no thread to destroy an unanswered id");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before any library is opened.
    #[test]
    fn a_draft_of_datagrams_is_refused() {
        for space in [PortSpace::Udp, PortSpace::IpOib] {
            assert!(matches!(Draft::new(space), Err(CmError::Unsupported { .. })));
        }
    }
}
