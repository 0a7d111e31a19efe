//! The answers to requests that failed at an edge.

use gimmal_http::Error;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{Either, Empty};

/// A body that passes, or none.
pub(super) type Passed<B> = Either<B, Empty<bytes::Bytes>>;

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
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
    let message: String = why
        .bytes()
        .map(|byte| match byte {
            b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", u16::from(code.number()).into());
    if let Ok(message) = message.parse() {
        headers.insert("grpc-message", message);
    }
    response
}

/// Status and code of a failure of gimmal.
pub(super) fn judged(error: &Error) -> (StatusCode, gimmal::Code) {
    let code = error.failure().and_then(|failure| failure.status()).map(gimmal::Status::code);
    match (error, code) {
        (Error::NotCarried(_), _) => (StatusCode::NOT_IMPLEMENTED, gimmal::Code::Unimplemented),
        (Error::HeadTooLarge, _) => {
            (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, gimmal::Code::ResourceExhausted)
        }
        (Error::NotConnected(_), _) => (StatusCode::SERVICE_UNAVAILABLE, gimmal::Code::Unavailable),
        (Error::ContentLength, _) => (StatusCode::BAD_REQUEST, gimmal::Code::Internal),
        (_, Some(code @ gimmal::Code::DeadlineExceeded)) => (StatusCode::GATEWAY_TIMEOUT, code),
        (_, Some(code @ (gimmal::Code::ResourceExhausted | gimmal::Code::Unavailable))) => {
            (StatusCode::SERVICE_UNAVAILABLE, code)
        }
        (_, Some(code)) => (StatusCode::BAD_GATEWAY, code),
        (_, None) => (StatusCode::BAD_GATEWAY, gimmal::Code::Unavailable),
    }
}
