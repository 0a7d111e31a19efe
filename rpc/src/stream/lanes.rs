//! The worker's ends of a call's lanes: what it owes the other side, and what may come.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use super::{
    items::{self, Apart, Items, Look, Popped, clamp},
    lane::{Home, LOAN_BYTES, Lane, Owner, State},
    window::{Ahead, Budget, Window},
};
use crate::wake::rouse;

/// Most bytes of a byte stream in one message.
const PIECE: usize = 32 << 10;

/// Boxes that a thread keeps.
const BOXES: usize = 64;

thread_local! {
    /// Boxes of calls that ended on this thread. A client that runs its own turns makes its next calls with them.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    static SPARE: RefCell<Vec<Box<Lanes>>> = const { RefCell::new(Vec::new()) };
}

/// The worker's ends of a call's lanes.
#[derive(Debug)]
pub struct Lanes {
    /// From us to the peer.
    pub(crate) tx: Option<Arc<Lane>>,
    /// From the peer to us.
    pub(crate) rx: Option<Arc<Lane>>,
    /// Taken out of its lane, not yet sent.
    leaving: Items,
    /// What the items may cost that we send. The last one may cost more, and leaves it below zero.
    pub(super) credit: i64,
    /// The end was said.
    is_ended: bool,
    /// The peer does not bring what is offered to it.
    is_unlent: bool,
    /// Most bytes of an item that travels in parts.
    pub(crate) item_bytes_max: usize,
    /// Of an item that came in part.
    part: Vec<u8>,
    /// What it costs, as far as the sender was told that it was taken, and as far as not.
    part_told: i64,
    part_untold: i64,
    /// Items that came, or come, in memory of their own.
    offers: u64,
    /// An item was too large: nothing more is read.
    is_refused: bool,
    /// What the peer's items may cost, of the window that it has.
    pub(super) granted: i64,
    pub(super) window: Option<Window>,
    /// The peer used up its window, and has more.
    is_short: bool,
    /// The peer's end was said.
    is_read: bool,
    /// That we want no more was said.
    is_stopped: bool,
    /// It waits for room in its connection's queue.
    pub(crate) is_behind: bool,
}

/// What the worker has to send for a call's lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// So many bytes of [`Lanes::item`]. `is_short`: they use up the credit, and there are more. `has_more`: of this item.
    Item {
        bytes: usize,
        is_short: bool,
        has_more: bool,
    },
    /// The first item, of so many bytes: [`Lanes::take_loan`].
    Bulk {
        bytes: usize,
        is_short: bool,
    },
    /// `more` of it because the window grew.
    Credit {
        bytes: u32,
        more: u32,
    },
    Stop(u32),
    End,
    Abort(u32),
}

/// What becomes of an item that the peer has in memory of its own.
#[derive(Debug)]
pub(crate) enum Offered {
    /// It is brought for this lane, which knows it by the number.
    Wanted(Arc<Lane>, u64),
    /// Nobody reads it.
    Unwanted,
    /// It should not have come.
    Wrong(&'static str),
}

impl Lanes {
    fn new(tx: Option<Arc<Lane>>, rx: Option<Arc<Lane>>) -> Self {
        Self {
            tx,
            rx,
            leaving: Items::default(),
            credit: 0,
            is_ended: false,
            is_unlent: false,
            item_bytes_max: 0,
            part: Vec::new(),
            part_told: 0,
            part_untold: 0,
            offers: 0,
            is_refused: false,
            granted: 0,
            window: None,
            is_short: false,
            is_read: false,
            is_stopped: false,
            is_behind: false,
        }
    }

    /// Opens the window of what the other side sends, once; what it may send at first.
    pub(crate) fn open(&mut self, budget: &Arc<Budget>) -> u32 {
        self.item_bytes_max = budget.item_bytes_max;
        let Some(rx) = &self.rx else { return 0 };
        let window = self.window.get_or_insert_with(|| Window::open(budget)).bytes();
        rx.notice.store(window / 2, Ordering::Relaxed);
        self.granted = window.into();
        window
    }

    fn both(&self) -> impl Iterator<Item = &Arc<Lane>> {
        [&self.tx, &self.rx].into_iter().flatten()
    }

