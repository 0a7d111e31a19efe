//! Registered memory of a port, by purpose.

pub(crate) mod borrowed;
pub(crate) mod cache;
pub(crate) mod exposed;
pub(crate) mod grant;
pub(crate) mod pool;
pub(crate) mod pulse;
pub(crate) mod purpose;
pub(crate) mod rings;
