//! A client that speaks any bytes over the RDMA CM: foreign programs, other versions.

use std::{net::ToSocketAddrs, sync::Arc, time::Duration};

use gimmal_rdma::{
    id::{
        CmEvent, CmId, ConnectParams, EventChannel, EventKind, PortSpace, QpRequest, QpType, reject::meaning,
    },
    verbs::{Cq, Pd},
};

use gimmal_transport::{Address, ConnectError, Instant, Refusal};

use super::harness::Knock;

const LIMIT: Duration = Duration::from_secs(30);

/// Fields drop in this order: the id with its queue pair first.
struct Client {
    id: CmId,
    channel: Arc<EventChannel>,
    parts: Option<(Arc<Cq>, Arc<Pd>)>,
    private: Vec<u8>,
    address: String,
    limit: Instant,
    asked: bool,
}

impl Client {
    fn start(address: &Address, private: &[u8]) -> Option<Self> {
        let Address::Rdma { host, port, .. } = address else { return None };
        let to = (host.as_str(), *port).to_socket_addrs().ok()?.next()?;
        let channel = EventChannel::new().ok()?;
        let id = CmId::new(&channel, PortSpace::Tcp).ok()?;
        id.resolve_address(None, to, LIMIT).ok()?;
        let (private, limit) = (private.to_vec(), Instant::now() + LIMIT);
        Some(Self { id, channel, parts: None, private, address: address.to_string(), limit, asked: false })
    }

    /// A queue pair, because iWARP connects nothing else.
    fn bind(&mut self) -> Option<()> {
        let context = self.id.context().ok()??;
        let cq = Cq::new(&context, &context.query().ok()?).ok()?;
        let pd = Pd::new(&context).ok()?;
        let request = QpRequest {
            send_entries: 4,
            recv_entries: 4,
            pieces: 1,
            inline_bytes: 0,
            srq: None,
            kind: QpType::Rc,
            create_flags: None,
        };
        self.id.create_qp(&pd, &cq, &cq, request).ok()?;
        self.parts = Some((cq, pd));
        self.id.resolve_route(LIMIT).ok()
    }

    fn connect(&mut self) -> Option<()> {
        self.asked = true;
        let params = ConnectParams::new(self.private.clone(), 1, 1);
        self.id.connect(&params).ok()
    }

    fn refused(&self, status: i32, private: &[u8]) -> ConnectError {
        let address = self.address.clone();
        match Refusal::decode(private) {
            Some(refusal) => {
                ConnectError::Rejected { address, reason: refusal.reason(), data: refusal.into_data() }
            }
            None => ConnectError::Refused { address, status, meaning: meaning(status) },
        }
    }

    /// `Some`: how it ended; inside `None` when it gave no reason, or connected.
    fn step(&mut self) -> Option<Option<ConnectError>> {
        if Instant::now() > self.limit {
            return Some(None);
        }
        let event = CmEvent::next(&self.channel).ok()??;
        let going = match event.kind {
            EventKind::AddrResolved => self.bind(),
            EventKind::RouteResolved => self.connect(),
            EventKind::Rejected => {
                return Some(Some(self.refused(event.status, event.private())));
            }
            _ => None,
        };
        if going.is_some() { None } else { Some(None) }
    }
}

/// Connects to an `rdma://` address with `private` in place of the hello.
#[must_use]
pub fn knock_on_cm(address: &Address, private: &[u8]) -> Option<Knock> {
    let mut client = Client::start(address, private)?;
    // Nobody may ask again for a while: the request must be on its way before this returns.
    let mut early = None;
    while !client.asked && early.is_none() {
        early = client.step();
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(Box::new(move || early.take().or_else(|| client.step())))
}