    pub(crate) fn bind(&self, home: &Arc<Home>, owner: Owner) {
        self.both().for_each(|lane| lane.bind(Arc::clone(home), owner));
    }

    /// Has its worker look again, behind the other lanes.
    pub(crate) fn look_again(&self) {
        if let Some(lane) = self.both().next() {
            lane.notify();
        }
    }

    /// Of its worker, before a handler runs for the first time: it will look afterwards, so nothing that the handler does is a notice.
    pub(crate) fn expect_look(&self) {
        self.both().for_each(|lane| lane.expect_look());
    }

    /// The worker looks now.
    pub(crate) fn unqueue(&self) {
        self.both().for_each(|lane| lane.unqueue());
    }

    /// Of a handler that is done: whether its answer is all that is to be sent, now and later.
    pub(crate) fn is_silent(&self) -> bool {
        let is_unused = |tx: &Arc<Lane>| {
            tx.state() == State::Ended && !tx.is_told.load(Ordering::Acquire) && tx.is_empty()
        };
        self.rx.is_none() && self.leaving.is_empty() && self.tx.as_ref().is_some_and(is_unused)
    }

    /// Of a handler that is done: its lane for the next one, if nobody has it any more.
    pub(crate) fn into_spare(mut self) -> Option<Arc<Lane>> {
        if self.tx.as_mut().is_some_and(Lane::renew) { self.tx.take() } else { None }
    }

    /// Whether the caller dropped its call.
    pub(crate) fn is_given_up(&self) -> bool {
        self.both().any(|lane| lane.is_given_up.load(Ordering::Acquire))
    }

    /// What should be sent next: an item of at most `limit` bytes, or a part of a larger one, or of a byte stream.
    pub(crate) fn next_owed(&mut self, limit: usize) -> Option<Owed> {
        if self.is_given_up() {
            return None;
        }
        self.owed_to_sender().or_else(|| self.owed_to_reader(limit))
    }

    /// Credit goes by the half, so that items do not cause as many messages back.
    fn owed_to_sender(&mut self) -> Option<Owed> {
        let (Some(rx), false, false) = (&self.rx, self.is_read, self.is_stopped) else { return None };
        if let Some(code) = rx.stop_code() {
            return Some(Owed::Stop(code));
        }
        if self.part_untold > 0 {
            self.tell_of_part();
        }
        let rx = self.rx.as_ref()?;
        if rx.is_unread() {
            let mut items = rx.items();
            rx.taken.fetch_add(rx.untold(items.cost()), Ordering::Relaxed);
            items.clear();
        }
        let window = self.window.as_mut()?;
        let taken = rx.taken.load(Ordering::Relaxed);
        if taken < window.bytes() / 2 {
            return None;
        }
        rx.taken.fetch_sub(taken, Ordering::Relaxed);
        let unread = i64::from(window.bytes()) - self.granted - i64::from(taken);
        let keeps_up = unread <= i64::from(window.bytes() / 4);
        let more = if self.is_short && keeps_up { window.grow() } else { 0 };
        Some(Owed::Credit { bytes: taken.saturating_add(more), more })
    }

    fn owed_to_reader(&mut self, limit: usize) -> Option<Owed> {
        let tx = self.tx.as_ref()?;
        let state = tx.state();
        if matches!(state, State::Over | State::Stopped(_)) {
            self.leaving.clear();
            tx.clear();
            return None;
        }
        if matches!(state, State::Aborted(_)) && tx.is_abandoned() {
            self.leaving.clear();
            tx.clear();
        }
        if self.credit > 0 && (!self.leaving.is_empty() || tx.exchange(&mut self.leaving) == Look::Items) {
            // Its sender has room again.
            rouse(&tx.waker);
            let whole = self.leaving.front().map_or(0, <[u8]>::len);
            if self.leaving.is_loan() && !self.is_unlent {
                let more_wait = || self.leaving.len() > 1 || !tx.is_empty();
                let is_short = self.credit <= items::cost(whole, 1) && more_wait();
                return Some(Owed::Bulk { bytes: whole, is_short });
            }
            let is_bytes = tx.is_bytes.load(Ordering::Acquire);
            let bytes = match whole {
                _ if is_bytes => whole.min(limit).min(PIECE),
                _ if whole > limit && whole <= self.item_bytes_max => limit,
                _ => whole,
            };
            let has_more = bytes < whole && !is_bytes;
            let more_wait = || bytes < whole || self.leaving.len() > 1 || !tx.is_empty();
            let is_short = self.credit <= items::cost(bytes, usize::from(!has_more)) && more_wait();
            return Some(Owed::Item { bytes, is_short, has_more });
        }
        let says_end = !tx.is_answered || tx.is_told.load(Ordering::Acquire);
        if self.is_ended || !says_end || !self.leaving.is_empty() || !tx.is_empty() {
            return None;
        }
        match state {
            State::Ended => Some(Owed::End),
            State::Aborted(code) => Some(Owed::Abort(code)),
            State::Open | State::Over | State::Stopped(_) | State::TooLarge(_) => None,
        }
    }

