//! Memory that a peer's frames land in.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Deref,
    rc::Rc,
};

use super::Region;

/// A mapping that frames are lent from, and where those begin that are kept beyond their turn: their bytes are not the peer's
/// before they are released.
#[derive(Debug)]
pub(crate) struct RxMemory {
    region: Region,
    kept: RefCell<VecDeque<u64>>,
    /// Shares that frames and holders have.
    shares: Cell<usize>,
}

/// Frames that are kept at once before their places need more memory: those of a poll, and as many as can be held.
const KEPT: usize = 64;

impl RxMemory {
    pub(crate) fn new(region: Region) -> Self {
        Self { region, kept: RefCell::new(VecDeque::with_capacity(KEPT)), shares: Cell::new(0) }
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn into_region(self) -> Region {
        self.region
    }

    /// For a frame or a holder, which gives it back by [`RxMemory::unshare`].
    pub(super) fn share(this: &Rc<Self>) -> Rc<Self> {
        this.shares.set(this.shares.get() + 1);
        Rc::clone(this)
    }

    pub(super) fn unshare(&self) {
        self.shares.set(self.shares.get().saturating_sub(1));
    }

    /// Whether a run has it, beside its `owners` in the port, frames and holders.
    #[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
    #[inline]
    pub(crate) fn has_run(this: &Rc<Self>, owners: usize) -> bool {
        Rc::strong_count(this) > owners && Rc::strong_count(this) - owners > this.shares.get()
    }

    /// The frame that begins at position `start` is kept.
    pub(super) fn keep(&self, start: u64) {
        self.kept.borrow_mut().push_back(start);
    }

    /// It is kept no more, if it was.
    pub(super) fn forget(&self, start: u64) {
        let mut kept = self.kept.borrow_mut();
        if let Some(at) = kept.iter().position(|other| *other == start) {
            kept.remove(at);
        }
    }

    /// The position before which nothing is kept; `None`: nothing is.
    #[cfg(any(feature = "shm", feature = "tcp", test))]
    #[inline]
    pub(crate) fn kept_from(&self) -> Option<u64> {
        self.kept.borrow().iter().min().copied()
    }
}

impl Deref for RxMemory {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        &self.region
    }
}
