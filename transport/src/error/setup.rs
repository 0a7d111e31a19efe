//! What goes wrong before there is a connection: addresses, ports, listening, connecting, accepting.

use std::{path::PathBuf, time::Duration};

use thiserror::Error;

use super::errno_text;
use crate::TlsError;

/// Why a URL is no address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The URL has no scheme that is known.
    #[error(
        "'{url}' is not an address: use shm://name, tcp://host:port, tcp+tls://host:port, rdma://host:port, gimmal://host:port or mem://name"
    )]
    Scheme {
        /// What was given.
        url: String,
    },
    /// What follows the scheme is wrong.
    #[error("'{url}' is not an address: {why}")]
    Malformed {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A key behind its `?` is none that this scheme has.
    #[error("'{url}' is not an address: '{key}' is none of device, source and service")]
    Key {
        /// What was given.
        url: String,
        /// What it chooses.
        key: String,
    },
    /// A choice of a device that cannot be one.
    #[error("'{text}' is no device: {why}; use a name like rxe0, or a name and a port like mlx5_0:2")]
    Device {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Why a port could not be opened, or could not take a connection: what a provider, a device or the system lacks or refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PortError {
    /// The provider is not compiled in.
    #[error("{provider} is not compiled in: build with the cargo feature `{feature}`")]
    NotBuilt {
        /// Which provider.
        provider: &'static str,
        /// The cargo feature that has it.
        feature: &'static str,
    },
    /// The provider is compiled in, and this process chose not to open it.
    #[error("the provider {provider} was not opened; name it in the configuration of `Any`")]
    NotOpened {
        /// Which provider.
        provider: &'static str,
    },
    /// This machine has no device of the kind that is needed.
    #[error(
        "no RDMA device: {detail}; `rdma link` lists devices, `rdma link add rxe0 type rxe netdev eth0` makes one"
    )]
    NoDevice {
        /// What was looked for.
        detail: String,
    },
    /// Another device was asked for than there are.
    #[error("no RDMA device {wanted}; use one of: {present}")]
    NoSuchDevice {
        /// What was asked for.
        wanted: String,
        /// Devices and their ports, as they are chosen.
        present: String,
    },
    /// The provider is compiled in, and what it needs is not installed.
    #[error("{provider} is not available: {why}")]
    Unavailable {
        /// Which provider.
        provider: &'static str,
        /// What is missing, and the command that brings it.
        why: String,
    },
    /// A field of the configuration is outside its limits.
    #[error("{field} is {value}; it must be {rule}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What holds for it.
        rule: &'static str,
    },
    /// A number of the configuration is more than the device or the medium can give.
    #[error("{field} is {value}, the limit is {limit}")]
    Limit {
        /// Which field of the configuration.
        field: &'static str,
        /// What was asked.
        value: u64,
        /// What can be had.
        limit: u64,
    },
    /// Memory could not be locked for the device.
    #[error(
        "cannot register {bytes} bytes: the limit of locked memory is {limit_bytes} bytes; raise it with `ulimit -l unlimited` or LimitMEMLOCK=infinity"
    )]
    Memlock {
        /// What was asked.
        bytes: u64,
        /// RLIMIT_MEMLOCK, soft.
        limit_bytes: u64,
    },
    /// A memory file would be larger than this process may make any.
    #[error(
        "a memory file of {bytes} bytes is above RLIMIT_FSIZE, which is {limit_bytes} bytes; raise it with `ulimit -f unlimited`"
    )]
    FileSize {
        /// What was asked.
        bytes: u64,
        /// RLIMIT_FSIZE, soft.
        limit_bytes: u64,
    },
    /// This process has as many mappings as it may have.
    #[error(
        "mmap failed: this process has {count} mappings, and vm.max_map_count is {limit}; raise it with `sysctl vm.max_map_count=262144`"
    )]
    Mappings {
        /// Lines of /proc/self/maps.
        count: u64,
        /// vm.max_map_count.
        limit: u64,
    },
    /// The operating system or the device refused a step.
    #[error("{step} failed: {}", errno_text(*.errno))]
    System {
        /// The call that failed.
        step: &'static str,
        /// Its errno.
        errno: i32,
    },
}

