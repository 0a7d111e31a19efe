//! Client layers: channels around channels. A generated client takes any of them, and one that is not used costs nothing.
//! Server layers: services around services ([`serve`]).
//!
//! ```text
//!  XClient ─► Retry ─► Layered<Limit> ─► Layered<Log> ─► Balanced ─► Client
//! ```
//! [`Retry`] and [`Hedge`] make a call more than once, so they keep its arguments; everything that only looks at a
//! call before and after is a [`Layer`].

pub mod hedge;
pub mod layered;
pub mod ready_made;
pub mod retry;
pub mod serve;
pub mod spawned;
pub mod token;
#[cfg(feature = "tower")]
pub mod tower;

pub use hedge::Hedge;
pub use layered::{Layer, Layered};
pub use ready_made::{Limit, Log, MethodMetrics, Metrics, Rate, Timeout};
pub use retry::{Retry, RetryPolicy};
pub use serve::{Ended, Guarded, ServerLayer};
pub use spawned::Spawned;
pub use token::{Authorize, WithToken, tokens};
