//! What the tests of this crate and of others need of it.

mod builder;
mod came;
mod certificates;
#[cfg(all(test, any(feature = "shm", feature = "tcp")))]
pub(crate) mod process;

pub use builder::{BuilderCall, no_call_undoes_another};
pub use came::{Came, next_frames, poll};
pub use certificates::{Authority, Issued};

/// All of `region`, for a test that is the peer of the code under test.
#[cfg(feature = "testing")]
#[must_use]
pub fn words(region: crate::mem::Region) -> crate::Words {
    crate::Words::of(region)
}