#[cfg(feature = "verbs")]
impl From<gimmal_rdma::DeviceError> for PortError {
    fn from(error: gimmal_rdma::DeviceError) -> Self {
        use gimmal_rdma::DeviceError as E;
        match error {
            E::NoDevice { detail } => Self::NoDevice { detail },
            E::Unavailable { why } => Self::Unavailable { provider: "verbs", why },
            E::Limit { field, value, limit } => Self::Limit { field, value, limit },
            E::Memlock { bytes, limit_bytes } => Self::Memlock { bytes, limit_bytes },
            E::System { step, errno } => Self::System { step, errno },
            other => Self::Unavailable { provider: "verbs", why: other.to_string() },
        }
    }
}

/// Why an address cannot be listened at.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is for another provider, or cannot be listened on.
    #[error("listen on {address} failed: {why}")]
    Address {
        /// What was given.
        address: String,
        /// Why not.
        why: String,
    },
    /// A live process listens there.
    #[error("listen on {address} failed: {by} uses it; stop that process or choose another address")]
    InUse {
        /// What was given.
        address: String,
        /// Which process, as far as that is known.
        by: String,
    },
    /// The folder of the socket can be entered by others, or is not ours.
    #[error("{} must be a folder of this user with mode 0700: {why}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The certificates of this side are of no use.
    #[error("listen on {address} failed: {cause}")]
    Tls {
        /// What was given.
        address: String,
        /// What is wrong with them.
        cause: TlsError,
    },
    /// Everything the port side can say.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Why a connect request was refused; travels in the reject's private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The versions share nothing.
    #[error("the peer speaks protocol version {theirs} and this side {ours}; upgrade the older one")]
    Version {
        /// The reader's version.
        ours: u8,
        /// The other side's version.
        theirs: u8,
    },
    /// The hello was not ours: a foreign client.
    #[error("the peer does not speak gimmal's protocol; another program uses this address")]
    NotOurs,
    /// A field of the hello is outside its limits.
    #[error("the hello's {} is out of range", hello_field(*.field))]
    BadHello {
        /// Which field, see [`Hello`](crate::Hello).
        field: u8,
    },
    /// The client's receive ring is larger than the server keeps for it.
    #[error(
        "`port.ring_bytes` is above the server's limit of {limit}; lower it, or raise the server's \
         `port.peer_ring_bytes_max`"
    )]
    RingTooLarge {
        /// What the other side keeps at most, bytes.
        limit: u32,
    },
    /// No room for another connection.
    #[error("the server is overloaded; try again later")]
    Overloaded,
    /// The server is going away.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Too few receives were offered to guarantee any credit.
    #[error("{offered} receives leave no credit, at least {least} are needed; raise `arrivals`")]
    Credits {
        /// What the hello offered.
        offered: u16,
        /// What is needed.
        least: u16,
    },
    /// It does not know who asks, or does not believe it.
    #[error("authentication failed; check that both sides have the same key")]
    Authentication,
    /// It asks for a shared key, and this side has none.
    #[error("the server requires a shared key; give the client one (`connect.key`)")]
    KeyNeeded,
    /// This side wants a shared key proved, and the other has none.
    #[error("the server has no shared key; give it the client's (`listen.keys`), or connect without one")]
    KeyUnknown,
    /// This user is not one that it shares memory with.
    #[error("uid {uid} is not on the server's allow-list; add it there (`listen.allow`)")]
    NotAllowed {
        /// The user that asked.
        uid: u32,
    },
    /// It speaks without TLS, and this side with it.
    #[error("the server speaks TLS only; connect to tcp+tls://")]
    TlsNeeded,
    /// The handshake of TLS failed; the log of the side that refused says why.
    #[error("the TLS handshake failed; the server's log says why")]
    Tls,
    /// The names in its certificate are none of those that are let in.
    #[error(
        "this client's certificate has no identity on the server's list; add it there (`listen.tls.allow`)"
    )]
    IdentityNotAllowed,
    /// Another server listens there than the client looks for; see [`Via::service`](crate::Via::service).
    #[error("the server that listens there is not that of gimmal:// port {port}")]
    OtherService {
        /// The port that the client asked for.
        port: u16,
    },
    /// The application said no.
    #[error("the application refused with code {code}")]
    Application {
        /// Its code.
        code: u32,
    },
    /// A reason newer than this side.
    #[error("the peer refused with reason {code}, which this version does not know")]
    Other {
        /// The number.
        code: u8,
    },
}

/// Names of the hello's fields, by the number a reject carries.
const HELLO_FIELDS: [&str; 8] = [
    "length",
    "ring_bytes",
    "slot_bytes",
    "arrivals",
    "responder_resources",
    "initiator_depth",
    "lane",
    "features",
];

