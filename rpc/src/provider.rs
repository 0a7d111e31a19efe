//! The provider behind [`Client`](crate::Client) and [`Server`](crate::Server): the address chooses.

pub(crate) use gimmal_engine::transport::any::Any;
use gimmal_engine::transport::{Address, any::AnyConfig};

/// All that are compiled in: for workers that are shared.
pub(crate) fn any() -> Any {
    Any::new()
}

/// Only what `addresses` need: less to look at in every turn.
pub(crate) fn any_for(addresses: &[Address]) -> Any {
    Any::with(AnyConfig::for_addresses(addresses))
}
