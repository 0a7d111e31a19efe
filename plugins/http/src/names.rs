//! Names of headers that travel as one byte.

use std::sync::LazyLock;

use http::HeaderName;

/// The names, and for each its byte: its place, counted from 1. They are part of the wire format: new names go
/// to the end.
macro_rules! names {
    ($($byte:literal => $name:literal),* $(,)?) => {
        const NAMES: &[&str] = &[$($name),*];

        /// The byte of a name, if it has one.
        pub(crate) fn byte_of(name: &HeaderName) -> Option<u8> {
            match name.as_str() {
                $($name => Some($byte),)*
                _ => None,
            }
        }
    };
}

names! {
    1 => "accept", 2 => "accept-encoding", 3 => "accept-language", 4 => "accept-ranges",
    5 => "access-control-allow-credentials", 6 => "access-control-allow-headers",
    7 => "access-control-allow-methods", 8 => "access-control-allow-origin", 9 => "access-control-expose-headers",
    10 => "access-control-request-headers", 11 => "access-control-request-method", 12 => "age", 13 => "allow",
    14 => "authorization", 15 => "cache-control", 16 => "content-disposition", 17 => "content-encoding",
    18 => "content-language", 19 => "content-length", 20 => "content-range", 21 => "content-type", 22 => "cookie",
    23 => "date", 24 => "etag", 25 => "expires", 26 => "forwarded", 27 => "grpc-accept-encoding",
    28 => "grpc-encoding", 29 => "grpc-message", 30 => "grpc-status", 31 => "grpc-status-details-bin",
    32 => "grpc-timeout", 33 => "grpc-previous-rpc-attempts", 34 => "grpc-retry-pushback-ms", 35 => "host",
    36 => "if-match", 37 => "if-modified-since", 38 => "if-none-match", 39 => "if-range", 40 => "last-modified",
    41 => "link", 42 => "location", 43 => "origin", 44 => "range", 45 => "referer", 46 => "retry-after",
    47 => "server", 48 => "set-cookie", 49 => "te", 50 => "trailer", 51 => "traceparent", 52 => "tracestate",
    53 => "user-agent", 54 => "vary", 55 => "via", 56 => "www-authenticate", 57 => "x-forwarded-for",
    58 => "x-forwarded-proto", 59 => "x-request-id",
}

/// The name of a byte, if it has one.
pub(crate) fn name_of(byte: u8) -> Option<HeaderName> {
    static READY: LazyLock<Vec<HeaderName>> =
        LazyLock::new(|| NAMES.iter().map(|name| HeaderName::from_static(name)).collect());
    READY.get(usize::from(byte).checked_sub(1)?).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_byte() {
        for (byte, name) in (1u8..).zip(NAMES) {
            let found = name_of(byte).unwrap();
            assert_eq!((found.as_str(), byte_of(&found)), (*name, Some(byte)));
        }
        assert_eq!(name_of(0), None);
        assert_eq!(name_of(u8::try_from(NAMES.len()).unwrap() + 1), None);
        assert_eq!(byte_of(&HeaderName::from_static("x-other")), None);
    }
}
