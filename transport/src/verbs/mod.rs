//! The RDMA CM and verbs: InfiniBand, RoCE and iWARP devices, rxe and siw among them.
//!
//! ```text
//!  Verbs ──► ControlHandle ══ control thread: EventChannel, ids          (control side)
//!               ▲                  │ owns id + queue pair, destroys them in exchange for the licence
//!  VerbsGate ───┤                  ▼
//!     │      VerbsPort ─► Conn ─► licence (Qp) · Holdings (registrations, share of a Cq, seat)
//!     └─► Shared ─► PortDevice ─► Pool ─► Pd ─► Context
//! ```
//! Destroyed in this order: queue pair, id, registrations, then the connection's seat; per port the completion
//! queues and the protection domain; last the event channel. Every CM event is acked when it is read.
//!
//! Data travels by write-with-immediate into the peer's receive ring where the device can, by SEND into posted
//! receives where it cannot (iWARP). Bulk is pulled by RDMA READ.

mod control;
mod data;
mod memory;
mod srq;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, mpsc::sync_channel},
};

use gimmal_rdma::device::require_device;

use crate::{
    Address, ConnectError, ConnectOptions, Instant, ListenError, ListenOptions, PortConfig, PortError,
    Provider, Via, config::CONNECTIONS_MAX, sync::lock::lock,
};

pub use control::connecting::VerbsConnecting;
pub use control::gate::VerbsGate;
pub use control::link::VerbsLink;
pub use control::listener::{VerbsIncoming, VerbsListener};
pub use data::port::VerbsPort;

use self::{
    control::{attempt::Attempt, mailbox::ControlHandle, ports, thread::Control},
    data::wr_id,
};

const _: () = assert!(wr_id::INDEX_LIMIT >= CONNECTIONS_MAX);

/// The provider. Its control thread starts with the first use and ends with the last user.
#[derive(Clone, Debug, Default)]
pub struct Verbs {
    control: Arc<Mutex<Option<Arc<ControlHandle>>>>,
}

impl Verbs {
    /// Touches no device yet: what is missing is said by the first call that needs it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn control(&self) -> Result<Arc<ControlHandle>, PortError> {
        let mut control = lock(&self.control);
        if let Some(control) = &*control {
            return Ok(Arc::clone(control));
        }
        require_device()?;
        let started = Control::spawn()?;
        *control = Some(Arc::clone(&started));
        Ok(started)
    }
}

fn rdma_host(address: &Address) -> Result<(&str, u16, &Via), String> {
    match address {
        Address::Rdma { host, port, via } => Ok((host, *port, via)),
        other => Err(format!("{other} is not for verbs; use rdma://host:port")),
    }
}

impl Provider for Verbs {
    type Port = VerbsPort;
    type Gate = VerbsGate;
    type Link = VerbsLink;
    type Listener = VerbsListener;
    type Connecting = VerbsConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<VerbsPort, PortError> {
        config.check()?;
        VerbsPort::open(config, self.control()?)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<VerbsListener, ListenError> {
        let receives = options.receives.toward(options.trust)?;
        let wrong = |why| ListenError::Address { address: address.to_string(), why };
        let (host, port, via) = rdma_host(address).map_err(wrong)?;
        if via.source.is_some() {
            return Err(wrong(
                "a listener has no source: give its address as the host, or a device".to_owned(),
            ));
        }
        let device = via.device.clone().or_else(|| options.device.clone());
        let options = ListenOptions { device, receives, ..options.clone() };
        VerbsListener::start(&self.control()?, (host, port), via.service, &options)
    }

    fn connect(
        &self,
        address: &Address,
        gate: &VerbsGate,
        options: &ConnectOptions,
    ) -> Result<VerbsConnecting, ConnectError> {
        let (host, port, via) =
            rdma_host(address).map_err(|why| ConnectError::Address { address: address.to_string(), why })?;
        let receives = options.receives.toward(options.trust)?;
        let control = self.control()?;
        let mut options = options.clone();
        options.receives = receives;
        options.device = via.device.clone().or(options.device);
        options.source = via.source.or(options.source);
        let mut sources: Vec<_> = options.source.into_iter().collect();
        if let Some(choice) = &options.device {
            let has = ports::addresses_of(choice)?;
            if let Some(source) = sources.first().filter(|source| !has.contains(source)) {
                let why = format!("{choice} has {has:?}, and not {source}");
                return Err(ConnectError::Address { address: address.to_string(), why });
            }
            if sources.is_empty() {
                sources = has;
            }
        }
        let (sender, outcome) = sync_channel(1);
        let attempt = Attempt {
            ticket: control.ticket(),
            address: address.to_string(),
            host: host.to_owned(),
            port,
            service: via.service.unwrap_or(0),
            candidates: VecDeque::new(),
            is_looked_up: false,
            current: None,
            shared: Arc::clone(&gate.shared),
            deadline: Instant::now() + options.connect_timeout,
            options,
            nonce: u128::from_le_bytes(crate::proof::random()?),
            sources,
            running: None,
            outcome: sender,
        };
        VerbsConnecting::start(&control, attempt, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Receives, Trust};

    #[test]
    fn peers_that_are_not_trusted_share_no_receives() {
        for receives in [Receives::Own, Receives::Shared, Receives::SharedAbove(0), Receives::default()] {
            assert_eq!(receives.toward(Trust::Peer), Ok(receives));
            if receives != Receives::Shared {
                assert_eq!(receives.toward(Trust::None), Ok(Receives::Own));
            }
        }
        let why = Receives::Shared.toward(Trust::None).unwrap_err();
        assert!(why.to_string().contains("Receives::Shared") && why.to_string().contains("Trust::None"));
        // On a machine without devices, too.
        let address: Address = "rdma://127.0.0.1:0".parse().unwrap();
        let options =
            ListenOptions { receives: Receives::Shared, trust: Trust::None, ..ListenOptions::default() };
        let refused = Verbs::new().listen(&address, &options).unwrap_err();
        assert!(matches!(&refused, ListenError::Port(error) if *error == why), "{refused}");
    }
}
