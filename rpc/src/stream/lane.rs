//! Lanes: one direction of a call, between its user's end and its worker.
//!
//! ```text
//!            finish ─► Ended    all items, then the end
//!  Open ─┬─► drop, reset ─► Aborted  all items, then word that no good end comes
//!        ├─► the reader stopped ───► Stopped  nothing more
//!        └─► the call is over, or was dropped ─► Over    nothing more
//! ```
//! An item, the end, the abort and the loss of its call are all one lane's, which its worker looks at in this order. So none of
//! them overtakes another, whatever queue brings the cancel of the call.
//!
//! A lane's items lie in one buffer under a lock. Either side holds the lock to add an item or to exchange the buffer for an empty one
//! of its own, never while it runs code of the user. So a side takes the lock once for all items that the other has added, and no item
//! has an allocation of its own.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
    },
    task::Waker,
};

use atomic_waker::AtomicWaker;
use gimmal_engine::transport::{
    Bulk, ConnId, Loan,
    pack::{high_half, join, low_half},
};

use super::{
    items::{Apart, Items, Look, clamp},
    window::{Ahead, Budget},
};
use crate::{draining::Signal, wake::rouse};

/// What a sender's items may cost before its worker has taken them.
const AHEAD: i64 = 16 << 10;
/// What a sender's bytes may cost before its worker has taken them: it has more of them at once.
const BYTES_AHEAD: i64 = 64 << 10;
/// How much of it may lie in loans: the writer and its worker may share a core, and change as rarely as that lets them.
const LENT_AHEAD: usize = 1 << 20;
/// Most bytes of a byte stream in one loan.
pub(super) const LOAN_BYTES: usize = 64 << 10;

/// How a lane stands. It leaves `Open` once, and is then `Over` at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Items come.
    Open,
    /// The sender finished, or the download's call ended with an answer: what was sent is all.
    Ended,
    /// The sender gave up, with this code.
    Aborted(u32),
    /// The reader wants no more, with this code.
    Stopped(u32),
    /// An item is above so many bytes, which is what this side takes.
    TooLarge(u32),
    /// The call ended otherwise, or its caller dropped it.
    Over,
}

impl State {
    const fn bits(self) -> u64 {
        match self {
            Self::Open => 0,
            Self::Ended => 1,
            Self::Over => 2,
            Self::Aborted(code) => join(3, code),
            Self::Stopped(code) => join(4, code),
            Self::TooLarge(limit) => join(5, limit),
        }
    }

    const fn of(bits: u64) -> Self {
        match low_half(bits) {
            0 => Self::Open,
            1 => Self::Ended,
            3 => Self::Aborted(high_half(bits)),
            4 => Self::Stopped(high_half(bits)),
            5 => Self::TooLarge(high_half(bits)),
            _ => Self::Over,
        }
    }
}

/// Whose the lane is on its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The call with this key's bits.
    Caller(u64),
    /// What runs in a slot, by its mark.
    Callee(u32, u64),
}

/// The worker that moves a lane.
pub(crate) trait Mover: fmt::Debug + Send + Sync {
    /// Makes the worker look at `lane`, whose user did something.
    fn look_at(&self, lane: Arc<Lane>);

    /// Memory that the peer of `conn` can bring.
    fn loan(&self, conn: ConnId, bytes: usize) -> Option<Loan>;

    /// What is set when its server begins to shut down.
    fn draining(&self) -> &Arc<Signal>;
}

/// How many bytes an item has that travels in memory of its own: from the first to the last number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lending {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Where the lanes of a connection have their worker, and what they know of it.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) mover: Arc<dyn Mover>,
    pub(crate) conn: ConnId,
    pub(crate) lending: Lending,
    pub(crate) budget: Arc<Budget>,
}

impl Home {
    fn loan(&self, bytes: usize) -> Option<Ahead> {
        Ahead::new(&self.budget, bytes, || self.mover.loan(self.conn, bytes))
    }
}

