//! Unreliable datagrams over the RDMA CM: `RDMA_PS_UDP` end points and multicast groups.
//!
//! A [`Datagram`] is one queue pair on one device. It sends one-way messages of at most the path MTU, to a
//! [`Peer`] found by look-up, to a group it joined, or to the sender of an earlier message. Messages can be lost,
//! doubled and
//! reordered, and nobody is told. **A message that arrives when no receive is posted is
//! dropped by the device and counted nowhere**, so keep polling and number what you send.
//!
//! ```text
//!  listening side                                   asking side
//!   Datagram::bind · listen                          Datagram::bind (or toward)
//!                      ◄── look-up (SIDR), ≤ 180 bytes of data ── look_up
//!   event → Request
//!   accept             ── queue pair, qkey, ≤ 136 bytes ──►       Peer
//!   receive → Received ◄────────────── message ────────────────── send(&peer, …)
//!   reply_to(source)   ────────────── message ──────────────────► receive
//!
//!   join(group) ── rdma_join_multicast_ex ──► Group; send(group.peer(), …); receive; leave
//! ```
//!
//! One thread at a time owns an end point. Calls that wait take a limit; [`Datagram::receive`] and
//! [`Datagram::send`] never wait, allocate or enter the kernel. Every buffer belongs to the end point: a message is
//! copied into a registered slot, or written there by a closure, and that slot is lent again only after the
//! device completed it; a received message is lent to a closure and its slot is posted again when that returns.
//! Dropping an end point leaves its groups and destroys everything; no step of it waits for a peer.
//!
//! Devices without datagrams (every iWARP device, siw among them) are refused by [`OpenError::NoDatagrams`].
//!
//! Pages: `rdma_cm(7)`, `rdma_create_id(3)`, `rdma_accept(3)`, `rdma_join_multicast_ex(3)`, `ibv_create_ah(3)`,
//! `ibv_init_ah_from_wc(3)`.

mod config;
mod endpoint;
mod error;
mod event;
mod grh;
mod group;
mod lookup;
mod multicast;
mod name;
mod peer;
mod private;
mod queue;
mod request;
mod ring;
mod wait;
mod way;

pub use crate::id::Membership;
pub use crate::private_data::{PrivateData, TooLong};
pub use config::{DatagramConfig, DatagramCounters};
pub use endpoint::{Datagram, DatagramInfo};
pub use error::{AnswerError, JoinError, LookUpError, OpenError, SendError, SidrStatus};
pub use event::DatagramEvent;
pub use grh::{GRH_BYTES, Grh};
pub use group::Group;
pub use name::{Gid, Qkey, QpNumber};
pub use peer::{Peer, Source};
pub use private::{ANSWER_DATA_BYTES, AnswerData, LOOK_UP_DATA_BYTES, LookUpData};
pub use queue::Received;
pub use request::LookUpRequest;