    /// What [`Owed::Bulk`] is.
    pub(crate) fn take_loan(&mut self) -> Option<Ahead> {
        match self.leaving.pop()? {
            Popped::Apart(Apart::Loan(ahead)) => Some(ahead),
            Popped::Apart(_) | Popped::Here(_) => None,
        }
    }

    /// It did not leave. `may_later`: it may when there is room; else its bytes go in messages, and those of all that follow.
    pub(crate) fn put_back(&mut self, ahead: Ahead, may_later: bool) {
        self.leaving.put_back(Apart::Loan(ahead));
        self.is_unlent |= !may_later;
    }

    /// Whether its items go in messages, all of them.
    pub(crate) const fn is_unlent(&self) -> bool {
        self.is_unlent
    }

    /// What [`Owed::Item`] is the first part of.
    pub(crate) fn item(&self) -> &[u8] {
        self.leaving.front().unwrap_or_default()
    }

    /// It left.
    pub(crate) fn left(&mut self, owed: Owed) {
        match owed {
            Owed::Item { bytes, has_more, .. } => {
                self.credit -= items::cost(bytes, usize::from(!has_more));
                if bytes == 0 {
                    self.leaving.pop();
                } else {
                    self.leaving.consume(bytes);
                }
            }
            Owed::Bulk { bytes, .. } => self.credit -= items::cost(bytes, 1),
            Owed::Credit { bytes, more } => {
                self.granted += i64::from(bytes);
                self.is_short &= more == 0;
                if let (Some(rx), Some(window)) = (&self.rx, &self.window) {
                    rx.notice.store(window.bytes() / 2, Ordering::Relaxed);
                }
            }
            Owed::Stop(_) => self.is_stopped = true,
            Owed::End | Owed::Abort(_) => {
                self.is_ended = true;
                if let Some(tx) = &self.tx {
                    tx.has_ended.store(true, Ordering::Release);
                    rouse(&tx.waker);
                }
            }
        }
    }

    /// It found no room.
    pub(crate) fn blocked(&mut self, owed: Owed) {
        if let (Owed::Credit { bytes, more }, Some(rx), Some(window)) = (owed, &self.rx, &mut self.window) {
            window.shrink(more);
            rx.taken.fetch_add(bytes - more, Ordering::Relaxed);
        }
    }

    /// Of a handler that is done: whether its answer may leave. A good one follows all that its sink is given, also by another
    /// thread, and the end if the sink has said it; any other one follows what the sink has been given until now.
    pub(crate) fn may_answer(&self, is_good: bool) -> bool {
        let Some(tx) = &self.tx else { return true };
        if !is_good {
            tx.end(State::Aborted(0));
        }
        match tx.state() {
            State::Open => false,
            State::Over | State::Stopped(_) | State::TooLarge(_) => true,
            State::Ended | State::Aborted(_) => {
                // Said since the worker looked: it looks again.
                let is_owed = is_good && !self.is_ended && tx.is_told.load(Ordering::Acquire);
                !is_owed && self.leaving.is_empty() && tx.is_empty()
            }
        }
    }

    /// Of a handler that is done: whether its sink was dropped by a panic.
    pub(crate) fn is_aborted(&self) -> bool {
        let by_panic =
            |tx: &Arc<Lane>| matches!(tx.state(), State::Aborted(_)) && !tx.is_told.load(Ordering::Acquire);
        self.tx.as_ref().is_some_and(by_panic)
    }

