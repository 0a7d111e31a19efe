//! The way to a server: the address of its URL, or for `gimmal://host:port` the best that leads there now.
//!
//! ```text
//!  gimmal://host:7471 ─► shm://gimmal-NAMESPACE-ADDRESS:7471     a server of this network namespace, at this address
//!                     ─► rdma://host:7472?service=7471           refused by any server but that of 7471
//!                     ─► tcp://host:7471                         where the others do not lead there
//! ```
//! A server listens at all of them that it can. RDMA has the next port, because an iWARP device listens on TCP ports.
//! Certificates leave `tcp+tls://` alone, since no other way keeps them.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    time::Duration,
};

use gimmal_engine::{
    OpenError, StartError,
    transport::{
        self, Address, AddressError, ConnId, ConnectOptions, ListenError, Listener, Negotiated, RejectReason,
        Tls, Via,
    },
};

use crate::{
    error::{ConnectError, ServeError},
    here,
};

/// A connection on its worker.
pub(crate) type Opened = (ConnId, Arc<Negotiated>);

/// What a URL leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// One address.
    Sole(Address),
    /// A server of `gimmal://`.
    Best(Box<Best>),
}

/// A `gimmal://` URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Best {
    url: String,
    host: String,
    port: u16,
    via: Via,
    need: Option<Need>,
    /// Certificates were given, or encryption is needed.
    is_secure: bool,
}

/// What `?need=` asks for: another way is no way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    Shm,
    Rdma,
    Encrypted,
}

/// The ways, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Shm,
    Rdma,
    Tcp,
}

const WAYS: [Way; 3] = [Way::Shm, Way::Rdma, Way::Tcp];

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

const SCHEME: &str = "gimmal://";

/// How long RDMA may take before TCP is tried: a network that drops its packets says nothing.
const RDMA_PATIENCE: Duration = Duration::from_secs(2);

fn malformed(url: &str, why: &'static str) -> AddressError {
    AddressError::Malformed { url: url.to_owned(), why }
}

impl Route {
    /// Reads `url`. With certificates in `tls` only ways that keep them are left.
    pub(crate) fn parse(url: &str, tls: &Tls) -> Result<Self, AddressError> {
        if !url.starts_with(SCHEME) {
            return Ok(Self::Sole(url.parse()?));
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut need, mut rest) = (None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some(wanted) = pair.strip_prefix("need=") else {
                rest.push(pair);
                continue;
            };
            let wanted = match wanted {
                "shm" => Need::Shm,
                "rdma" => Need::Rdma,
                "encrypted" => Need::Encrypted,
                _ => return Err(malformed(url, "need is none of shm, rdma and encrypted")),
            };
            if need.replace(wanted).is_some() {
                return Err(malformed(url, "need is given twice"));
            }
        }
        let mut rdma = place.replacen(SCHEME, "rdma://", 1);
        if !rest.is_empty() {
            rdma = format!("{rdma}?{}", rest.join("&"));
        }
        match rdma.parse() {
            Ok(Address::Rdma { host, port, via }) if via.service.is_none() => {
                let is_secure = need == Some(Need::Encrypted) || *tls != Tls::default();
                Ok(Self::Best(Box::new(Best { url: url.to_owned(), host, port, via, need, is_secure })))
            }
            Ok(_) => Err(malformed(url, "it chooses among device, source and need only")),
            Err(AddressError::Malformed { why, .. }) => Err(malformed(url, why)),
            Err(error) => Err(error),
        }
    }

    /// Addresses of each kind that a worker needs to be ready for.
    pub(crate) fn kinds(&self) -> Vec<Address> {
        let best = match self {
            Self::Sole(address) => return vec![address.clone()],
            Self::Best(best) => best,
        };
        let kind = |way| match way {
            Way::Shm => Address::Shm { path: "/".into() },
            Way::Rdma => best.rdma(best.port),
            Way::Tcp => best.tcp(best.port),
        };
        WAYS.into_iter().filter(|way| best.leaves_out(*way).is_none()).map(kind).collect()
    }

