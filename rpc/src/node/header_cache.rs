//! The headers that the last requests of a connection had: a request with the same header leaves without it.

use gimmal_engine::transport::Violation;

use super::schemas::Schemas;
use crate::{
    frame::{RequestHead, RequestWords},
    service::Entry,
};

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requested {
    pub(super) head: RequestHead,
    /// The method, if it is here and its types are alike.
    pub(super) entry: Option<Entry>,
}

/// The last request header in each direction. Not of requests with metadata, of large ones and of one-way ones.
#[derive(Default, Debug)]
pub(super) struct HeaderCache {
    /// Sent by this side.
    pub(super) sent: Option<RequestWords>,
    /// Sent by the peer.
    pub(super) received: Option<Requested>,
    /// What goes ahead of a method's first header.
    pub(super) schemas: Schemas,
}

impl HeaderCache {
    /// Returns what a request asks for that has no header of its own.
    #[inline]
    pub(super) fn received(&self) -> Result<Requested, Violation> {
        self.received.ok_or(Violation::Malformed { what: "request like none before" })
    }
}
