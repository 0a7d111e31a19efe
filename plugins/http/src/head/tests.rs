//! What was written is read, and any bytes are answered.

use proptest::prelude::*;

use super::*;
use crate::{
    messages::{self, Answered, Arrived, Asked, Wire},
    pieces::Pieces,
};
use gimmal_rpc::codec::{Compose as _, Encode as _};

fn of_request(head: &[u8]) -> Read<request::Parts> {
    let message = Bytes::copy_from_slice(head);
    read_request(&message, &message)
}

fn of_response(head: &[u8]) -> Read<response::Parts> {
    let message = Bytes::copy_from_slice(head);
    read_response(&message, &message, HeaderMap::new())
}

fn of_trailers(trailers: &[u8]) -> Read<HeaderMap> {
    let message = Bytes::copy_from_slice(trailers);
    read_trailers(&message, &message)
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    let name = prop_oneof![
        "[a-z][a-z0-9-]{0,20}",
        proptest::sample::select(vec!["grpc-status", "content-type", "x-a", "user-agent"])
            .prop_map(str::to_owned),
    ];
    let value = proptest::collection::vec(prop_oneof![Just(9u8), 32u8..127, 128u8..=255], 0..40);
    proptest::collection::vec((name, value), 0..30).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            if name != http::header::TE {
                headers.append(name, HeaderValue::from_bytes(&value).unwrap());
            }
        }
        let goes: Vec<_> =
            rules::travelling(&headers).map(|(name, value)| (name.clone(), value.clone())).collect();
        headers.clear();
        headers.extend(goes);
        headers
    })
}

fn request(method: &str, uri: &str, headers: HeaderMap) -> request::Parts {
    let (mut parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
    parts.headers = headers;
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_read_as_they_were_written(
        headers in headers(),
        trailers in headers(),
        data in proptest::collection::vec(any::<u8>(), 0..100),
        method in "[A-Z]{1,12}",
        uri in proptest::sample::select(vec!["/", "*", "/a%20b?c=d", "http://h/", "https://h:1/x?y"]),
    ) {
        let parts = request(&method, uri, headers);
        let (data, mut out) = (Bytes::from(data), vec![0; 1 << 16]);
        let pieces = Pieces::from_iter([data.clone()]);
        let asked = Asked { parts: &parts, data: &pieces, trailers: Some(&trailers) };
        let length = asked.compose(&mut out).unwrap();
        prop_assert!(length <= request_bytes(&parts) + trailers_bytes(Some(&trailers)) + data.len() + 8);
        let (read, contents) = messages::request(Bytes::copy_from_slice(&out[..length])).unwrap();
        prop_assert_eq!((&read.method, read.uri.to_string()), (&parts.method, parts.uri.to_string()));
        prop_assert_eq!(&read.headers, &parts.headers);
        prop_assert_eq!(&contents.trailers.unwrap_or_default(), &trailers);
        prop_assert_eq!(&contents.data, &data);
        for short in [0, 1, length / 2, length - 1] {
            prop_assert_eq!(asked.compose(&mut out[..short]), Err(EncodeError::Full));
        }
    }

    #[test]
    fn responses_are_read_as_they_were_written(headers in headers(), trailers in headers(), status in 200u16..1000) {
        let (mut parts, ()) = http::Response::builder().status(status).body(()).unwrap().into_parts();
        parts.headers = headers.clone();
        let data = Pieces::from_iter([Bytes::from("some"), Bytes::new(), Bytes::from("more")]);
        let answer = Answered::Whole { parts, data, trailers: Some(trailers.clone()) };
        let mut out = vec![0; 1 << 16];
        let length = Wire::encode(&answer, &mut out).unwrap();
        let Ok(Arrived::Whole(read, contents)) = messages::answer(Bytes::copy_from_slice(&out[..length]), HeaderMap::new()) else {
            panic!("no whole response");
        };
        prop_assert_eq!((read.status.as_u16(), read.headers), (status, headers));
        prop_assert_eq!((contents.trailers.unwrap_or_default(), &contents.data[..]), (trailers, &b"somemore"[..]));
    }

    #[test]
    fn any_bytes_are_answered(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::read(&data);
    }
}

#[test]
fn what_is_above_the_limit_is_not_read() {
    let mut head = vec![1u8, 0, 0, 0, 1, 0, b'/'];
    assert_eq!(of_request(&head).unwrap().uri.path(), "/");
    // Empty values of one-byte names: 32 bytes are counted for three on the wire.
    for _ in 0..4000 {
        head.extend_from_slice(&[1, 0, 0]);
    }
    assert_eq!(of_request(&head).unwrap_err(), Unread::TooLarge);
    assert_eq!(of_trailers(&[0; HEAD_BYTES_MAX + 1]).unwrap_err(), Unread::TooLarge);
}

#[test]
fn what_is_no_head_is_refused_by_name() {
    let cases: [(&[u8], &str); 7] = [
        (&[], "it ends early"),
        (&[99], "an unknown method"),
        (&[0, 1, b' '], "the method"),
        (&[1, 0, 0, 0, 0, 0], "the path"),
        (&[1, 0, 1, 0, b' ', 1, 0, b'/'], "the authority"),
        (&[1, 0, 0, 0, 1, 0, b'/', 200, 0, 0], "an unknown name of a header"),
        (&[1, 0, 0, 0, 1, 0, b'/', 1, 1, 0, b'\n'], "the value of a header"),
    ];
    for (head, why) in cases {
        match of_request(head) {
            Err(unread) => assert_eq!(unread, Unread::Malformed(why), "{head:?}"),
            Ok(parts) => assert_eq!((why, parts.uri.path()), ("the path", "/"), "{head:?}"),
        }
    }
    for status in [0u16, 99, 101, 1000] {
        assert!(of_response(&status.to_le_bytes()).is_err(), "{status}");
    }
    let upper = [0, 1, b'X', 0, 0];
    assert!(of_trailers(&upper).is_err());
}

#[test]
fn a_hostile_head_allocates_no_more_than_its_limit_allows() {
    let mut hostile = vec![1u8, 0, 0, 0, 1, 0, b'/'];
    for at in 0..500u16 {
        hostile.extend_from_slice(&[0, 2]);
        hostile.extend_from_slice(format!("{:02x}", at % 256).as_bytes());
        hostile.extend_from_slice(&[0, 0]);
    }
    let head = Bytes::from(hostile);
    let all = allocation_counter::measure(|| drop(read_request(&head, &head)));
    assert!(all.bytes_max < 256 << 10, "{} bytes for a head of {}", all.bytes_max, head.len());
}
