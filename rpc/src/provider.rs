//! The provider behind [`Client`](crate::Client) and [`Server`](crate::Server): all that are compiled in.

use gimmal_engine::transport::sim::Sim;

pub(crate) type Any = Sim;

pub(crate) fn any() -> Any {
    Sim::global()
}
