//! From a provider's name to its types.

use gimmal_engine::transport::{Address, Provider};

use crate::{
    bulk::BulkTarget,
    error::BenchError,
    handoff::HandoffTarget,
    inline::InlineTarget,
    plan::{Layer, Mode, Plan, ProviderName},
    rpc,
    serve::{ServeOptions, serve},
    target::Target,
};

/// Something that is done for whichever provider is asked for.
pub(crate) trait With {
    /// What comes of it.
    type Output;
    /// Does it.
    fn with<P: Provider>(self, provider: P) -> Result<Self::Output, BenchError>;
}

/// Does it with the provider of this name.
pub(crate) fn with_provider<W: With>(name: ProviderName, with: W) -> Result<W::Output, BenchError> {
    match name {
        #[cfg(feature = "shm")]
        ProviderName::Shm => with.with(gimmal_transport::shm::Shm),
        #[cfg(feature = "verbs")]
        ProviderName::Verbs => with.with(gimmal_transport::verbs::Verbs::new()),
        #[allow(unreachable_patterns)] // unless every provider is in this build
        name => Err(BenchError::NotBuilt { provider: name.name() }),
    }
}

struct IsBuilt;

impl With for IsBuilt {
    type Output = ();

    fn with<P: Provider>(self, _: P) -> Result<(), BenchError> {
        Ok(())
    }
}

/// Whether the provider is in this build.
pub(crate) fn is_built(name: ProviderName) -> Result<(), BenchError> {
    with_provider(name, IsBuilt)
}

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
            (Kind::Planned, Layer::Engine, Mode::Inline) => {
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
