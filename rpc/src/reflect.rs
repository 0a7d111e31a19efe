//! What every server tells about itself: its services and methods, counters, connections, and whether it is well.
//!
//! The service `gimmal.Reflection` is there beside the user's own, unless
//! [`ServerBuilder::without_reflection`](crate::ServerBuilder::without_reflection) was said. `gimmal top` and `gimmal call`
//! speak it.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use gimmal_engine::transport::{Instant, Negotiated};
use gimmal_macros::Shape;
use serde::{Deserialize, Serialize};

use crate::{
    Cx,
    method::{Method, MethodKind},
    shape::Schema,
    shared::{Shared, lock},
    stats::{Counters, Stats},
};

/// A method as its server spells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct MethodInfo {
    /// The service's name.
    pub service: String,
    /// The method's name.
    pub name: String,
    /// Types as spelled in the trait.
    pub signature: String,
    /// The codec's name.
    pub codec: String,
    /// `async`, `raw`, or `one-way`.
    pub kind: String,
    /// Whether it may be made again.
    pub is_idempotent: bool,
    /// Whether bulk or streams belong to it, which need a program with its types.
    pub is_plain: bool,
    /// Its types as the codec writes them. A method without a schema, such as a raw one, has no shapes.
    pub schema: Option<Schema>,
}

impl From<&Method> for MethodInfo {
    fn from(method: &Method) -> Self {
        let kind = match (method.is_oneway, method.kind) {
            (true, _) => "one-way",
            (false, MethodKind::Raw) => "raw",
            (false, MethodKind::Async) => "async",
        };
        let beside = method.takes_bulk || method.gives_bulk || method.streams_up || method.streams_down;
        Self {
            service: method.service.to_owned(),
            name: method.name.to_owned(),
            signature: method.signature.to_owned(),
            codec: method.codec.to_owned(),
            kind: kind.to_owned(),
            is_idempotent: method.is_idempotent,
            is_plain: !beside,
            schema: method.schema.cloned(),
        }
    }
}

/// A connection as its server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct ConnectionInfo {
    /// The peer's address or process.
    pub peer: String,
    /// `shm`, `tcp` or `verbs`.
    pub provider: String,
    /// Device, socket or name.
    pub device: String,
    /// Whether both sides proved a shared key.
    pub authenticated: bool,
    /// Time since it opened, ms.
    pub age_ms: u64,
}

/// Whether a service takes calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub enum Health {
    /// It does.
    Serving,
    /// It does not: the server drains, does not listen any more, or its program said so.
    NotServing,
    /// There is no such service.
    Unknown,
}

/// What became of the one-way requests of a connection. As requests keep their order on it, every one that was made
/// before this was asked is counted: the report of their delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct Delivery {
    /// Their handlers began.
    pub started: u64,
    /// They did not run: unknown, mismatched, overloaded, draining.
    pub refused: u64,
}

/// What a server tells about itself: the service `gimmal.Reflection`, which every server has unless it was built
/// [without](crate::ServerBuilder::without_reflection). Any client that may connect may ask.
#[crate::service(crate = crate, name = "gimmal.Reflection")]
pub trait Reflection {
    /// Every method of every service.
    #[idempotent]
    async fn methods(&self, cx: &Cx) -> Vec<MethodInfo>;
    /// Every counter by name, over all workers.
    #[idempotent]
    async fn counters(&self, cx: &Cx) -> Vec<(String, u64)>;
    /// Every connection.
    #[idempotent]
    async fn connections(&self, cx: &Cx) -> Vec<ConnectionInfo>;
    /// Whether a service takes calls; the empty name means the server as a whole.
    #[idempotent]
    async fn health(&self, cx: &Cx, service: String) -> Health;
    /// What became of the one-way requests of the connection on which this is asked.
    #[idempotent]
    async fn delivery(&self, cx: &Cx) -> Delivery;
}

/// The built-in service.
pub(crate) struct Mirror {
    methods: Vec<MethodInfo>,
    shared: Arc<Shared>,
    counters: Arc<OnceLock<Vec<Arc<Counters>>>>,
}

impl Mirror {
    /// Of a server with these methods beside its own; `counters` are set when its workers run.
    pub(crate) fn new<'m>(
        methods: impl Iterator<Item = &'m Method>,
        shared: Arc<Shared>,
        counters: Arc<OnceLock<Vec<Arc<Counters>>>>,
    ) -> Self {
        let own = __reflection_methods().iter();
        Self { methods: methods.chain(own).map(MethodInfo::from).collect(), shared, counters }
    }
}

impl Reflection for Mirror {
    async fn methods(&self, _: &Cx) -> Vec<MethodInfo> {
        self.methods.clone()
    }

    async fn counters(&self, _: &Cx) -> Vec<(String, u64)> {
        let stats = Stats::sum(self.counters.get().map(Vec::as_slice).unwrap_or_default());
        stats.fields().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    async fn connections(&self, _: &Cx) -> Vec<ConnectionInfo> {
        let connections = lock(&self.shared.connections);
        let info = |(negotiated, since): &(Arc<Negotiated>, Instant)| ConnectionInfo {
            peer: negotiated.peer.clone(),
            provider: negotiated.provider.to_owned(),
            device: negotiated.device.clone(),
            authenticated: negotiated.authenticated,
            age_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        connections.values().map(info).collect()
    }

    async fn health(&self, _: &Cx, service: String) -> Health {
        let is_known = service.is_empty() || self.methods.iter().any(|method| method.service == service);
        let unwell = lock(&self.shared.unwell);
        match is_known {
            false => Health::Unknown,
            true if unwell.contains(&service) || unwell.contains("") => Health::NotServing,
            true if self.shared.draining.load(Ordering::Relaxed) => Health::NotServing,
            true if self.shared.is_deaf.load(Ordering::Relaxed) => Health::NotServing,
            true => Health::Serving,
        }
    }

    async fn delivery(&self, cx: &Cx) -> Delivery {
        Delivery { started: cx.peer.one_way_started.get(), refused: cx.peer.one_way_refused.get() }
    }
}