    /// The peer takes so much more. `false`: it cannot.
    pub(crate) fn credited(&mut self, bytes: u32) -> bool {
        self.credit += i64::from(bytes);
        self.tx.is_some() && self.credit <= u32::MAX.into()
    }

    /// The peer wants no more. `false`: nothing is sent to it.
    pub(crate) fn stopped(&self, code: u32) -> bool {
        let Some(tx) = &self.tx else { return false };
        if !self.is_ended {
            tx.stopped(code);
        }
        true
    }

    /// An item came, or a part of one that `has_more`. `is_short`: the sender's credit is used up, and more wait. `false`: it should
    /// not have come.
    pub(crate) fn arrived(&mut self, item: &[u8], (is_short, has_more): (bool, bool)) -> bool {
        let Some(rx) = self.rx.as_ref().filter(|_| self.granted > 0 && !self.is_read) else { return false };
        let cost = items::cost(item.len(), usize::from(!has_more));
        self.granted -= cost;
        self.is_short |= is_short;
        if has_more || !self.part.is_empty() || self.is_refused {
            return self.part_arrived(item, cost, has_more);
        }
        let mut items = rx.items();
        if rx.is_unread() || items.is_lost() {
            rx.taken.fetch_add(clamp(cost), Ordering::Relaxed);
            return true;
        }
        let is_first = items.is_empty();
        items.push(item);
        drop(items);
        if is_first {
            rouse(&rx.waker);
        }
        true
    }

    /// A part of an item came, or its end. Its sender is told at once that the parts were taken, so that an item may be larger than
    /// the window: while there is none before it that its reader has not taken.
    #[cold]
    fn part_arrived(&mut self, item: &[u8], cost: i64, has_more: bool) -> bool {
        let Some(rx) = &self.rx else { return false };
        if has_more && item.is_empty() {
            return false;
        }
        if self.is_refused {
            return true;
        }
        if self.part.len() + item.len() > self.item_bytes_max {
            rx.refuse(self.item_bytes_max);
            (self.part, self.part_told, self.part_untold) = (Vec::new(), 0, 0);
            self.is_refused = true;
            return true;
        }
        self.part.extend_from_slice(item); // a part of an item
        if has_more {
            self.part_untold += cost;
            self.tell_of_part();
            return true;
        }
        let (part, told) = (std::mem::take(&mut self.part), std::mem::take(&mut self.part_told));
        self.part_untold = 0;
        rx.has_part.store(false, Ordering::Relaxed);
        let mut items = rx.items();
        if rx.is_unread() || items.is_lost() {
            let left = items::cost(part.len(), 1) - told;
            rx.taken.fetch_add(clamp(left), Ordering::Relaxed);
            return true;
        }
        rx.told_ahead.fetch_add(told, Ordering::Relaxed);
        items.push(&part);
        drop(items);
        rouse(&rx.waker);
        true
    }

