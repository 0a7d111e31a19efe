//! The program's address: how it travels in a stream's name, and as the header of PROXY protocol version 2.
//! Source: the HAProxy project's `proxy-protocol.txt`, section 2.2.

use std::net::SocketAddr;

/// The header's first bytes.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2; the connection is somebody else's, or the sender's own.
const PROXIED: u8 = 0x21;
const LOCAL: u8 = 0x20;
/// A stream over IPv4 or IPv6.
const STREAM4: u8 = 0x11;
const STREAM6: u8 = 0x21;

/// The name of a stream: what is wanted, and the two ends of the program's connection.
pub(super) fn stream_name(name: &str, ends: Option<(SocketAddr, SocketAddr)>) -> String {
    match ends {
        Some((source, destination)) => format!("{name} {source} {destination}"),
        None => name.to_owned(),
    }
}

/// What is wanted, and the two ends, if they are told.
pub(super) fn read_name(text: &str) -> (&str, Option<(SocketAddr, SocketAddr)>) {
    let mut words = text.split(' ');
    let name = words.next().unwrap_or_default();
    let mut end = || words.next()?.parse().ok();
    (name, end().zip(end()))
}

/// The header that a server is sent before anything else.
pub(super) fn header(ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    match ends {
        Some((SocketAddr::V4(source), SocketAddr::V4(destination))) => {
            header.extend([PROXIED, STREAM4, 0, 12]);
            header.extend(source.ip().octets());
            header.extend(destination.ip().octets());
            header.extend(source.port().to_be_bytes());
            header.extend(destination.port().to_be_bytes());
        }
        Some((SocketAddr::V6(source), SocketAddr::V6(destination))) => {
            header.extend([PROXIED, STREAM6, 0, 36]);
            header.extend(source.ip().octets());
            header.extend(destination.ip().octets());
            header.extend(source.port().to_be_bytes());
            header.extend(destination.port().to_be_bytes());
        }
        // Unix sockets have no addresses to tell.
        _ => header.extend([LOCAL, 0, 0, 0]),
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_both_ends() {
        let ends = Some(("10.0.0.7:4711".parse().unwrap(), "[::1]:80".parse().unwrap()));
        assert_eq!(read_name(&stream_name("redis", ends)), ("redis", ends));
        assert_eq!(read_name(&stream_name("redis", None)), ("redis", None));
        for spoiled in ["redis 10.0.0.7:4711", "redis x y", "redis  "] {
            assert_eq!(read_name(spoiled), ("redis", None), "{spoiled}");
        }
        assert_eq!(read_name(""), ("", None));
    }

    #[test]
    fn headers_are_as_the_protocol_says() {
        let four = Some(("10.0.0.7:258".parse().unwrap(), "127.0.0.1:80".parse().unwrap()));
        let mut wanted = SIGNATURE.to_vec();
        wanted.extend([0x21, 0x11, 0, 12, 10, 0, 0, 7, 127, 0, 0, 1, 1, 2, 0, 80]);
        assert_eq!(header(four), wanted);
        let six = Some(("[::1]:258".parse().unwrap(), "[::2]:80".parse().unwrap()));
        let six = header(six);
        assert_eq!((six.len(), six[13], six[15]), (16 + 36, 0x21, 36));
        assert_eq!(header(None)[12..], [0x20, 0, 0, 0]);
    }
}
