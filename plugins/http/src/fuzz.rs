//! What the fuzz target calls. It may change at any time.

use bytes::Bytes;
use http::HeaderMap;

use crate::{head, messages};

/// Reads `data` as each message that a peer may send.
pub fn read(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = messages::request(bytes.clone());
    let _ = messages::answer(bytes.clone(), HeaderMap::new());
    let _ = head::read_response(&bytes, &bytes, HeaderMap::new());
    let _ = head::read_trailers(&bytes, &bytes);
}