    /// What people read.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Sole(address) => address.to_string(),
            Self::Best(best) => best.url.clone(),
        }
    }

    /// An error of the worker, where it means that there is no way.
    pub(crate) fn explain(&self, error: ConnectError) -> ConnectError {
        match (self, error) {
            (Self::Best(best), ConnectError::Start(StartError::Port(error))) => {
                let no = |way: Way| Some(format!("{}: {}", way.name(), best.leaves_out(way)?));
                let why = WAYS.into_iter().filter_map(no).chain([error.to_string()]);
                ConnectError::NoWay { url: best.url.clone(), why: why.collect::<Vec<_>>().join("; ") }
            }
            (_, error) => error,
        }
    }

    /// Opens a connection by `connect`: by the first way that leads to the server. Blocks for the look-up of a name, and for
    /// the time-outs of each way.
    pub(crate) fn open(
        &self,
        options: &ConnectOptions,
        mut connect: impl FnMut(&Address, &ConnectOptions) -> Result<Opened, OpenError>,
    ) -> Result<Opened, ConnectError> {
        let mut connect = |address: &Address, options: &ConnectOptions| {
            if here::is_alone_at(address) {
                return Err(ConnectError::OwnWorker { address: address.to_string() });
            }
            connect(address, options).map_err(ConnectError::from)
        };
        match self {
            Self::Sole(address) => connect(address, options),
            Self::Best(best) => best.open(options, connect),
        }
    }

    /// Listens by `listen` at every address that can be had. Returns the listeners, and why other ways are left out. If `is_heir`,
    /// it takes over from a server that hands its TCP socket on.
    pub(crate) fn listen<L: Listener>(
        &self,
        is_heir: bool,
        mut listen: impl FnMut(&Address) -> Result<L, ListenError>,
    ) -> Result<(Vec<L>, Vec<String>), ServeError> {
        match self {
            Self::Sole(address) => {
                let listener = listen(address)?;
                tracing::info!(at = %listener.address(), "listening");
                Ok((vec![listener], Vec::new()))
            }
            Self::Best(best) => best.listen(is_heir, listen),
        }
    }
}

