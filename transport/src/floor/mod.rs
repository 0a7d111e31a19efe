//! What an echo costs between two processes without any engine: the floors that results are compared with.
//!
//! Four floors, in one shared memfd:
//!
//! - the **line**: one cache line bounced, a word each way on lines of their own ([`Line`]);
//! - the **frame**: a 16-byte header and the payload each way, with the publish word inside ([`Frames`]). It has the
//!   same words and the same fences as the shared-memory provider, but no slots, credit, checks, events or turns;
//! - the **bare ring**: messages copied into slots and out of them, a counter at each end, nothing batched ([`Queue`]);
//! - the **block**: one core writes it, the other reads every byte ([`Block`]).
//!
//! The file also holds two words by which the measuring process says what it measures next ([`Area::announce`]) and
//! the other one that it has heard ([`Area::answer`]).
//!
//! ```text
//!  0        phase (the measuring side's) │ 128  heard (the other's) │ 256 sizes    one page
//!  page     ping │ 128 pong │ 256 and 384 the same for blocks │ 512 counters      one page
//!  2 pages  ring of the measuring side │ ring of the other side                   each mapped twice
//!  then     slots of the measuring side │ slots of the other side
//! ```
//!
//! Both processes run this same code and trust each other with everything: this is a measuring instrument, not a
//! transport.

mod area;
mod block;
mod frames;
mod line;
mod queue;

pub use area::{Area, Side};
pub use block::Block;
pub use frames::Frames;
pub use line::Line;
pub use queue::Queue;

/// Messages that go there and come back, a window of them in flight.
pub trait Echoes {
    /// The caller's half: `payload` goes. False when the window is full.
    ///
    /// # Panics
    /// When `payload` has another size than was agreed.
    fn post(&mut self, aux: u64, payload: &[u8]) -> bool;

    /// The caller's other half: gives `read` the echo. Returns `None` if `go_on` returned false before.
    fn take<R>(&mut self, read: impl FnOnce(&[u8]) -> R, go_on: impl FnMut() -> bool) -> Option<R>;

    /// The echo's half: echoes until `go_on` returns false.
    fn echo(&mut self, go_on: impl FnMut() -> bool);
}

/// Empty looks between two questions whether to go on.
const LOOKS: u32 = 1 << 7;

/// Looks without a pause, as in the engine: an immediate echo is seen immediately.
const BARE: u32 = 64;

/// Looks with `look` until it finds something; `None` when `go_on`, which is asked now and then, says no.
#[inline]
fn wait<T>(mut look: impl FnMut() -> Option<T>, mut go_on: impl FnMut() -> bool) -> Option<T> {
    let mut looks = 0u32;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) && !go_on() {
            return None;
        }
        if looks > BARE {
            std::hint::spin_loop();
        }
    }
}
