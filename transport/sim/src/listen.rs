//! The passive side: listeners by name, and requests.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    conn::Stage,
    connect::Link,
    gate::SimGate,
    world::{Listening, Shared},
};
use gimmal_transport::{
    AcceptError, Address, Hello, Incoming, ListenError, ListenOptions, Listener, PortError, Refusal,
    RejectReason, parts::Rejected,
};

/// Listens on `mem://name`; see [`Listener`].
#[derive(Debug)]
pub struct SimListener {
    shared: Arc<Shared>,
    name: String,
    rejected: Arc<Rejected>,
}

impl SimListener {
    pub(super) fn new(
        shared: &Arc<Shared>,
        address: &Address,
        options: &ListenOptions,
    ) -> Result<Self, ListenError> {
        let Address::Mem { name } = address else {
            let why = "the simulator listens on mem://name only".to_owned();
            return Err(ListenError::Address { address: address.to_string(), why });
        };
        let rejected = Arc::<Rejected>::default();
        let counted = Arc::clone(&rejected);
        let listening = Listening { options: options.clone(), waiting: VecDeque::new(), rejected: counted };
        let fresh = shared.with(|world| {
            world.setup("rdma_listen")?;
            let free = !world.listeners.contains_key(name);
            if free {
                world.listeners.insert(name.clone(), listening);
            }
            Ok::<_, PortError>(free)
        })?;
        if !fresh {
            return Err(ListenError::InUse {
                address: address.to_string(),
                by: "a listener of this world".to_owned(),
            });
        }
        Ok(Self { shared: Arc::clone(shared), name: name.clone(), rejected })
    }
}

impl Listener for SimListener {
    type Gate = SimGate;
    type Link = Link;
    type Incoming = SimIncoming;

    fn address(&self) -> Address {
        Address::Mem { name: self.name.clone() }
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<SimIncoming>, ListenError> {
        let shared = Arc::clone(&self.shared);
        Ok(self.shared.wait(timeout, |world| {
            loop {
                let id = world.listeners.get_mut(&self.name)?.waiting.pop_front()?;
                let Some(conn) = world.conns.get(&id) else { continue };
                let Some(hello) = conn.ends[0].hello.filter(|_| conn.stage == Stage::Waiting) else {
                    world.leave(id, 1);
                    continue;
                };
                let peer = format!("connection {}", conn.number);
                return Some(SimIncoming { shared: Arc::clone(&shared), conn: Some(id), hello, peer });
            }
        }))
    }

    fn rejections(&self) -> &Arc<Rejected> {
        &self.rejected
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.shared.with(|world| {
            let waiting = world.listeners.remove(&self.name).map(|listening| listening.waiting);
            for id in waiting.unwrap_or_default() {
                world.refuse(id, RejectReason::ShuttingDown);
                world.leave(id, 1);
            }
        });
    }
}

/// A request; see [`Incoming`].
#[derive(Debug)]
pub struct SimIncoming {
    shared: Arc<Shared>,
    conn: Option<u64>,
    hello: Hello,
    peer: String,
}

impl SimIncoming {
    fn answer(&mut self, refusal: Refusal) {
        if let Some(id) = self.conn.take() {
            self.shared.with(|world| {
                world.refuse(id, refusal);
                world.leave(id, 1);
            });
        }
    }
}

impl Incoming for SimIncoming {
    type Gate = SimGate;
    type Link = Link;

    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn accept(mut self, gate: &SimGate) -> Result<Link, AcceptError> {
        let Some(id) = self.conn.take() else { return Err(AcceptError::Gone { errno: 0 }) };
        let port = gate.port();
        self.shared.with(|world| {
            let accepted = world.accept(id, port);
            if accepted.is_err() {
                world.leave(id, 1);
            }
            accepted
        })?;
        Ok(Link::new(&self.shared, id, 1, port))
    }

    fn refuse(mut self, refusal: Refusal) {
        self.answer(refusal);
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        self.answer(RejectReason::Overloaded.into());
    }
}