impl Best {
    /// Why a way is out of the question.
    fn leaves_out(&self, way: Way) -> Option<&'static str> {
        match (self.need, way) {
            (_, Way::Shm | Way::Rdma) if self.is_secure => {
                Some("it keeps no certificate, and certificates or encryption were asked for")
            }
            (Some(Need::Shm), Way::Rdma | Way::Tcp) => Some("?need=shm"),
            (Some(Need::Rdma), Way::Shm | Way::Tcp) => Some("?need=rdma"),
            _ => None,
        }
    }

    /// The next port, and before the first one for the last.
    fn rdma(&self, port: u16) -> Address {
        let via = Via { service: Some(port), ..self.via.clone() };
        Address::Rdma { host: self.host.clone(), port: port.checked_add(1).unwrap_or(u16::MAX - 1), via }
    }

    fn tcp(&self, port: u16) -> Address {
        Address::Tcp { host: self.host.clone(), port, tls: self.is_secure }
    }

    /// Its addresses; one that is not specified for a wildcard.
    fn places(&self, port: u16) -> Result<Vec<SocketAddr>, String> {
        if self.host == "*" {
            return Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into()]);
        }
        let found = (self.host.as_str(), port).to_socket_addrs();
        Ok(found.map_err(|error| format!("the host cannot be resolved: {error}"))?.collect())
    }

    /// Where a client finds a server of its own network namespace.
    fn shm_to(&self) -> Result<Vec<Address>, String> {
        let mut here: Vec<_> = self.places(self.port)?.into_iter().filter(|place| is_here(*place)).collect();
        if here.is_empty() {
            return Err("the server is on another host, or in another network namespace".to_owned());
        }
        here.push((Ipv4Addr::UNSPECIFIED, self.port).into());
        let namespace = namespace()?;
        here.into_iter().map(|place| shm(namespace, place).map_err(|error| error.to_string())).collect()
    }

    /// Where a server is found by clients of its network namespace.
    fn shm_at(&self, port: u16) -> Result<Address, String> {
        let can_be_had = |place: &SocketAddr| UdpSocket::bind((place.ip(), 0)).is_ok();
        let place = self.places(port)?.into_iter().find(can_be_had);
        let place = place.ok_or("no interface of this host has the address")?;
        shm(namespace()?, place).map_err(|error| error.to_string())
    }

    fn to(&self, way: Way) -> Result<Vec<Address>, String> {
        match (self.leaves_out(way), way) {
            (Some(why), _) => Err(why.to_owned()),
            (None, Way::Shm) => self.shm_to(),
            (None, Way::Rdma) => Ok(vec![self.rdma(self.port)]),
            (None, Way::Tcp) => Ok(vec![self.tcp(self.port)]),
        }
    }

    fn open(
        &self,
        options: &ConnectOptions,
        mut connect: impl FnMut(&Address, &ConnectOptions) -> Result<Opened, ConnectError>,
    ) -> Result<Opened, ConnectError> {
        let has_tcp = self.leaves_out(Way::Tcp).is_none();
        let connect_timeout = options.connect_timeout.min(RDMA_PATIENCE);
        let hasty = ConnectOptions { connect_timeout, ..options.clone() };
        let mut passed = Vec::new();
        for way in WAYS {
            let options = if way == Way::Rdma && has_tcp { &hasty } else { options };
            let mut why = String::new();
            match self.to(way) {
                Err(no) => why = no,
                Ok(addresses) => {
                    for address in addresses {
                        match connect(&address, options) {
                            Ok(opened) => return Ok(self.chose(&address, opened, &passed)),
                            Err(error) if is_final(&error) || (way == Way::Tcp && is_refusal(&error)) => {
                                return Err(error);
                            }
                            Err(error) => why = brief(&error.to_string()),
                        }
                    }
                }
            }
            passed.push(format!("{}: {why}", way.name()));
        }
        Err(ConnectError::NoWay { url: self.url.clone(), why: passed.join("; ") })
    }

    /// Tells of the choice, in the log and in what was negotiated.
    fn chose(&self, address: &Address, (conn, negotiated): Opened, passed: &[String]) -> Opened {
        let (url, not) = (&self.url, passed.join("; "));
        tracing::info!(url, by = %address, not, "connected by the best way there is");
        let but = if not.is_empty() { String::new() } else { format!(", not by {not}") };
        let chosen = Some(format!("{address} for {url}{but}"));
        (conn, Arc::new(Negotiated { chosen, ..(*negotiated).clone() }))
    }

    fn listen<L: Listener>(
        &self,
        is_heir: bool,
        mut listen: impl FnMut(&Address) -> Result<L, ListenError>,
    ) -> Result<(Vec<L>, Vec<String>), ServeError> {
        let (mut port, mut listeners, mut left_out) = (self.port, Vec::new(), Vec::new());
        // TCP is last, so that a client that finds it finds the better ways too. It comes first where it chooses the port, and
        // where it takes a socket over, which is handed on only once.
        let is_tcp_first = port == 0 || is_heir;
        let order = if is_tcp_first { [Way::Tcp, Way::Shm, Way::Rdma] } else { WAYS };
        for way in order {
            if port == 0 && way != Way::Tcp {
                return Err(malformed(&self.url, "without TCP it needs a port of its own").into());
            }
            let address = match (self.leaves_out(way), way) {
                (Some(why), _) => Err(why.to_owned()),
                (None, Way::Shm) => self.shm_at(port),
                (None, Way::Rdma) => Ok(self.rdma(port)),
                (None, Way::Tcp) => Ok(self.tcp(port)),
            };
            let why = match address.map(|address| listen(&address)) {
                Ok(Ok(listener)) => {
                    if let Address::Tcp { port: bound, .. } = listener.address() {
                        port = bound;
                    }
                    listeners.push(listener);
                    continue;
                }
                // Somebody else's address, or files that are wrong: no lack of a way, but a mistake.
                Ok(Err(error @ (ListenError::InUse { .. } | ListenError::Tls { .. }))) => {
                    return Err(error.into());
                }
                Ok(Err(error)) => brief(&error.to_string()),
                Err(why) => why,
            };
            left_out.push(format!("{}: {why}", way.name()));
        }
        let (url, not) = (&self.url, left_out.join("; "));
        if listeners.is_empty() {
            return Err(ServeError::NoWay { url: url.clone(), why: not });
        }
        let at: Vec<_> = listeners.iter().map(|listener| listener.address().to_string()).collect();
        tracing::info!(url, ?at, not, "listening");
        Ok((listeners, left_out))
    }
}

/// Whether no other way would do either: this side cannot connect, or the server that was looked for has said no.
fn is_final(error: &ConnectError) -> bool {
    match error {
        ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { reason, .. })) => {
            !matches!(
                reason,
                RejectReason::OtherService { .. }
                    | RejectReason::NotAllowed { .. }
                    | RejectReason::NotOurs
                    | RejectReason::Overloaded
            )
        }
        ConnectError::Open(OpenError::Connect(_) | OpenError::Port(_) | OpenError::Closed(_)) => false,
        _ => true,
    }
}

/// Whether the server has said no.
fn is_refusal(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Open(OpenError::Connect(transport::ConnectError::Rejected { .. })))
}

/// A reason without the address that it is listed by.
fn brief(error: &str) -> String {
    let is_named = error.starts_with("connect to ") || error.starts_with("listen on ");
    error.split_once(" failed: ").filter(|_| is_named).map_or(error, |(_, why)| why).to_owned()
}

