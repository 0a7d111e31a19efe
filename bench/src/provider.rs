//! From a provider's name to its types.

use gimmal_engine::transport::Provider;

use crate::{error::BenchError, plan::ProviderName};

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
        #[cfg(feature = "tcp")]
        ProviderName::Tcp => with.with(gimmal_transport::tcp::Tcp),
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