/// One direction of a call, between its user and its worker.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) items: Mutex<Items>,
    state: AtomicU64,
    pub(super) waker: AtomicWaker,
    /// What the items cost that the reader took and the sender was not told of.
    pub(super) taken: AtomicU32,
    /// What the sender was told of already, of items that the reader has not taken: their parts.
    pub(super) told_ahead: AtomicI64,
    /// A part of an item is here, and its sender was not told.
    pub(super) has_part: AtomicBool,
    /// The worker looks when so much was taken: half the window.
    pub(super) notice: AtomicU32,
    /// Nobody reads any more.
    pub(super) is_unread: AtomicBool,
    /// The reader wants no more, with the code that follows the first bit.
    stop: AtomicU64,
    /// Its call was dropped.
    pub(super) is_given_up: AtomicBool,
    /// The handler's result says how it ends, so dropping its sink says nothing.
    pub(super) is_answered: bool,
    /// The sender said how it ends, whatever the handler's result says.
    pub(super) is_told: AtomicBool,
    /// What has not left never does: the sender gave up at once.
    is_abandoned: AtomicBool,
    /// Items have no bounds: the worker joins and splits them.
    pub(super) is_bytes: AtomicBool,
    /// The end that the sender said has left.
    pub(super) has_ended: AtomicBool,
    /// The worker will look.
    queued: AtomicBool,
    home: OnceLock<(Arc<Home>, Owner)>,
}