fn hello_field(field: u8) -> &'static str {
    HELLO_FIELDS.get(usize::from(field)).copied().unwrap_or("a later field")
}

/// Why connecting failed. Nothing of the attempt is left.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is for another provider.
    #[error("connect to {address} failed: {why}")]
    Address {
        /// What was given.
        address: String,
        /// Why not.
        why: String,
    },
    /// The name cannot be resolved, or no route leads to the address.
    #[error("resolve {address} failed ({step}): {}; check the host name and that an RDMA device has a route to it", errno_text(*.errno))]
    Resolve {
        /// What was given.
        address: String,
        /// `rdma_getaddrinfo`, `ADDR_ERROR`, `ROUTE_ERROR`.
        step: &'static str,
        /// errno, 0 when there was none.
        errno: i32,
    },
    /// Nobody listens there.
    #[error("connect to {address} failed: no server is listening; start the server first")]
    NobodyListens {
        /// What was given.
        address: String,
    },
    /// Nobody listens there, and the name is in another runtime folder of this user.
    #[error(
        "connect to {address} failed: no server is listening, but {} has this name; set XDG_RUNTIME_DIR alike for the server and the client, or use a path", found.display()
    )]
    OtherFolder {
        /// What was given.
        address: String,
        /// The folder with a socket of that name.
        found: PathBuf,
    },
    /// This process may not reach the socket.
    #[error(
        "connect to {address} failed: {why}; add this user to the server's allow-list (`listen.allow`), and let it enter the folder"
    )]
    Denied {
        /// What was given.
        address: String,
        /// Which file or folder, and whose it is.
        why: String,
    },
    /// The peer refused, and said why.
    #[error("connect to {address} failed: {reason}")]
    Rejected {
        /// What was given.
        address: String,
        /// Its reason.
        reason: RejectReason,
        /// What its application sent beside the reason, at most 132 bytes; mostly empty.
        data: Vec<u8>,
    },
    /// The fabric or a peer that is not ours refused.
    #[error("connect to {address} failed: refused with CM status {status} ({meaning})")]
    Refused {
        /// What was given.
        address: String,
        /// The event's status: an IB reject code, or a negative errno.
        status: i32,
        /// In words.
        meaning: &'static str,
    },
    /// The RDMA CM reported an event that has no place in this step.
    #[error("connect to {address} failed: event {event} (status {status}) while {step}")]
    Event {
        /// What was given.
        address: String,
        /// Its name.
        event: &'static str,
        /// Its status.
        status: i32,
        /// Where we were.
        step: &'static str,
    },
    /// This side's time-out passed.
    #[error("connect to {address} failed: no answer within {timeout:?} (while {step})")]
    Timeout {
        /// What was given.
        address: String,
        /// Where we were.
        step: &'static str,
        /// The limit that was set.
        timeout: Duration,
    },
    /// The peer does not speak this protocol, or another version of it.
    #[error("connect to {address} failed: {reason}")]
    Foreign {
        /// What was given.
        address: String,
        /// What was wrong with its answer.
        reason: RejectReason,
    },
    /// It answered without proving that it has the shared key. It was told nothing.
    #[error(
        "connect to {address} failed: the server did not prove that it has the shared key; check the address and its key"
    )]
    Unproven {
        /// What was given.
        address: String,
    },
    /// The process at the other end is of a user that this side does not share memory with.
    #[error(
        "connect to {address} failed: the server's uid {uid} is not on this side's allow-list; add it (`connect.allow`)"
    )]
    NotAllowed {
        /// What was given.
        address: String,
        /// Whose process it is.
        uid: u32,
    },
    /// The handshake of TLS failed.
    #[error("connect to {address} failed: {cause}")]
    Tls {
        /// What was given.
        address: String,
        /// Why not.
        cause: TlsError,
    },
    /// Everything the port side can say.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Accepting failed: the request is gone, the listener lives.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The client went away first.
    #[error("the client gave up before it was accepted: {}", errno_text(*.errno))]
    Gone {
        /// errno, 0 when there was none.
        errno: i32,
    },
    /// The request was answered with a reject instead.
    #[error("rejected: {0}")]
    Rejected(RejectReason),
    /// Everything the port side can say.
    #[error(transparent)]
    Port(#[from] PortError),
}
