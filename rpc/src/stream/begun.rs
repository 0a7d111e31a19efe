//! The streams of a call that starts, of which the one down may be made later: most calls have none in the end.
//!
//! ```text
//!  Later ─► window offered ─┬─► answer: no stream was made
//!                           └─► item: Lanes, Begun ─► the caller's ends
//! ```

use std::sync::Arc;

use super::{Lane, Lanes, Tie, window::Budget};

/// The streams of a call that starts.
#[derive(Debug)]
pub(crate) enum Streams {
    Made(Box<Lanes>),
    /// One down, which is made when its first item comes.
    Later,
}

impl Streams {
    /// What [`Streams::apart`] makes two of.
    pub(crate) fn of(lanes: Option<Box<Lanes>>, is_later: bool) -> Option<Self> {
        if is_later { Some(Self::Later) } else { lanes.map(Self::Made) }
    }

    /// As two, which take less room: the lanes, and whether one is made later.
    pub(crate) fn apart(streams: Option<Self>) -> (Option<Box<Lanes>>, bool) {
        match streams {
            Some(Self::Made(lanes)) => (Some(lanes), false),
            Some(Self::Later) => (None, true),
            None => (None, false),
        }
    }

    /// What the other side may send at first, beside so many calls.
    #[inline]
    pub(crate) fn open(&mut self, budget: &Arc<Budget>, calls: usize) -> u32 {
        match self {
            Self::Made(lanes) => lanes.open(budget),
            Self::Later => budget.offer(calls),
        }
    }
}

/// The stream down of a call, which was made when its first item came. Dropping it cancels the call.
#[derive(Debug)]
pub struct Begun {
    pub(super) down: Arc<Lane>,
    pub(super) tie: Tie,
}

impl Begun {
    pub(crate) fn of(lanes: &Lanes) -> Option<Self> {
        Some(Self { down: lanes.rx.clone()?, tie: lanes.tie() })
    }
}
