//! What happens to an end point beside its messages.

use std::net::IpAddr;

use super::request::LookUpRequest;

/// What happened to an end point beside its messages.
#[derive(Debug)]
#[non_exhaustive]
pub enum DatagramEvent {
    /// Somebody looks up our queue pair: answer with [`Datagram::accept`](super::Datagram::accept) or [`Datagram::reject`](super::Datagram::reject).
    Request(LookUpRequest),
    /// A group that was joined is lost (`RDMA_CM_EVENT_MULTICAST_ERROR`) and was left: join it again, or give up.
    GroupLost {
        /// The group.
        group: IpAddr,
        /// A negative errno.
        status: i32,
    },
    /// The hardware address moved, for instance by a bond's failover. A hint: look peers up again if they fall silent.
    AddressChanged,
    /// The device goes away, and waits for us: drop the end point and its peers. Everything else fails from here on.
    DeviceRemoved,
}
