//! Lanes: one direction of a call, between its user's end and its worker.
//!
//! ```text
//!            finish ─► Ended    all items, then the end
//!  Open ─┬─► drop ───► Aborted  all items, then word that no good end comes
//!        └─► the call is over, or was dropped ─► Over    nothing more
//! ```
//! An item, the end, the abort and the loss of its call are all one lane's, which its worker looks at in this order. So none of
//! them overtakes another, whatever queue brings the cancel of the call.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence},
    },
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use gimmal_engine::transport::ConnId;

use crate::{draining::Signal, wake::rouse};

/// Items that may be on their way to a reader, or lie before it.
pub const WINDOW: u32 = 32;
/// Items that a sender may be ahead of its worker.
pub(super) const AHEAD: usize = 16;

/// How a lane stands. It leaves `Open` once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Items come.
    Open,
    /// The sender finished, or the download's call ended with an answer: what was sent is all.
    Ended,
    /// The sender gave up.
    Aborted,
    /// The call ended otherwise, or its caller dropped it.
    Over,
}

impl State {
    const fn code(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Ended => 1,
            Self::Aborted => 2,
            Self::Over => 3,
        }
    }

    const fn of(code: u8) -> Self {
        match code {
            0 => Self::Open,
            1 => Self::Ended,
            2 => Self::Aborted,
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

    /// What is set when its server begins to shut down.
    fn draining(&self) -> &Arc<Signal>;
}

#[derive(Debug)]
struct Home {
    mover: Arc<dyn Mover>,
    conn: ConnId,
    owner: Owner,
}

/// One direction of a call, between its user and its worker.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) items: ArrayQueue<Vec<u8>>,
    /// Buffers of items that are done with.
    pub(super) spare: ArrayQueue<Vec<u8>>,
    state: AtomicU8,
    pub(super) waker: AtomicWaker,
    /// Items that the reader took and the sender was not told of.
    pub(super) taken: AtomicU32,
    /// Nobody reads any more.
    is_unread: AtomicBool,
    /// The handler's result says how it ends, so dropping its sink says nothing.
    is_answered: bool,
    /// The worker will look.
    queued: AtomicBool,
    home: OnceLock<Home>,
}

impl Lane {
    fn make(items: usize, is_answered: bool) -> Arc<Self> {
        Arc::new(Self {
            items: ArrayQueue::new(items),
            spare: ArrayQueue::new(items),
            state: AtomicU8::new(State::Open.code()),
            waker: AtomicWaker::new(),
            taken: AtomicU32::new(0),
            is_unread: AtomicBool::new(false),
            is_answered,
            queued: AtomicBool::new(false),
            home: OnceLock::new(),
        })
    }

    /// A lane that holds so many items.
    pub(crate) fn new(items: usize) -> Arc<Self> {
        Self::make(items, false)
    }

    /// What is set when the server of its worker begins to shut down.
    pub(super) fn draining(&self) -> Option<&Arc<Signal>> {
        self.home.get().map(|home| home.mover.draining())
    }

    /// Tells the user's end where its worker is; once.
    fn bind(&self, mover: Arc<dyn Mover>, conn: ConnId, owner: Owner) {
        let _ = self.home.set(Home { mover, conn, owner });
        // SYNC POINT: lane bound. Who pushed before and saw no home is seen by the look that follows.
        fence(Ordering::SeqCst);
    }

    /// Where the worker finds it.
    pub(crate) fn owner(&self) -> Option<(ConnId, Owner)> {
        self.home.get().map(|home| (home.conn, home.owner))
    }

