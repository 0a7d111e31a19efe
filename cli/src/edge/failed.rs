//! The answers to requests that failed at an edge.

use std::{fmt, iter};

use gimmal::Fate;
use gimmal_http::Error;
use h2::Reason;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{Either, Empty};

/// A body that passes, or none.
pub(super) type Passed<B> = Either<B, Empty<bytes::Bytes>>;

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
}

/// A body ended before its stream did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer gave the stream up before the end of the body")
    }
}

impl std::error::Error for Cut {}

/// Writes a status of gRPC.
pub(super) fn put_status(headers: &mut HeaderMap, code: gimmal::Code, why: &str) {
    let message: String = why
        .bytes()
        .map(|byte| match byte {
            b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    headers.insert("grpc-status", u16::from(code.number()).into());
    if let Ok(message) = message.parse() {
        headers.insert("grpc-message", message);
    }
}

/// The answer to a request that failed at this edge, in the words of its protocol.
pub(super) fn failed<B>(
    is_grpc: bool,
    status: StatusCode,
    code: gimmal::Code,
    why: &str,
) -> Response<Passed<B>> {
    let mut response = Response::new(Either::Right(Empty::new()));
    if !is_grpc {
        *response.status_mut() = status;
        return response;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc"));
    put_status(headers, code, why);
    response
}

/// The answer to a request that is one too many.
pub(super) fn full<B>(is_grpc: bool) -> Response<Passed<B>> {
    let why = "the edge has as many requests as it takes at once";
    failed(is_grpc, StatusCode::SERVICE_UNAVAILABLE, gimmal::Code::ResourceExhausted, why)
}

/// Status and code of a failure of gimmal.
pub(super) fn judged(error: &Error) -> (StatusCode, gimmal::Code) {
    let code = error.code();
    let status = match (error, code) {
        (Error::NotCarried(_), _) => StatusCode::NOT_IMPLEMENTED,
        (Error::HeadTooLarge, _) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        (Error::ContentLength, _) => StatusCode::BAD_REQUEST,
        (_, gimmal::Code::DeadlineExceeded) => StatusCode::GATEWAY_TIMEOUT,
        // The caller may repeat it. A connection that ended behind the request is a 502.
        (_, gimmal::Code::Unavailable | gimmal::Code::ResourceExhausted) if error.fate() == Fate::NotRun => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::BAD_GATEWAY,
    };
    (status, code)
}

type Dyn = dyn std::error::Error + 'static;

/// What h2 says of a failure of hyper.
fn of_h2(error: &Dyn) -> Option<&h2::Error> {
    iter::successors(Some(error), |&error| error.source()).find_map(<Dyn>::downcast_ref)
}

/// Whether a request certainly did not run that was sent to a server of HTTP/2 (RFC 9113, section 8.7).
pub(super) fn did_not_run(error: &Dyn) -> bool {
    of_h2(error).is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        let is_left_out = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
        error.is_remote() && (is_refused || is_left_out)
    })
}

/// Code of a request that the server of HTTP/2 did not answer, as gRPC maps errors of HTTP/2. A stream that was reset may have run.
pub(super) fn unanswered(error: &Dyn) -> gimmal::Code {
    match of_h2(error).filter(|error| error.is_reset()).and_then(h2::Error::reason) {
        // The connection was not made, or lost.
        None | Some(Reason::REFUSED_STREAM) => gimmal::Code::Unavailable,
        Some(Reason::CANCEL) => gimmal::Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => gimmal::Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => gimmal::Code::PermissionDenied,
        Some(_) => gimmal::Code::Internal,
    }
}

/// Code of what ended a response's body.
pub(super) fn code_of(error: &Dyn) -> gimmal::Code {
    match error.downcast_ref::<Error>() {
        Some(error) => error.code(),
        None if error.is::<Cut>() => gimmal::Code::Internal,
        None => unanswered(error),
    }
}

#[cfg(test)]
mod tests {
    use gimmal::{CallError, TransportError};
    use gimmal_transport::CloseReason;

    use super::*;

    #[test]
    fn what_ran_is_not_to_be_repeated() {
        let closed = |fate| {
            let reason = CloseReason::Peer;
            Error::Call(CallError::Transport(TransportError::Closed { reason, fate }))
        };
        let full = Error::Call(CallError::Transport(TransportError::Full { waiting: 1 }));
        let cases = [
            (closed(Fate::NotRun), StatusCode::SERVICE_UNAVAILABLE, gimmal::Code::Unavailable),
            (closed(Fate::MaybeRan), StatusCode::BAD_GATEWAY, gimmal::Code::Unavailable),
            (full, StatusCode::SERVICE_UNAVAILABLE, gimmal::Code::ResourceExhausted),
            (Error::Aborted(String::new()), StatusCode::BAD_GATEWAY, gimmal::Code::Cancelled),
            (Error::ContentLength, StatusCode::BAD_REQUEST, gimmal::Code::Internal),
            (Error::ResponseLength, StatusCode::BAD_GATEWAY, gimmal::Code::Internal),
            (Error::Malformed("no head"), StatusCode::BAD_GATEWAY, gimmal::Code::Internal),
        ];
        for (error, status, code) in cases {
            assert_eq!(judged(&error), (status, code), "{error}");
        }
    }

    #[test]
    fn a_connection_that_was_not_made_is_unavailable() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(unanswered(&refused), gimmal::Code::Unavailable);
        let lost = h2::Error::from(Reason::NO_ERROR);
        assert_eq!(unanswered(&lost), gimmal::Code::Unavailable);
        assert!(!did_not_run(&refused) && !did_not_run(&lost));
    }
}