/// The name of the server that listens at `place` in the network namespace `namespace`: there is at most one.
fn shm(namespace: u64, place: SocketAddr) -> Result<Address, AddressError> {
    if place.ip().is_unspecified() {
        return format!("shm://gimmal-{namespace}-any:{}", place.port()).parse();
    }
    format!("shm://gimmal-{namespace}-{place}").parse()
}

/// The number of this thread's network namespace: no other one of this kernel has it.
fn namespace() -> Result<u64, String> {
    let space = fs::metadata("/proc/thread-self/ns/net");
    space.map(|space| space.ino()).map_err(|error| format!("/proc/thread-self/ns/net: {error}"))
}

/// Whether `place` is an address of this network namespace: what is sent there is sent from there. Nothing is sent.
fn is_here(place: SocketAddr) -> bool {
    let any: IpAddr = match place {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(place)?;
        Ok(socket.local_addr()?.ip())
    };
    place.ip().is_loopback() || source().is_ok_and(|source| source == place.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(url: &str) -> Best {
        match Route::parse(url, &Tls::default()).unwrap() {
            Route::Best(best) => *best,
            Route::Sole(address) => panic!("{address}"),
        }
    }

    fn ways(url: &str) -> Vec<Way> {
        let best = best(url);
        WAYS.into_iter().filter(|way| best.leaves_out(*way).is_none()).collect()
    }

    #[test]
    fn urls_say_what_they_need() {
        assert_eq!(ways("gimmal://h:1"), WAYS);
        assert_eq!(ways("gimmal://h:1?need=shm"), [Way::Shm]);
        assert_eq!(ways("gimmal://h:1?need=rdma&device=rxe0"), [Way::Rdma]);
        assert_eq!(ways("gimmal://h:1?need=encrypted"), [Way::Tcp]);
        assert_eq!(best("gimmal://h:1?need=encrypted").tcp(1).to_string(), "tcp+tls://h:1");
        let device = best("gimmal://[::1]:65535?device=rxe0").rdma(65535).to_string();
        assert_eq!(device, "rdma://[::1]:65534?device=rxe0&service=65535");
        for url in [
            "gimmal://nowhere",
            "gimmal://h:1?need=tcp",
            "gimmal://h:1?need=shm&need=shm",
            "gimmal://h:1?service=1",
            "gimmal://h:1?qos=1",
        ] {
            assert!(Route::parse(url, &Tls::default()).is_err(), "{url}");
        }
        assert_eq!(Route::parse("mem://x", &Tls::default()), Ok(Route::Sole("mem://x".parse().unwrap())));
    }

    /// A demand for a certificate is never met by a way that cannot keep it.
    #[test]
    fn certificates_leave_tls_alone() {
        let tls = Tls::default().authority("roots");
        let with = |url: &str| Route::parse(url, &tls).unwrap().kinds();
        assert!(matches!(&with("gimmal://h:1")[..], [Address::Tcp { tls: true, .. }]));
        assert!(with("gimmal://h:1?need=shm").is_empty() && with("gimmal://h:1?need=rdma").is_empty());
    }

    /// The names are of the network namespace, of the address and of the port: what one has is no other's.
    #[test]
    fn names_in_shared_memory_are_those_of_no_other_server() {
        let places = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.2:1", "[::1]:1", "0.0.0.0:1"];
        let places = places.map(|place| place.parse::<SocketAddr>().unwrap());
        let all = [1, 2].into_iter().flat_map(|space| places.map(|place| shm(space, place).unwrap()));
        let mut seen = Vec::new();
        for name in all {
            assert!(!seen.contains(&name), "{name}");
            seen.push(name);
        }
        assert_eq!(shm(1, "[::]:1".parse().unwrap()), shm(1, "0.0.0.0:1".parse().unwrap()));
    }

    #[test]
    fn a_client_looks_in_shared_memory_where_the_address_is_its_own() {
        let names = best("gimmal://127.0.0.1:7471").shm_to().unwrap();
        let named = |name: &Address| name.to_string().rsplit_once('-').unwrap().1.to_owned();
        assert_eq!(names.iter().map(named).collect::<Vec<_>>(), ["127.0.0.1:7471", "any:7471"]);
        assert_eq!(best("gimmal://127.0.0.1:7471").shm_at(7471).unwrap(), names[0]);
        assert_eq!(best("gimmal://*:7471").shm_at(7471).unwrap(), names[1]);
        // TEST-NET-1 is nobody's.
        assert!(best("gimmal://192.0.2.1:7471").shm_to().unwrap_err().contains("another host"));
    }
}
