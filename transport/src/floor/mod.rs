//! What an echo costs between two processes without any engine: the floors that results are compared with.
//!
//! Three floors, in one shared memfd:
//!
//! - the **line**: one cache line bounced, a word each way on lines of their own ([`Line`]);
//! - the **frame**: a 16-byte header and the payload each way, with the publish word inside ([`Frames`]). It has the
//!   same words and the same fences as the shared-memory provider, but no slots, credit, checks, events or turns. With
//!   more than one under way it is the bare ring that copies and batches nothing;
//! - the **block**: one core writes it, the other reads every byte ([`Block`]).
//!
//! The file also holds two words by which the measuring process says what it measures next ([`Area::announce`]) and
//! the other one that it has heard ([`Area::answer`]).
//!
//! ```text
//!  0        phase (the measuring side's) │ 128  heard (the other side's)          one page
//!  page     ping │ 128 pong │ 256 and 384 the same for blocks                     one page
//!  2 pages  ring of the measuring side │ ring of the other side                   each mapped twice
//! ```
//!
//! Both processes run this same code and trust each other with everything: this is a measuring instrument, not a
//! transport.

mod area;
mod block;
mod frames;
mod line;

pub use area::{Area, Side};
pub use block::Block;
pub use frames::Frames;
pub use line::Line;

/// Empty looks between two questions whether to go on.
const LOOKS: u32 = 1 << 7;

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
        std::hint::spin_loop();
    }
}
