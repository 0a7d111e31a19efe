//! The passive side. Requests with a valid hello are handed out; others are refused and counted.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use gimmal_rdma::id::{CmEvent, CmId, IdOption, PortSpace};

use crate::{
    AcceptError, ListenError, PortError, RejectReason,
    hello::encode_reject,
    verbs::control::{
        entry::{Live, Role},
        ids::Ids,
        lane::{CREATE_QP, Handle, Lane, LinkParts},
        request::{Listening, Request, Requested},
        shared::Shared,
    },
};

impl Ids {
    /// Listens on the first of `addresses` that works, and with a wildcard on both families. If a device was chosen, listens
    /// on all of them, which are the device's, with one port. Returns the port.
    pub(crate) fn listen(
        &mut self,
        addresses: &[SocketAddr],
        listening: &Listening,
    ) -> Result<u16, ListenError> {
        let on_each = listening.options.device.is_some();
        let (mut bound, mut error) = (None, None);
        for &address in addresses {
            let port = bound.unwrap_or_else(|| address.port());
            match self.listen_on(SocketAddr::new(address.ip(), port), listening) {
                Ok(port) => bound = Some(port),
                Err(why) if on_each => {
                    self.unlisten(listening.ticket);
                    return Err(why);
                }
                Err(why) => error = Some(why),
            }
            if let (false, Some(bound)) = (on_each, bound) {
                if address.ip() == Ipv4Addr::UNSPECIFIED
                    && let Err(error) = self.listen_on((Ipv6Addr::UNSPECIFIED, bound).into(), listening)
                {
                    tracing::info!(%error, "listening on IPv4 only");
                }
                tell_reach(address, addresses);
                break;
            }
        }
        bound.ok_or_else(|| {
            error.unwrap_or_else(|| ListenError::Address {
                address: String::new(),
                why: "the name has no address".to_owned(),
            })
        })
    }

    /// Listens on `address`. Returns the port.
    pub(crate) fn listen_on(
        &mut self,
        address: SocketAddr,
        listening: &Listening,
    ) -> Result<u16, ListenError> {
        let failed = |step| move |errno| listen_error(address, step, errno);
        let id = CmId::new(&self.channel, PortSpace::Tcp).map_err(failed("rdma_create_id"))?;
        if address.is_ipv6() {
            id.set(IdOption::OneFamily(true)).map_err(failed("rdma_set_option"))?;
        }
        id.bind(address).map_err(failed("rdma_bind_addr"))?;
        id.listen(listening.options.backlog.max(1)).map_err(failed("rdma_listen"))?;
        let bound = id.info().local_ip().unwrap_or(address).port();
        self.keep(id, Role::Listener(listening.clone()));
        Ok(bound)
    }

    /// Destroys all ids of the listener `ticket`.
    pub(crate) fn unlisten(&mut self, ticket: u64) {
        let is_its = |role: &Role| matches!(role, Role::Listener(listening) if listening.ticket == ticket);
        let its = self.all().filter(|entry| is_its(&entry.role)).map(|entry| entry.id.key());
        for key in its.collect::<Vec<_>>() {
            self.bury(key);
        }
    }

    /// Handles CONNECT_REQUEST: checks the hello, and hands the request out or refuses it.
    pub(crate) fn request(&mut self, mut event: CmEvent) {
        let Some(id) = event.request.take() else { return };
        let Some(Role::Listener(listening)) = self.get(event.key).map(|entry| &entry.role) else { return };
        let requested = match Requested::read(&event, &id, listening) {
            Ok(requested) => requested,
            Err(reason) => {
                listening.rejected.note(reason, || format!("{:?}", id.info().peer));
                if let Err(errno) = id.reject(&encode_reject(reason)) {
                    tracing::debug!(errno, "rdma_reject failed: the client is gone");
                }
                return;
            }
        };
        let (requests, hello, peer) = (listening.requests.clone(), requested.hello, requested.peer.clone());
        let rejected = Arc::clone(&listening.rejected);
        let handle = self.keep(id, Role::Requested(requested));
        if requests.try_send(Request { handle, hello, peer }).is_err() {
            // As many wait as the backlog allows.
            rejected.note(RejectReason::Overloaded, || format!("request {handle:?}"));
            self.reject(handle, &RejectReason::Overloaded.into());
        }
    }

    /// Accepts a request: makes the queue pair, posts its receives, and only then answers.
    pub(crate) fn accept(&mut self, handle: Handle, shared: &Arc<Shared>) -> Result<LinkParts, AcceptError> {
        self.watches.add(shared);
        // What was destroyed leaves its seats to those who come.
        self.scatter();
        let gone = AcceptError::Gone { errno: libc::ECONNRESET };
        let entry = self.current(handle).ok_or_else(|| gone.clone())?;
        let Role::Requested(requested) = &entry.role else { return Err(gone) };
        let failed = match Lane::new(&mut entry.id, shared, requested.options.receives) {
            Ok(lane) => match requested.answer(&entry.id, handle, lane, shared) {
                Ok(parts) => {
                    entry.role = Role::Live(Live::of(&parts.lane));
                    self.know_qp(handle.key);
                    return Ok(parts);
                }
                Err((lane, error)) => {
                    entry.role = Role::Dying(Some(*lane));
                    error
                }
            },
            Err(error) => {
                let _ = entry.id.reject(&encode_reject(RejectReason::Overloaded));
                match error {
                    // The sums were checked: what is invalid is the state of a request whose client went away.
                    PortError::System { step: CREATE_QP, errno: errno @ libc::EINVAL } => {
                        AcceptError::Gone { errno }
                    }
                    error => error.into(),
                }
            }
        };
        self.bury(handle.key);
        Err(failed)
    }
}

/// Says so where a listener is reached by fewer than its name promises.
fn tell_reach(address: SocketAddr, addresses: &[SocketAddr]) {
    if address.ip().is_loopback() {
        tracing::warn!(%address, "RDMA devices seldom route to loopback: give the address of a device's interface");
    } else if !address.ip().is_unspecified() && addresses.len() > 1 {
        tracing::info!(%address, ?addresses, "listening on one address of the name");
    }
}

fn is_link_local_without_zone(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

fn listen_error(address: SocketAddr, step: &'static str, errno: i32) -> ListenError {
    let name = format!("rdma://{address}");
    match errno {
        // siw refuses loopback addresses with this one too.
        libc::EADDRINUSE if address.ip().is_loopback() => ListenError::Address {
            address: name,
            why: "in use, or the device does not listen on loopback; give the interface's address".to_owned(),
        },
        libc::EADDRINUSE => ListenError::InUse { address: name, by: "a live process".to_owned() },
        libc::EINVAL if is_link_local_without_zone(address) => ListenError::Address {
            address: name,
            why: "a link-local address needs its interface: rdma://[fe80::1%eth0]:port".to_owned(),
        },
        libc::ENODEV | libc::EADDRNOTAVAIL => ListenError::Address {
            address: name,
            why: format!(
                "{step}: no RDMA device has this address, or a listener on all addresses has the port ({})",
                crate::error::errno_text(errno)
            ),
        },
        errno => PortError::System { step, errno }.into(),
    }
}
