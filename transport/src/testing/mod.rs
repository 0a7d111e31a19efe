//! What the tests of this crate and of others need of it.

mod builder;
mod came;

pub use builder::{BuilderCall, no_call_undoes_another};
pub use came::{Came, next_frames, poll};
