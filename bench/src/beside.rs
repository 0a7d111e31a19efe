//! Targets of a server, and the server itself, by the provider's name.

use gimmal_engine::transport::{Address, Provider};

use crate::{
    bulk::BulkTarget,
    error::BenchError,
    handoff::HandoffTarget,
    inline::InlineTarget,
    plan::{Layer, Mode, Plan, ProviderName},
    provider::{With, with_provider},
    rpc,
    serve::{ServeOptions, serve},
    target::Target,
};

/// How to reach the server; whatever connects there does it through this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<'a> {
    /// How the bytes travel.
    pub(crate) provider: ProviderName,
    /// Where it is.
    pub(crate) address: &'a Address,
    /// What it is told, or was.
    pub(crate) plan: &'a Plan,
    /// Our receive ring.
    pub(crate) ring_bytes: u32,
}

/// Which target.
enum Kind<'a> {
    /// The plan's, which tells it.
    Planned,
    /// Of loans, which tells it.
    Bulk(bool),
    /// The engine's, inline, window 1, beside the planned one.
    Inline,
    /// An inline RPC client of the server at the URL.
    RpcInline(&'a str),
}

struct Connect<'a>(Beside<'a>, Kind<'a>);

impl With for Connect<'_> {
    type Output = Box<dyn Target>;

    fn with<P: Provider>(self, provider: P) -> Result<Box<dyn Target>, BenchError> {
        let Self(Beside { address, plan, ring_bytes, .. }, kind) = self;
        let alone = Plan { window: 1, threads: 1, mode: Mode::Inline, ..plan.clone() };
        Ok(match (kind, plan.layer, plan.mode) {
            (Kind::Planned, Layer::Engine, Mode::Inline | Mode::Asleep) => {
                Box::new(InlineTarget::connect(&provider, address, plan, ring_bytes)?)
            }
            (Kind::Planned, Layer::Engine, Mode::Handoff) => {
                Box::new(HandoffTarget::connect(&provider, address, plan, ring_bytes)?)
            }
            (Kind::Planned, Layer::Rpc | Layer::Pipeline | Layer::Typed, _) => {
                rpc::connect(&provider, address, plan, ring_bytes)?
            }
            (Kind::Bulk(is_whole), ..) => {
                Box::new(BulkTarget::connect(&provider, address, plan, ring_bytes, is_whole)?)
            }
            (Kind::Inline, ..) => {
                Box::new(InlineTarget::connect_beside(&provider, address, &alone, ring_bytes)?)
            }
            (Kind::RpcInline(url), ..) => rpc::connect_beside(&provider, url, &alone, ring_bytes)?,
        })
    }
}

impl Beside<'_> {
    /// The plan's target; tells the plan.
    pub(crate) fn target(&self) -> Result<Box<dyn Target>, BenchError> {
        with_provider(self.provider, Connect(*self, Kind::Planned))
    }

    /// Loans of the plan's block; tells the plan.
    pub(crate) fn bulk(&self, is_whole: bool) -> Result<Box<dyn Target>, BenchError> {
        with_provider(self.provider, Connect(*self, Kind::Bulk(is_whole)))
    }

    /// The engine's echo, inline, one at a time.
    pub(crate) fn inline(&self) -> Result<Box<dyn Target>, BenchError> {
        with_provider(self.provider, Connect(*self, Kind::Inline))
    }

    /// The RPC layer's, inline, one at a time.
    pub(crate) fn rpc_inline(&self, url: &str) -> Result<Box<dyn Target>, BenchError> {
        with_provider(self.provider, Connect(*self, Kind::RpcInline(url)))
    }
}

struct Listen(ServeOptions);

impl With for Listen {
    type Output = ();

    fn with<P: Provider>(self, provider: P) -> Result<(), BenchError> {
        serve(&provider, &self.0)
    }
}

/// Serves until told otherwise.
pub(crate) fn listen(name: ProviderName, options: ServeOptions) -> Result<(), BenchError> {
    with_provider(name, Listen(options))
}
