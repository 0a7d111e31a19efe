//! Where a peer is: `rdma://host:port[?device=rxe0&source=ADDRESS&service=PORT]`, `tcp://host:port`, `tcp+tls://host:port`,
//! `shm://name-or-path`, `mem://name`.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{AddressError, DeviceChoice};

/// Where a server listens, as a URL says it: parse one with [`str::parse`], and print it to get the URL.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// `rdma://host:port`: through the RDMA CM. `host` is a name, an IPv4 or a bracketed IPv6 address;
    /// to listen on every device give `*`.
    Rdma {
        /// Name or address, without brackets.
        host: String,
        /// Port in the CM's TCP port space; 0 to listen on a free one.
        port: u16,
        /// What is chosen of this machine.
        via: Via,
    },
    /// `shm://name` (in the user's runtime folder) or `shm:///absolute/path`: two processes of one host.
    Shm {
        /// The rendezvous socket.
        path: PathBuf,
    },
    /// `tcp://host:port`, or `tcp+tls://host:port`: any network. `host` is a name, an IPv4 or a bracketed IPv6 address, with a zone if it needs one
    /// (`[fe80::1%eth0]`); to listen everywhere give `*`.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Port; 0 to listen on a free one.
        port: u16,
        /// Whether TLS comes between, see [`Tls`](crate::Tls).
        tls: bool,
    },
    /// `mem://name`: in this process, for tests.
    Mem {
        /// Any non-empty name.
        name: String,
    },
}

/// What a URL asks for beside host and port: `?device=rxe0`, `?device=mlx5_0:2&source=10.0.0.1`. A device or a source goes
/// before the options `connect.device`, `connect.source` and `listen.device`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Via {
    /// The device, or one of its ports.
    pub device: Option<DeviceChoice>,
    /// The address to connect from; a listener has none.
    pub source: Option<IpAddr>,
    /// The port of the `gimmal://` URL that this is a way of. A client that gives one is refused by a listener that has
    /// another, or none.
    pub service: Option<u16>,
}

impl Via {
    fn parse(url: &str, query: &str) -> Result<Self, AddressError> {
        let bad = |why| AddressError::Malformed { url: url.to_owned(), why };
        let mut via = Self::default();
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let twice = match key {
                "device" => via.device.replace(value.parse()?).is_some(),
                "source" => {
                    let source = value.parse().map_err(|_| bad("the source is not an IP address without a zone; to choose among devices use ?device="))?;
                    via.source.replace(source).is_some()
                }
                "service" => {
                    let port = value.parse().map_err(|_| bad("the service is not a port below 65536"))?;
                    via.service.replace(port).is_some()
                }
                _ => return Err(AddressError::Key { url: url.to_owned(), key: key.to_owned() }),
            };
            if twice {
                return Err(bad("a choice is given twice"));
            }
        }
        Ok(via)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_ref().map(|device| format!("device={device}"));
        let source = self.source.map(|source| format!("source={source}"));
        let service = self.service.map(|port| format!("service={port}"));
        for (pair, mark) in device.iter().chain(&source).chain(&service).zip(['?', '&', '&']) {
            write!(f, "{mark}{pair}")?;
        }
        Ok(())
    }
}

/// `host:port`, or why it is none.
fn host_and_port(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("no port")?;
    let port = port.parse().map_err(|_| "the port is not a number below 65536")?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err("no host") } else { Ok((host.to_owned(), port)) }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        let bad = |why: &'static str| AddressError::Malformed { url: url.to_owned(), why };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("no scheme"))?;
        match scheme {
            "rdma" => {
                let (rest, via) = match rest.split_once('?') {
                    Some((rest, query)) => (rest, Via::parse(url, query)?),
                    None => (rest, Via::default()),
                };
                let (host, port) = host_and_port(rest).map_err(bad)?;
                Ok(Self::Rdma { host, port, via })
            }
            "tcp" | "tcp+tls" => {
                let (host, port) = host_and_port(rest).map_err(bad)?;
                Ok(Self::Tcp { host, port, tls: scheme == "tcp+tls" })
            }
            "shm" => shm_path(rest).map(|path| Self::Shm { path }).map_err(bad),
            "mem" if rest.is_empty() => Err(bad("no name")),
            "mem" => Ok(Self::Mem { name: rest.to_owned() }),
            _ => Err(AddressError::Scheme { url: url.to_owned() }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma { host, port, via } if host.contains(':') => write!(f, "rdma://[{host}]:{port}{via}"),
            Self::Rdma { host, port, via } => write!(f, "rdma://{host}:{port}{via}"),
            Self::Tcp { host, port, tls } => {
                let scheme = if *tls { "tcp+tls" } else { "tcp" };
                let (begin, end) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{begin}{host}{end}:{port}")
            }
            Self::Shm { path } => write!(f, "shm://{}", path.display()),
            Self::Mem { name } => write!(f, "mem://{name}"),
        }
    }
}

