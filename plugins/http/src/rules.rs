//! Rules of HTTP that hold for every request and response, whatever carries it.

use http::{HeaderMap, HeaderName, Method, StatusCode, header, request};

/// Whether a header goes on to the other end. Those that are about one connection do not (RFC 9110, section 7.6.1), nor does the
/// expectation of a 100, because a body is never held back for it.
pub(crate) fn travels(name: &HeaderName, headers: &HeaderMap) -> bool {
    let is_hop = [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::EXPECT,
    ]
    .contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings");
    if is_hop {
        return false;
    }
    if *name == header::TE {
        return headers.get(name).is_none_or(|value| value == "trailers");
    }
    // What `Connection` names is about the connection too.
    !headers.get_all(header::CONNECTION).iter().any(|value| {
        let named = value.to_str().unwrap_or_default().split(',');
        named.into_iter().any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
    })
}

/// Why a request cannot be carried, if it cannot.
pub(crate) fn not_carried(parts: &request::Parts) -> Option<&'static str> {
    if parts.method == Method::CONNECT {
        return Some("CONNECT");
    }
    parts.headers.contains_key(header::UPGRADE).then_some("Upgrade")
}

/// What `content-length` says, if it says one thing.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Lies> {
    let mut said = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        let text = value.to_str().unwrap_or_default();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let length: u64 = text.parse().ok().filter(|_| is_number).ok_or(Lies)?;
        if said.replace(length).is_some_and(|before| before != length) {
            return Err(Lies);
        }
    }
    Ok(said)
}

/// A `content-length` that is no number, or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lies;

/// Whether a response never has a body.
pub(crate) fn is_bodiless(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        pairs.for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    #[test]
    fn what_is_about_the_connection_stays_here() {
        let all = headers(&[
            ("connection", "keep-alive, X-Hop"),
            ("keep-alive", "5"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("x-end", "1"),
        ]);
        let goes: Vec<&str> = all.keys().filter(|name| travels(name, &all)).map(HeaderName::as_str).collect();
        assert_eq!(goes, ["te", "x-end"]);
        let other = headers(&[("te", "gzip")]);
        assert!(!travels(&header::TE, &other));
    }

    #[test]
    fn a_length_is_one_number() {
        assert_eq!(content_length(&headers(&[])), Ok(None));
        assert_eq!(
            content_length(&headers(&[("content-length", "5"), ("content-length", "5")])),
            Ok(Some(5))
        );
        for wrong in ["", "+5", "-1", "5, 5", "18446744073709551616", "0x5"] {
            assert_eq!(content_length(&headers(&[("content-length", wrong)])), Err(Lies), "{wrong}");
        }
        let two = headers(&[("content-length", "5"), ("content-length", "6")]);
        assert_eq!(content_length(&two), Err(Lies));
    }

    #[test]
    fn some_responses_have_no_body() {
        assert!(is_bodiless(&Method::HEAD, StatusCode::OK));
        assert!(is_bodiless(&Method::GET, StatusCode::NOT_MODIFIED));
        assert!(!is_bodiless(&Method::GET, StatusCode::RESET_CONTENT));
    }
}