    /// Makes the worker look.
    pub(super) fn notify(self: &Arc<Self>) {
        // SYNC POINT: lane bound. Pairs with `bind`.
        fence(Ordering::SeqCst);
        let Some(home) = self.home.get() else { return };
        // SYNC POINT: lane queued. What was done before is seen by the look after `unqueue`.
        if !self.queued.swap(true, Ordering::AcqRel) {
            home.mover.look_at(Arc::clone(self));
        }
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

    /// Ends it, unless it has ended; whether it had not.
    pub(super) fn end(&self, state: State) -> bool {
        let (open, state) = (State::Open.code(), state.code());
        let first = self.state.compare_exchange(open, state, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if first {
            rouse(&self.waker);
        }
        first
    }

    /// Nothing more leaves it, not even an end that was said; whether that is new.
    fn shut(&self) -> bool {
        let before = self.state.swap(State::Over.code(), Ordering::AcqRel);
        rouse(&self.waker);
        before != State::Over.code()
    }

    /// Its sender is dropped. A caller that did not finish has given up. A handler has not: it says the end by its result, unless it
    /// panics, in which case another thread or task may be the one that returns.
    pub(super) fn sender_dropped(self: &Arc<Self>) {
        let is_fine = self.is_answered && !std::thread::panicking();
        if self.end(if is_fine { State::Ended } else { State::Aborted }) {
            self.notify();
        }
    }

    /// Its sender said that it is done.
    pub(super) fn finished(self: &Arc<Self>) {
        if self.end(State::Ended) {
            self.notify();
        }
    }

    /// The reader is dropped: later items are discarded.
    pub(super) fn reader_dropped(self: &Arc<Self>) {
        self.is_unread.store(true, Ordering::Release);
        if self.state() == State::Open {
            self.notify();
        }
    }
}

/// The worker's ends of a call's lanes.
#[derive(Debug)]
pub struct Lanes {
    /// From us to the peer.
    pub(crate) tx: Option<Arc<Lane>>,
    /// From the peer to us.
    pub(crate) rx: Option<Arc<Lane>>,
    /// Items that we may send.
    credit: u32,
    /// Items that the peer may send.
    granted: u32,
    /// Taken out of its lane, and there was no room for it.
    pending: Option<Vec<u8>>,
    /// The end was said, or need not be.
    is_ended: bool,
}

/// What the worker has to send for a call's lanes.
#[derive(Debug)]
pub(crate) enum Owed {
    Item(Vec<u8>),
    Credit(u32),
    End,
    Abort,
}

impl Lanes {
    /// Of a caller.
    pub(super) fn of_caller(up: Option<Arc<Lane>>, down: Option<Arc<Lane>>) -> Self {
        let granted = if down.is_some() { WINDOW } else { 0 };
        Self { tx: up, rx: down, credit: 0, granted, pending: None, is_ended: false }
    }

    /// Of a callee; `window` is what the caller takes.
    pub(super) fn of_callee(up: Option<Arc<Lane>>, down: Option<Arc<Lane>>, window: u32) -> Self {
        if let Some(up) = &up {
            // The first credit: as if so many had been taken.
            up.taken.store(WINDOW, Ordering::Relaxed);
        }
        // The answer says the end.
        Self { tx: down, rx: up, credit: window, granted: 0, pending: None, is_ended: true }
    }

    /// What the other side may send at first, for the request.
    pub(crate) const fn window(&self) -> u32 {
        self.granted
    }

    fn both(&self) -> impl Iterator<Item = &Arc<Lane>> {
        [&self.tx, &self.rx].into_iter().flatten()
    }

    pub(crate) fn bind<M: Mover + 'static>(&self, mover: &Arc<M>, conn: ConnId, owner: Owner) {
        self.both().for_each(|lane| lane.bind(Arc::<M>::clone(mover), conn, owner));
    }

    /// Whether the caller dropped its call: the only way in which a lane is over while its worker has it.
    pub(crate) fn is_given_up(&self) -> bool {
        self.both().any(|lane| lane.state() == State::Over)
    }

    /// What should be sent next. Credit goes by the half, so that items do not cause as many messages back.
    pub(crate) fn next_owed(&mut self) -> Option<Owed> {
        if let Some(rx) = &self.rx {
            if rx.is_unread.load(Ordering::Acquire) {
                while rx.items.pop().is_some() {
                    rx.taken.fetch_add(1, Ordering::Relaxed);
                }
            }
            let taken = rx.taken.load(Ordering::Relaxed);
            if taken >= WINDOW / 2 {
                rx.taken.fetch_sub(taken, Ordering::Relaxed);
                return Some(Owed::Credit(taken));
            }
        }
        let tx = self.tx.as_ref()?;
        let state = tx.state();
        if state == State::Over {
            return None;
        }
        if self.credit > 0
            && let Some(item) = self.pending.take().or_else(|| tx.items.pop())
        {
            return Some(Owed::Item(item));
        }
        if self.is_ended || self.pending.is_some() || !tx.items.is_empty() {
            return None;
        }
        match state {
            State::Ended => Some(Owed::End),
            State::Aborted => Some(Owed::Abort),
            State::Open | State::Over => None,
        }
    }

    /// It left.
    pub(crate) fn left(&mut self, owed: Owed) {
        match owed {
            Owed::Item(item) => {
                self.credit -= 1;
                if let Some(tx) = &self.tx {
                    let _ = tx.spare.push(item);
                    rouse(&tx.waker);
                }
            }
            Owed::Credit(items) => self.granted += items,
            Owed::End | Owed::Abort => self.is_ended = true,
        }
    }

    /// It found no room.
    pub(crate) fn blocked(&mut self, owed: Owed) {
        match (owed, &self.rx) {
            (Owed::Item(item), _) => self.pending = Some(item),
            (Owed::Credit(items), Some(rx)) => {
                rx.taken.fetch_add(items, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Of a handler that is done: whether its answer may leave. A good one follows all that its sink is given, also by another
    /// thread; any other one follows what the sink has been given until now.
    pub(crate) fn may_answer(&self, is_good: bool) -> bool {
        let Some(tx) = &self.tx else { return true };
        if !is_good {
            tx.end(State::Aborted);
        }
        tx.state() != State::Open && self.pending.is_none() && tx.items.is_empty()
    }

    /// Of a handler that is done: whether its sink was dropped by a panic.
    pub(crate) fn is_aborted(&self) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.state() == State::Aborted)
    }

    /// The peer takes `items` more. `false`: it cannot.
    pub(crate) fn credited(&mut self, items: u32) -> bool {
        self.credit = self.credit.saturating_add(items);
        self.tx.is_some() && self.credit <= 1 << 16
    }

    /// An item came. `false`: it should not have.
    pub(crate) fn arrived(&mut self, item: &[u8]) -> bool {
        let Some(rx) = self.rx.as_ref().filter(|_| self.granted > 0) else { return false };
        self.granted -= 1;
        if rx.is_unread.load(Ordering::Acquire) {
            rx.taken.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let mut buffer = rx.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(item);
        let fits = rx.items.push(buffer).is_ok();
        rouse(&rx.waker);
        fits
    }

    /// No more will come, and why: the sender finished, or gave up. `false`: that was said before.
    pub(crate) fn ended(&mut self, state: State) -> bool {
        self.granted = 0;
        self.rx.as_ref().is_some_and(|rx| rx.end(state))
    }

    /// Of a caller: its call ended, well if there is an answer. Then all that came down is all there was.
    pub(crate) fn answered(self, is_good: bool) {
        if let (Some(rx), true) = (&self.rx, is_good) {
            rx.end(State::Ended);
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

impl Drop for Tie {
    fn drop(&mut self) {
        if let Some(up) = self.up.as_ref().filter(|up| up.shut()) {
            up.notify();
        }
        if let Some(down) = self.down.as_ref().filter(|down| down.end(State::Over)) {
            down.notify();
        }
    }
}

/// The lanes of a new call.
pub(crate) fn lanes(up: bool, down: bool) -> Lanes {
    Lanes::of_caller(up.then(|| Lane::new(AHEAD)), down.then(|| Lane::new(WINDOW as usize)))
}

/// The lanes of a request.
pub(crate) fn lanes_of_callee(up: bool, down: bool, window: u32) -> Lanes {
    Lanes::of_callee(up.then(|| Lane::new(WINDOW as usize)), down.then(|| Lane::make(AHEAD, true)), window)
}