impl Lane {
    fn fresh(is_answered: bool) -> Self {
        Self {
            items: Mutex::default(),
            state: AtomicU64::new(State::Open.bits()),
            waker: AtomicWaker::new(),
            taken: AtomicU32::new(0),
            told_ahead: AtomicI64::new(0),
            has_part: AtomicBool::new(false),
            notice: AtomicU32::new(u32::MAX),
            is_unread: AtomicBool::new(false),
            stop: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            is_answered,
            is_told: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            is_bytes: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            home: OnceLock::new(),
        }
    }

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::fresh(false))
    }

    /// Of a handler's sink.
    pub(super) fn answered() -> Arc<Self> {
        Arc::new(Self::fresh(true))
    }

    /// Makes it as [`Lane::answered`] does, if nobody else has it; whether that is so.
    pub(super) fn renew(self: &mut Arc<Self>) -> bool {
        let place = Arc::get_mut(self);
        place.map(|lane| *lane = Self::fresh(true)).is_some()
    }

    pub(super) fn items(&self) -> MutexGuard<'_, Items> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many items lie in it.
    pub(super) fn len(&self) -> usize {
        self.items().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items().is_empty()
    }

    /// What the sender's items may cost before its worker has taken them.
    fn ahead(&self) -> i64 {
        if self.is_bytes.load(Ordering::Acquire) { BYTES_AHEAD } else { AHEAD }
    }

    /// Whether the sender has to wait for its worker.
    pub(super) fn is_full(&self) -> bool {
        self.items().is_above(self.ahead(), LENT_AHEAD)
    }

    /// Of a sender: adds the items of `own`, which is one. Nothing is copied when the worker has taken all that was there before.
    /// Whether there was room; `own` is empty then.
    pub(super) fn put(self: &Arc<Self>, own: &mut Items) -> bool {
        let mut items = self.items();
        let is_first = items.is_empty();
        if is_first {
            std::mem::swap(&mut *items, own);
        } else if items.is_above(AHEAD, LENT_AHEAD) {
            return false;
        } else {
            items.push_first_of(own);
        }
        drop(items);
        own.clear();
        if is_first {
            self.notify();
        }
        true
    }

    /// Of a sender: memory for an item of so many bytes, which its peer brings. None for small ones, nor when there is none: then the
    /// item is copied.
    pub(super) fn loan(&self, bytes: usize) -> Option<Ahead> {
        let (home, _) = self.home.get()?;
        let may = (home.lending.from..=home.lending.to).contains(&bytes);
        if may { home.loan(bytes) } else { None }
    }

    /// Of a sender: adds as much of `pieces` as there is room for, without bounds. Returns how much that was.
    pub(super) fn put_bytes<'a>(self: &Arc<Self>, pieces: impl Iterator<Item = &'a [u8]>) -> usize {
        let (from, mut written) = (self.lends_from(), 0);
        for mut piece in pieces {
            while !piece.is_empty() {
                let lent = if piece.len() >= from { self.lend_bytes(piece) } else { None };
                let taken = lent.unwrap_or_else(|| self.copy_bytes(piece));
                written += taken;
                piece = &piece[taken..];
                if taken == 0 {
                    return written;
                }
            }
        }
        written
    }

    /// How many bytes an item has, at least, for which [`Lane::loan`] may have memory.
    pub(super) fn lends_from(&self) -> usize {
        self.home.get().map_or(usize::MAX, |(home, _)| home.lending.from)
    }

    /// Adds the beginning of `piece` in memory of its own: how much, if there is such memory.
    fn lend_bytes(self: &Arc<Self>, piece: &[u8]) -> Option<usize> {
        if self.items().is_above(i64::MAX, LENT_AHEAD) {
            return Some(0);
        }
        let bytes = piece.len().min(LOAN_BYTES);
        // Memory of few sizes is used again as it is.
        let (home, _) = self.home.get()?;
        let mut loan = home.loan(bytes.next_power_of_two())?.truncate(bytes);
        loan.bytes_mut().copy_from_slice(&piece[..bytes]); // bytes of a stream
        let mut items = self.items();
        let is_first = items.is_empty();
        items.push_apart(Apart::Loan(loan));
        drop(items);
        if is_first {
            self.notify();
        }
        Some(bytes)
    }

    fn copy_bytes(self: &Arc<Self>, piece: &[u8]) -> usize {
        let mut items = self.items();
        let is_first = items.is_empty();
        let taken = piece.len().min(items.room(BYTES_AHEAD));
        if taken > 0 {
            items.extend(&piece[..taken]);
        }
        drop(items);
        if is_first && taken > 0 {
            self.notify();
        }
        taken
    }

    /// Nobody sends what is in it any more.
    pub(super) fn clear(&self) {
        self.items().clear();
    }

    /// Exchanges the items for those of `own`, which are read: they are none from then on.
    pub(super) fn exchange(&self, own: &mut Items) -> Look {
        own.clear();
        self.items().give(own)
    }

    /// An item that was on its way came, whatever became of its call.
    pub(crate) fn came(&self, number: u64, bulk: Bulk) {
        let is_first = self.items().came(number, bulk);
        if is_first {
            rouse(&self.waker);
        }
    }

    /// An item that was on its way never comes. Its reader must not take what is before it for all.
    pub(crate) fn lose(self: &Arc<Self>, number: u64) {
        if self.items().lose(number) {
            self.end(State::Over);
            self.stop(0);
            rouse(&self.waker);
        }
    }

    /// Whether its reader is gone.
    pub(crate) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Acquire)
    }

    /// The sender's items have no bounds.
    pub(super) fn be_bytes(&self) {
        self.is_bytes.store(true, Ordering::Release);
    }

    /// Whether the end that the sender said has left.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// The reader took items that cost so much.
    pub(super) fn took(self: &Arc<Self>, cost: i64) {
        let cost = self.untold(cost);
        let before = self.taken.fetch_add(cost, Ordering::Relaxed);
        if before.saturating_add(cost) >= self.notice.load(Ordering::Relaxed)
            || self.has_part.load(Ordering::Acquire)
        {
            self.notify();
        }
    }

    /// What the sender is still to be told of items that cost so much.
    pub(super) fn untold(&self, cost: i64) -> u32 {
        if self.told_ahead.load(Ordering::Relaxed) == 0 {
            return clamp(cost);
        }
        let less = |ahead: i64| Some(ahead - ahead.min(cost));
        let ahead = self.told_ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        clamp(cost - ahead.unwrap_or(0).min(cost))
    }

    /// An item is above what this side takes: its reader is told the limit, and its sender to stop.
    pub(super) fn refuse(&self, limit: usize) {
        self.end(State::TooLarge(u32::try_from(limit).unwrap_or(u32::MAX)));
        self.stop.store(join(1, 0), Ordering::Release);
    }

    /// What is set when the server of its worker begins to shut down.
    pub(super) fn draining(&self) -> Option<&Arc<Signal>> {
        self.home.get().map(|(home, _)| home.mover.draining())
    }

    /// Tells the user's end where its worker is; once.
    pub(super) fn bind(&self, home: Arc<Home>, owner: Owner) {
        let _ = self.home.set((home, owner));
        // SYNC POINT: lane bound. Who pushed before and saw no home is seen by the look that follows.
        fence(Ordering::SeqCst);
    }

    /// Where the worker finds it.
    pub(crate) fn owner(&self) -> Option<(ConnId, Owner)> {
        self.home.get().map(|(home, owner)| (home.conn, *owner))
    }

    /// What its connection's readers keep is counted there.
    pub(super) fn budget(&self) -> Option<&Arc<Budget>> {
        self.home.get().map(|(home, _)| &home.budget)
    }

    /// Makes the worker look.
    pub(super) fn notify(self: &Arc<Self>) {
        // SYNC POINT: lane bound. Pairs with `bind`.
        fence(Ordering::SeqCst);
        let Some((home, _)) = self.home.get() else { return };
        // SYNC POINT: lane queued. What was done before is seen by the look after `unqueue`.
        if !self.queued.swap(true, Ordering::AcqRel) {
            home.mover.look_at(Arc::clone(self));
        }
    }

    /// Of the worker, which will look: until then no notice is needed.
    pub(super) fn expect_look(&self) {
        self.queued.store(true, Ordering::Release);
    }

    /// Before the worker looks: notices from now on count again.
    pub(crate) fn unqueue(&self) {
        // SYNC POINT: lane queued. Pairs with `notify`.
        self.queued.swap(false, Ordering::AcqRel);
    }

    /// How it stands. Nothing is pushed by the sender after it left `Open`, so read this before the lane is found empty.
    pub(crate) fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    /// Puts `next` in the place of a state that `may` says; whether it did.
    fn turn(&self, next: State, may: impl Fn(State) -> bool) -> bool {
        let done = self.turn_unseen(next, may);
        if done {
            rouse(&self.waker);
        }
        done
    }

    fn turn_unseen(&self, next: State, may: impl Fn(State) -> bool) -> bool {
        let step = |bits| may(State::of(bits)).then(|| next.bits());
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// Ends it, unless it has ended. Its task is left to be woken.
    pub(super) fn end_unseen(&self, state: State) -> Option<Waker> {
        if self.turn_unseen(state, |before| before == State::Open) { self.waker.take() } else { None }
    }

    /// Ends it, unless it has ended; whether it had not.
    pub(super) fn end(&self, state: State) -> bool {
        self.turn(state, |before| before == State::Open)
    }

    /// The reader wants no more, whatever the sender said; what it was told last stays.
    pub(super) fn stopped(&self, code: u32) {
        self.turn(State::Stopped(code), |before| !matches!(before, State::Over | State::Stopped(_)));
    }

    /// Nothing more leaves it, not even an end that was said; whether that is new.
    pub(super) fn shut(&self) -> bool {
        self.turn(State::Over, |before| !matches!(before, State::Over | State::Stopped(_)));
        !self.is_given_up.swap(true, Ordering::AcqRel)
    }

    /// Its sender is dropped. A caller that did not finish has given up. A handler has not: it says the end by its result, unless it
    /// panics, in which case another thread or task may be the one that returns.
    pub(super) fn sender_dropped(self: &Arc<Self>) {
        let is_fine = self.is_answered && !std::thread::panicking();
        if self.end(if is_fine { State::Ended } else { State::Aborted(0) }) {
            self.notify();
        }
    }

    /// Its sender said that it is done.
    pub(super) fn finished(self: &Arc<Self>) {
        if self.end(State::Ended) {
            self.notify();
        }
    }

    /// Its sender gives up, and waits for nothing that is in it to leave before.
    pub(super) fn abandoned(self: &Arc<Self>, code: u32) {
        self.is_abandoned.store(true, Ordering::Release);
        self.told(State::Aborted(code));
    }

    /// Whether nothing of what is in it leaves, though its end does.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Its sender said how it ends, and the reader is to hear of it at once.
    pub(super) fn told(self: &Arc<Self>, end: State) {
        self.is_told.store(true, Ordering::Release);
        self.end(end);
        // Even where it had ended: its worker may keep an answer back until this has been said.
        self.notify();
    }

    /// The reader is dropped: what is here and comes later is discarded. `left`: what the items cost that it took out and did not
    /// read.
    pub(super) fn reader_dropped(self: &Arc<Self>, left: i64) {
        self.is_unread.store(true, Ordering::Release);
        let mut items = self.items();
        self.taken.fetch_add(self.untold(left.saturating_add(items.cost())), Ordering::Relaxed);
        items.clear();
        drop(items);
        if self.state() == State::Open {
            self.notify();
        }
    }

    /// The reader wants no more.
    pub(super) fn stop(self: &Arc<Self>, code: u32) {
        self.stop.store(join(1, code), Ordering::Release);
        self.notify();
    }

    /// The code with which the reader said that it wants no more.
    pub(super) fn stop_code(&self) -> Option<u32> {
        let stop = self.stop.load(Ordering::Acquire);
        (stop != 0).then_some(high_half(stop))
    }
}
