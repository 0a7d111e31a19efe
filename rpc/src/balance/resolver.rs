//! Where the servers of a balanced channel are.

use std::net::ToSocketAddrs;

/// Names the servers of a [`Balanced`](crate::Balanced). A `Vec<String>` of URLs is one that never changes, [`Dns`] asks the
/// system's resolver.
pub trait Resolver: Send + Sync + 'static {
    /// Returns the URLs of the servers at present; one that is named twice counts once. May block: it is asked by a thread of its
    /// own, and the first time by the thread that connects.
    ///
    /// # Errors
    /// Why nothing is known. The servers that were known stay; the first time connecting fails.
    fn resolve(&self) -> Result<Vec<String>, String>;
}

/// A fixed list of URLs.
impl Resolver for Vec<String> {
    fn resolve(&self) -> Result<Vec<String>, String> {
        Ok(self.clone())
    }
}

/// Every address of the name in a URL, by the system's resolver (`getaddrinfo(3)`): one server at each. Resolving blocks, and fails for
/// a URL without a scheme or a port, and for a name that has no address.
///
/// Under `tcp+tls://` a certificate is compared with the address that was found, unless the configuration names the server
/// ([`Tls::server_name`](crate::Tls::server_name)).
#[derive(Clone, Debug)]
pub struct Dns {
    /// `gimmal://name:port`, or `tcp`, `tcp+tls` or `rdma` in place of `gimmal`.
    pub url: String,
}

impl Resolver for Dns {
    fn resolve(&self) -> Result<Vec<String>, String> {
        let url = &self.url;
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("'{url}' has no scheme"))?;
        let (name, choices) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let found = name.to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
        Ok(found.map(|address| format!("{scheme}://{address}{choices}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_takes_the_place_of_the_name() {
        let resolve = |url: &str| Dns { url: url.to_owned() }.resolve();
        assert_eq!(resolve("tcp://127.0.0.1:7000").unwrap(), ["tcp://127.0.0.1:7000"]);
        assert_eq!(resolve("rdma://[::1]:7000?device=rxe0").unwrap(), ["rdma://[::1]:7000?device=rxe0"]);
        let found = resolve("gimmal://localhost:7000").unwrap();
        assert!(found.contains(&"gimmal://127.0.0.1:7000".to_owned()), "{found:?}");
        assert_eq!(resolve("localhost:7000").unwrap_err(), "'localhost:7000' has no scheme");
        assert!(resolve("tcp://localhost").unwrap_err().starts_with("localhost: "));
    }
}
