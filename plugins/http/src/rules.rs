//! Rules of HTTP that hold for every request and response, whatever carries it.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request};

/// Whether a header goes on to the other end, where `Connection` does not name it. Those that are about one connection do not (RFC 9110,
/// section 7.6.1), nor does the expectation of a 100, because a body is never held back for it.
pub(crate) fn travels(name: &HeaderName, value: &HeaderValue) -> bool {
    match name.as_str() {
        "connection"
        | "transfer-encoding"
        | "upgrade"
        | "proxy-authenticate"
        | "proxy-authorization"
        | "expect"
        | "keep-alive"
        | "proxy-connection"
        | "http2-settings" => false,
        "te" => value == "trailers",
        _ => true,
    }
}

/// Names that are compared faster than one of them is found by its hash.
const FEW: usize = 8;

/// Whether there is a header of that name. Most heads have a few headers.
pub(crate) fn has(headers: &HeaderMap, name: &HeaderName) -> bool {
    if headers.keys_len() <= FEW { headers.keys().any(|it| it == name) } else { headers.contains_key(name) }
}

/// The headers that go on to the other end.
pub(crate) fn travelling(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    let names_some = has(headers, &header::CONNECTION);
    let goes = move |name, value| travels(name, value) && !(names_some && is_named(name, headers));
    headers.iter().filter(move |(name, value)| goes(name, value))
}

/// Whether `Connection` says that a header is about the connection too.
#[cold]
fn is_named(name: &HeaderName, headers: &HeaderMap) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        let named = value.to_str().unwrap_or_default().split(',');
        named.into_iter().any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
    })
}

/// Why a request cannot be carried, if it cannot.
pub(crate) fn not_carried(parts: &request::Parts) -> Option<&'static str> {
    if parts.method == Method::CONNECT {
        return Some("CONNECT");
    }
    has(&parts.headers, &header::UPGRADE).then_some("Upgrade")
}

/// What `content-length` says, if it says one thing.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Lies> {
    let mut said = None;
    if !has(headers, &header::CONTENT_LENGTH) {
        return Ok(said);
    }
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
        let goes: Vec<&str> = travelling(&all).map(|(name, _)| name.as_str()).collect();
        assert_eq!(goes, ["te", "x-end"]);
        let some = headers(&[("te", "gzip"), ("te", "trailers")]);
        let goes: Vec<_> = travelling(&some).map(|(_, value)| value).collect();
        assert_eq!(goes, ["trailers"]);
    }

    #[test]
    fn a_header_is_found_among_few_and_among_many() {
        let mut some = headers(&[]);
        for at in 0..2 * FEW {
            assert!(!has(&some, &header::CONNECTION) && !has(&some, &header::TE));
            some.insert(HeaderName::try_from(format!("x-{at}")).unwrap(), HeaderValue::from_static("1"));
            assert!(some.keys().all(|name| has(&some, name)));
        }
        some.insert(header::CONNECTION, HeaderValue::from_static("x-0"));
        assert!(has(&some, &header::CONNECTION));
        let stay = travelling(&some).filter(|(name, _)| *name == "x-0" || *name == header::CONNECTION);
        assert_eq!((stay.count(), travelling(&some).count()), (0, 2 * FEW - 1));
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
