//! Look-ups of others, until they are answered.

use std::net::SocketAddr;

use super::private::LookUpData;
use crate::{id::cm_id::CmId, wait::Deadline};

/// Somebody's look-up. Dropped without an answer it is rejected after a minute.
#[derive(Debug)]
pub struct LookUpRequest {
    pub(super) number: u64,
    pub(super) from: Option<SocketAddr>,
    pub(super) data: Box<LookUpData>,
}

impl LookUpRequest {
    /// The requester's address, as the CM says.
    #[must_use]
    pub fn from(&self) -> Option<SocketAddr> {
        self.from
    }

    /// What came with it, padded with zeroes to 180 bytes.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.data.bytes()
    }
}

/// A look-up that waits for an answer. Dropping its id rejects it.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) id: CmId,
    /// When nobody waits for the answer any more.
    pub(super) until: Deadline,
}
