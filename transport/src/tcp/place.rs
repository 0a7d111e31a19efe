//! Addresses: what a URL names, and how a name becomes addresses.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::Duration,
};

use crate::{Address, sync::thread};

/// Listens on every address of the host.
const EVERYWHERE: &str = "*";

/// The host and port of `address`, and whether it is reached through TLS; or why it is none.
pub(super) fn parts(address: &Address) -> Result<(&str, u16, bool), String> {
    match address {
        Address::Tcp { host, port, tls } => Ok((host, *port, *tls)),
        _ => Err("TCP connects to tcp://host:port and tcp+tls://host:port".to_owned()),
    }
}

/// A host without the interface that it is reached through, which no certificate names.
#[cfg(feature = "tls")]
pub(super) fn without_zone(host: &str) -> &str {
    host.split_once('%').map_or(host, |(host, _)| host)
}

/// Addresses of a host that need no look-up.
fn literal(host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(vec![SocketAddr::new(ip, port)]);
    }
    // A zone is a name of an interface, which the resolver looks up in this host.
    host.contains('%').then(|| look_up(host, port).unwrap_or_default())
}

fn look_up(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Where to listen, the first that can be had. May ask a name server.
pub(super) fn to_listen(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    if host == EVERYWHERE {
        let four = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port);
        return Ok(vec![SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port), four]);
    }
    literal(host, port).map_or_else(|| look_up(host, port), Ok)
}

/// Addresses to connect to: known, or being looked up.
#[derive(Debug)]
pub(super) enum Targets {
    Known(Vec<SocketAddr>),
    Asked(Receiver<Result<Vec<SocketAddr>, String>>),
}

impl Targets {
    /// Those of `host`. A name is looked up by a thread of its own, since a name server may be slow.
    ///
    /// # Errors
    /// errno of starting that thread.
    pub(super) fn of(host: &str, port: u16) -> Result<Self, i32> {
        if let Some(known) = literal(host, port) {
            return Ok(Self::Known(known));
        }
        let (tell, told) = sync_channel(1);
        let host = host.to_owned();
        let started = thread::spawn("gimmal-resolve", move || {
            // Errors of names have words and no errno.
            let answer = look_up(&host, port).map_err(|error| error.to_string());
            // Nobody waits for it any more.
            let _ = tell.send(answer);
        });
        started.map_err(|error| error.raw_os_error().unwrap_or(0))?;
        Ok(Self::Asked(told))
    }

    /// The addresses, or why there are none, waiting at most `timeout`.
    pub(super) fn poll(&mut self, timeout: Duration) -> Option<Result<Vec<SocketAddr>, String>> {
        match self {
            Self::Known(known) => Some(Ok(std::mem::take(known))),
            Self::Asked(told) => match told.recv_timeout(timeout) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    Some(Err("the thread that asks ended without an answer".to_owned()))
                }
            },
        }
    }
}