fn shm_path(rest: &str) -> Result<PathBuf, &'static str> {
    let path = match rest {
        "" => return Err("no name"),
        path if path.starts_with('/') => PathBuf::from(path),
        name if name.contains('/') => {
            return Err("a name has no slash; an absolute path starts with shm:///");
        }
        name => runtime_folder().join(name),
    };
    check_socket_path(&path).map(|()| path)
}

/// What follows the name of a socket in the name of its lock file.
pub(crate) const LOCK_SUFFIX: &str = ".lock";

/// Whether a socket can have this path: it names a file, which is not the lock file of another socket.
pub(crate) fn check_socket_path(path: &Path) -> Result<(), &'static str> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match bytes.rsplit(|byte| *byte == b'/').next() {
        None | Some(b"" | b"." | b"..") => Err("no name"),
        Some(name) if name.ends_with(LOCK_SUFFIX.as_bytes()) => {
            Err("a name does not end in .lock, which names lock files")
        }
        Some(_) => Ok(()),
    }
}

/// The folders in which another process of this user may look for names: with and without `XDG_RUNTIME_DIR`.
#[cfg(feature = "shm")]
pub(crate) fn runtime_folders() -> [PathBuf; 3] {
    let uid = rustix::process::getuid().as_raw();
    [
        runtime_folder(),
        PathBuf::from(format!("/run/user/{uid}/gimmal")),
        PathBuf::from(format!("/tmp/gimmal-{uid}")),
    ]
}

/// Where named sockets live: `$XDG_RUNTIME_DIR/gimmal`, else a folder of this uid in `/tmp`.
/// The listener creates it with mode 0700 and refuses one that others can enter.
#[must_use]
pub fn runtime_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("gimmal"),
        _ => PathBuf::from(format!("/tmp/gimmal-{}", rustix::process::getuid().as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        for url in [
            "rdma://10.0.0.1:7471",
            "rdma://[fd77::1]:1",
            "rdma://host:0",
            "rdma://host:1?device=rxe0",
            "rdma://[fd77::1]:1?source=fd77::2",
            "rdma://*:1?device=mlx5_0:2&source=10.0.0.1",
            "rdma://*:2?device=rxe0&service=1",
            "shm:///tmp/x.sock",
            "mem://a",
            "tcp://10.0.0.1:7000",
            "tcp://host:0",
            "tcp://*:1",
            "tcp://[::1]:7000",
            "tcp://[fe80::1%eth0]:7000",
            "tcp+tls://host:7000",
            "tcp+tls://[::1]:7000",
        ] {
            assert_eq!(url.parse::<Address>().unwrap().to_string(), url);
        }
        let named: Address = "shm://echo".parse().unwrap();
        assert_eq!(named, Address::Shm { path: runtime_folder().join("echo") });
    }

    #[test]
    fn bad_urls_say_why() {
        for (url, why) in [
            ("rdma://host", "no port"),
            ("rdma://:1", "no host"),
            ("rdma://h:65536", "not a number below"),
            ("rdma://h:1?", "'' is none of"),
            ("rdma://h:1?qos=1", "'qos' is none of device, source and service"),
            ("rdma://h:1?service=65536", "not a port"),
            ("rdma://h:1?device=", "not empty"),
            ("rdma://h:1?device=a:0", "from 1 to 255"),
            ("rdma://h:1?source=rxe0", "not an IP address"),
            ("rdma://h:1?device=a&device=b", "twice"),
            ("shm://", "no name"),
            ("rdma://h:1?source=fe80::1%eth0", "without a zone"),
            ("shm://a/b", "no slash"),
            ("shm:///", "no name"),
            ("shm:///tmp/", "no name"),
            ("shm://.", "no name"),
            ("shm:///tmp/..", "no name"),
            ("shm://a.lock", "does not end in .lock"),
            ("shm:///tmp/a.lock", "does not end in .lock"),
            ("mem://", "no name"),
            ("host:1", "no scheme"),
            ("tcp://h", "no port"),
            ("tcp://:1", "no host"),
            ("tcp+tls://h", "no port"),
            ("tcp://h:65536", "not a number below"),
            ("udp://h:1", "rdma://"),
        ] {
            let message = url.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(why), "{url}: {message}");
        }
    }
}
