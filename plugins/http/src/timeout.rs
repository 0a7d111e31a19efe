//! How long a request may take.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::rules;

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// How long the whole exchange may take, streams included: an extension of a request.
///
/// A client puts it in, and the call ends then on both sides. [`Serve`](crate::Serve) puts in what is left of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeout(pub Duration);

impl Timeout {
    /// Reads the header `grpc-timeout`; `None` if it is not there, or not as the specification of gRPC says.
    #[must_use]
    pub fn of_grpc(headers: &HeaderMap) -> Option<Self> {
        if !rules::has(headers, &GRPC_TIMEOUT) {
            return None;
        }
        let text = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number: u64 = digits.parse().ok()?;
        Some(Self(match unit {
            "H" => Duration::from_secs(number * 3600),
            "M" => Duration::from_secs(number * 60),
            "S" => Duration::from_secs(number),
            "m" => Duration::from_millis(number),
            "u" => Duration::from_micros(number),
            "n" => Duration::from_nanos(number),
            _ => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let cases = [
            ("3H", Some(Duration::from_secs(10_800))),
            ("1M", Some(Duration::from_secs(60))),
            ("42S", Some(Duration::from_secs(42))),
            ("13m", Some(Duration::from_millis(13))),
            ("2u", Some(Duration::from_micros(2))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("", None),
            ("S", None),
            ("5", None),
            ("+5S", None),
            ("123456789n", None),
            ("5x", None),
        ];
        for (text, timeout) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            assert_eq!(Timeout::of_grpc(&headers), timeout.map(Timeout), "{text}");
        }
    }
}
