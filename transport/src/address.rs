//! Where a peer is: `rdma://host:port`, `shm://name-or-path`, `mem://name`.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::AddressError;

/// An endpoint, parsed from a URL.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// `rdma://host:port`: through the RDMA CM. `host` is a name, an IPv4 or a bracketed IPv6 address;
    /// to listen on every device give `*`.
    Rdma {
        /// Name or address, without brackets.
        host: String,
        /// Port in the CM's TCP port space; 0 to listen on a free one.
        port: u16,
    },
    /// `shm://name` (in the user's runtime folder) or `shm:///absolute/path`: two processes of one host.
    Shm {
        /// The rendezvous socket.
        path: PathBuf,
    },
    /// `mem://name`: in this process, for tests.
    Mem {
        /// Any non-empty name.
        name: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        let bad = |why: &'static str| AddressError::Malformed { url: url.to_owned(), why };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("no scheme"))?;
        match scheme {
            "rdma" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("no port"))?;
                let port = port.parse().map_err(|_| bad("the port is not a number below 65536"))?;
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                if host.is_empty() {
                    return Err(bad("no host"));
                }
                Ok(Self::Rdma { host: host.to_owned(), port })
            }
            "shm" if rest.is_empty() => Err(bad("no name")),
            "shm" if rest.starts_with('/') => Ok(Self::Shm { path: PathBuf::from(rest) }),
            "shm" if rest.contains('/') => {
                Err(bad("a name has no slash; an absolute path starts with shm:///"))
            }
            "shm" => Ok(Self::Shm { path: runtime_folder().join(rest) }),
            "mem" if rest.is_empty() => Err(bad("no name")),
            "mem" => Ok(Self::Mem { name: rest.to_owned() }),
            _ => Err(AddressError::Scheme { url: url.to_owned() }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma { host, port } if host.contains(':') => write!(f, "rdma://[{host}]:{port}"),
            Self::Rdma { host, port } => write!(f, "rdma://{host}:{port}"),
            Self::Shm { path } => write!(f, "shm://{}", path.display()),
            Self::Mem { name } => write!(f, "mem://{name}"),
        }
    }
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
        for url in
            ["rdma://10.0.0.1:7471", "rdma://[fd77::1]:1", "rdma://host:0", "shm:///tmp/x.sock", "mem://a"]
        {
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
            ("shm://", "no name"),
            ("shm://a/b", "no slash"),
            ("mem://", "no name"),
            ("host:1", "no scheme"),
            ("tcp://h:1", "rdma://"),
        ] {
            let message = url.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(why), "{url}: {message}");
        }
    }
}