    /// An item came that the peer has in memory of its own: so many bytes. `is_short` as in [`Lanes::arrived`].
    pub(crate) fn offered(&mut self, bytes: u64, is_short: bool) -> Offered {
        let Some(rx) = self.rx.as_ref().filter(|_| self.granted > 0 && !self.is_read) else {
            return Offered::Wrong("an item of a stream without credit");
        };
        if bytes == 0 || !self.part.is_empty() {
            return Offered::Wrong("bulk of a stream, empty or within an item");
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let cost = items::cost(bytes, 1);
        self.granted = self.granted.saturating_sub(cost);
        self.is_short |= is_short;
        if self.is_refused {
            return Offered::Unwanted;
        }
        if bytes > self.item_bytes_max.max(LOAN_BYTES) {
            rx.refuse(self.item_bytes_max);
            self.is_refused = true;
            return Offered::Unwanted;
        }
        let mut items = rx.items();
        if rx.is_unread() || items.is_lost() {
            rx.taken.fetch_add(clamp(cost), Ordering::Relaxed);
            return Offered::Unwanted;
        }
        self.offers += 1;
        items.push_apart(Apart::Coming(self.offers, bytes));
        drop(items);
        Offered::Wanted(Arc::clone(rx), self.offers)
    }

    /// Counts the parts of an item as taken, if nothing before it waits for the reader.
    fn tell_of_part(&mut self) {
        let Some(rx) = &self.rx else { return };
        // Before the look: a reader that takes the last item after it sees this, and has the worker look again.
        rx.has_part.store(true, Ordering::Release);
        if rx.is_empty() {
            rx.taken.fetch_add(clamp(self.part_untold), Ordering::Relaxed);
            self.part_told += std::mem::take(&mut self.part_untold);
            rx.has_part.store(false, Ordering::Relaxed);
        }
    }

    /// No more will come, and why: the sender finished, or gave up. `false`: that was said before.
    pub(crate) fn ended(&mut self, state: State) -> bool {
        let is_first =
            self.rx.is_some() && self.part.is_empty() && !std::mem::replace(&mut self.is_read, true);
        if let (Some(rx), true) = (&self.rx, is_first) {
            rx.end(state);
        }
        is_first
    }

    /// Of a caller: its call ended, well if there is an answer. Then all that came down is all there was. Its reader is left to be
    /// woken.
    #[must_use = "somebody may wait for it"]
    pub(crate) fn answered(mut self: Box<Self>, is_good: bool) -> Option<Waker> {
        let end = if is_good { State::Ended } else { State::Over };
        let waker = self.rx.as_ref().and_then(|rx| rx.end_unseen(end));
        *self = Self::new(None, None);
        let keep = |boxes: &mut Vec<Box<Self>>| {
            if boxes.len() < BOXES {
                boxes.push(self);
            }
        };
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(|boxes| keep(&mut boxes.borrow_mut()));
        waker
    }

    /// Puts it in the box of a call that has ended, if this thread has one.
    pub(super) fn boxed(self) -> Box<Self> {
        match SPARE.try_with(|boxes| boxes.borrow_mut().pop()) {
            Ok(Some(mut place)) => {
                *place = self;
                place
            }
            _ => Box::new(self),
        }
    }

    /// What ties the call to its streams.
    pub(crate) fn tie(&self) -> Tie {
        Tie { up: self.tx.clone(), down: self.rx.clone() }
    }
}

/// The call is over.
impl Drop for Lanes {
    fn drop(&mut self) {
        if let Some(tx) = &self.tx {
            tx.shut();
            tx.clear();
        }
        if let Some(rx) = &self.rx {
            rx.end(State::Over);
        }
    }
}

/// A caller's call, seen from its streams: when it is dropped, nothing more leaves them, and their worker cancels the call. The
/// cancel needs no place in a queue that may be full, and nothing that is done to a stream afterwards is taken for its end.
#[derive(Debug)]
pub struct Tie {
    up: Option<Arc<Lane>>,
    down: Option<Arc<Lane>>,
}

impl Tie {
    /// Lets the call go on when this is dropped.
    pub fn loosen(&mut self) {
        (self.up, self.down) = (None, None);
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        if let Some(up) = self.up.as_ref().filter(|up| up.shut()) {
            up.notify();
        }
        if let Some(down) = &self.down {
            down.end(State::Over);
            if !down.is_given_up.swap(true, Ordering::AcqRel) {
                down.notify();
            }
        }
    }
}

/// The lanes of a new call.
pub(crate) fn lanes(up: bool, down: bool) -> Lanes {
    Lanes::new(up.then(Lane::new), down.then(Lane::new))
}

/// The lanes of a call whose stream down begins: the other side was let have `window` of it.
pub(crate) fn lanes_begun(budget: &Arc<Budget>, window: u32) -> Lanes {
    let mut lanes = lanes(false, true);
    lanes.window = Some(Window::offered(budget, window));
    lanes.open(budget);
    lanes
}

/// The lanes of a request, whose caller takes so much at first. `spare` is used for the one down, if there is one.
pub(crate) fn lanes_of_callee(
    (up, down): (bool, bool),
    window: u32,
    budget: &Arc<Budget>,
    spare: &mut Option<Arc<Lane>>,
) -> Lanes {
    let down = down.then(|| spare.take().unwrap_or_else(Lane::answered));
    let mut lanes = Lanes::new(down, up.then(Lane::new));
    lanes.credit = window.into();
    // The first credit: as if so much had been taken.
    let first = lanes.open(budget);
    if let Some(up) = &lanes.rx {
        up.taken.store(first, Ordering::Relaxed);
        lanes.granted = 0;
    }
    lanes
}
