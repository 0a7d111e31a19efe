//! Streams of a call: items in one direction, with back-pressure from end to end.
//!
//! ```text
//!  Sink ─ encode ─► Lane (16) ─ worker: credit? room? ─► Item ─► worker ─► Lane (32) ─ decode ─► Stream
//!                                     ▲                                                  │ taken
//!                                     └──────────────── Credit, by the half ◄────────────┘
//! ```
//! A reader that does not read stops its sender at [`WINDOW`] items and nobody else: the ring's own credit is given back
//! as soon as an item lies in its lane. Both ends are `Send`; a lane has one user and one worker.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence},
    },
    task::{Context, Poll},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use gimmal_engine::transport::ConnId;
use thiserror::Error;

use crate::{
    cell::block,
    channel::Channel,
    codec::{Decode, DecodeError, Encode, EncodeError, compose_into_with},
    node::Reach,
};

/// Items that may be on their way to a reader, or lie before it.
pub const WINDOW: u32 = 32;
/// Items that a sender may be ahead of its worker.
const AHEAD: usize = 16;
/// Most bytes of an item before it is tried: whether it fits in a message, the worker knows.
const ITEM_BYTES_MAX: usize = 1 << 30;

const OPEN: u8 = 0;
/// The sender is done.
const ENDED: u8 = 1;
/// The call is over.
const OVER: u8 = 2;

/// Whose the lane is on its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The call with this key's bits.
    Caller(u64),
    /// What runs in a slot, by its mark.
    Callee(u32, u64),
}

#[derive(Debug)]
struct Home {
    reach: Arc<Reach>,
    conn: ConnId,
    owner: Owner,
}

/// One direction of a call, between its user and its worker.
#[derive(Debug)]
pub(crate) struct Lane {
    items: ArrayQueue<Vec<u8>>,
    /// Buffers of items that are done with.
    spare: ArrayQueue<Vec<u8>>,
    state: AtomicU8,
    waker: AtomicWaker,
    /// Items that the reader took and the sender was not told of.
    taken: AtomicU32,
    /// Nobody reads any more.
    is_unread: AtomicBool,
    /// The worker will look.
    queued: AtomicBool,
    home: OnceLock<Home>,
}

impl Lane {
    pub(crate) fn new(items: usize) -> Arc<Self> {
        Arc::new(Self {
            items: ArrayQueue::new(items),
            spare: ArrayQueue::new(items),
            state: AtomicU8::new(OPEN),
            waker: AtomicWaker::new(),
            taken: AtomicU32::new(0),
            is_unread: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            home: OnceLock::new(),
        })
    }

    /// Tells the user's end where its worker is; once.
    pub(crate) fn bind(&self, reach: &Arc<Reach>, conn: ConnId, owner: Owner) {
        let _ = self.home.set(Home { reach: Arc::clone(reach), conn, owner });
        // SYNC POINT: lane bound. Who pushed before and saw no home is seen by the look that follows.
        fence(Ordering::SeqCst);
    }

    /// Where the worker finds it.
    pub(crate) fn owner(&self) -> Option<(ConnId, Owner)> {
        self.home.get().map(|home| (home.conn, home.owner))
    }

    /// Makes the worker look.
    fn notify(self: &Arc<Self>) {
        // SYNC POINT: lane bound. Pairs with `bind`.
        fence(Ordering::SeqCst);
        let Some(home) = self.home.get() else { return };
        // SYNC POINT: lane queued. What was done before is seen by the look after `unqueue`.
        if !self.queued.swap(true, Ordering::AcqRel) {
            home.reach.push_lane(Arc::clone(self));
        }
    }

    /// Before the worker looks: notices from now on count again.
    pub(crate) fn unqueue(&self) {
        // SYNC POINT: lane queued. Pairs with `notify`.
        self.queued.swap(false, Ordering::AcqRel);
    }

    /// The call is over: readers come to the end, senders are refused.
    pub(crate) fn close(&self) {
        self.state.store(OVER, Ordering::Release);
        self.waker.wake();
    }

    fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
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
}

impl Lanes {
    /// Of a caller.
    pub(crate) fn of_caller(up: Option<Arc<Lane>>, down: Option<Arc<Lane>>) -> Self {
        let granted = if down.is_some() { WINDOW } else { 0 };
        Self { tx: up, rx: down, credit: 0, granted, pending: None, is_ended: false }
    }

    /// Of a callee; `window` is what the caller takes.
    pub(crate) fn of_callee(up: Option<Arc<Lane>>, down: Option<Arc<Lane>>, window: u32) -> Self {
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

    pub(crate) fn bind(&self, reach: &Arc<Reach>, conn: ConnId, owner: Owner) {
        for lane in [&self.tx, &self.rx].into_iter().flatten() {
            lane.bind(reach, conn, owner);
        }
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
        // Read before the lane is found empty: nothing is pushed after it.
        let is_ended = tx.state.load(Ordering::Acquire) != OPEN;
        if self.credit > 0
            && let Some(item) = self.pending.take().or_else(|| tx.items.pop())
        {
            return Some(Owed::Item(item));
        }
        let is_empty = self.pending.is_none() && tx.items.is_empty();
        (is_ended && is_empty && !self.is_ended).then_some(Owed::End)
    }

    /// It left.
    pub(crate) fn left(&mut self, owed: Owed) {
        match owed {
            Owed::Item(item) => {
                self.credit -= 1;
                if let Some(tx) = &self.tx {
                    let _ = tx.spare.push(item);
                    tx.waker.wake();
                }
            }
            Owed::Credit(items) => self.granted += items,
            Owed::End => self.is_ended = true,
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

    /// Whether everything that was given to be sent has left.
    pub(crate) fn is_drained(&self) -> bool {
        self.pending.is_none() && self.tx.as_ref().is_none_or(|tx| tx.items.is_empty())
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
        rx.waker.wake();
        fits
    }

    /// No more will come. `false`: that was said before.
    pub(crate) fn ended(&mut self) -> bool {
        self.granted = 0;
        let Some(rx) = &self.rx else { return false };
        let first = rx.state.compare_exchange(OPEN, ENDED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        rx.waker.wake();
        first
    }
}

/// The call is over.
impl Drop for Lanes {
    fn drop(&mut self) {
        for lane in [&self.tx, &self.rx].into_iter().flatten() {
            lane.close();
        }
    }
}

/// Whose turns move a stream's end.
pub trait Drive {
    /// One turn, if it is this thread's.
    fn turn(&self) -> bool {
        false
    }

    /// The same, sleeping for a while when there is nothing to do.
    fn idle(&self) -> bool {
        false
    }
}

/// The ends in a handler: its worker wakes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Woken;

impl Drive for Woken {}

impl<C: Channel> Drive for C {
    fn turn(&self) -> bool {
        self.drive(false)
    }

    fn idle(&self) -> bool {
        self.drive(true)
    }
}

/// An item was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The call is over; its result says why.
    #[error("the call is over; its result says why")]
    Over,
    /// The item cannot be written.
    #[error("the item: {0}")]
    Encode(EncodeError),
}

/// Where the items of a stream come out: an argument of a handler, or a part of what a client's method gives.
pub struct Stream<T, V = Woken> {
    lane: Arc<Lane>,
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    drive: V,
}

impl<T, V> fmt::Debug for Stream<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} items here)", self.lane.items.len())
    }
}

impl<T, V: Drive> Stream<T, V> {
    pub(crate) fn new<D: for<'a> Decode<'a, T>>(lane: Arc<Lane>, drive: V) -> Self {
        Self { lane, decode: |bytes| D::decode(bytes), drive }
    }

    fn take(&self) -> Poll<Option<Result<T, DecodeError>>> {
        // Read before the lane is found empty: nothing is pushed after it.
        let is_open = self.lane.is_open();
        let Some(item) = self.lane.items.pop() else {
            return if is_open { Poll::Pending } else { Poll::Ready(None) };
        };
        let value = (self.decode)(&item);
        let _ = self.lane.spare.push(item);
        if self.lane.taken.fetch_add(1, Ordering::Relaxed) + 1 >= WINDOW / 2 {
            self.lane.notify();
        }
        Poll::Ready(Some(value))
    }

    /// The next item; `None` at the end. On an inline channel each poll is a turn.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Result<T, DecodeError>>> {
        if let Poll::Ready(item) = self.take() {
            return Poll::Ready(item);
        }
        if self.drive.turn() {
            context.waker().wake_by_ref();
        } else {
            self.lane.waker.register(context.waker());
        }
        self.take()
    }

    /// The next item if it is here, without waiting; `Ready(None)` at the end.
    pub fn try_next(&mut self) -> Poll<Option<Result<T, DecodeError>>> {
        self.take()
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// [`DecodeError`] for bytes that are no such item; the next ones may be.
    pub async fn next(&mut self) -> Option<Result<T, DecodeError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The same, blocking.
    ///
    /// # Errors
    /// As [`Stream::next`].
    pub fn next_wait(&mut self) -> Option<Result<T, DecodeError>> {
        loop {
            if let Poll::Ready(item) = self.take() {
                return item;
            }
            if !self.drive.idle() {
                return block(|context| self.poll_next(context));
            }
        }
    }
}

impl<T, V> Drop for Stream<T, V> {
    fn drop(&mut self) {
        self.lane.is_unread.store(true, Ordering::Release);
        self.lane.notify();
    }
}

/// Where the items of a stream go in: an argument of a handler, or a part of what a client's method gives. Dropping a
/// client's says that no more come.
pub struct Sink<T, V = Woken> {
    lane: Arc<Lane>,
    encoder: Encoder<T>,
    drive: V,
}

/// How the items of a stream are written.
pub(crate) struct Encoder<T> {
    /// The codec's name.
    pub(crate) codec: &'static str,
    encode: fn(&T, &mut [u8]) -> Result<usize, EncodeError>,
}

impl<T> Clone for Encoder<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Encoder<T> {}

impl<T> Encoder<T> {
    /// Writes `item` over what is in `buffer`.
    pub(crate) fn encode_into(&self, item: &T, buffer: &mut Vec<u8>) -> Result<(), EncodeError> {
        compose_into_with(buffer, ITEM_BYTES_MAX, |out| (self.encode)(item, out))
    }
}

impl<T, V> fmt::Debug for Sink<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({} items here)", self.lane.items.len())
    }
}

impl<T, V: Drive> Sink<T, V> {
    pub(crate) fn new<E: Encode<T>>(lane: Arc<Lane>, drive: V) -> Self {
        let encoder = Encoder { codec: E::NAME, encode: |value, out| E::encode(value, out) };
        Self { lane, encoder, drive }
    }

    fn encode(&self, item: &T) -> Result<Vec<u8>, StreamError> {
        let mut buffer = self.lane.spare.pop().unwrap_or_default();
        self.encoder.encode_into(item, &mut buffer).map_err(StreamError::Encode)?;
        Ok(buffer)
    }

    /// How its items are written.
    pub(crate) fn encoder(&self) -> Encoder<T> {
        self.encoder
    }

    /// As [`Sink::send`], of an item that its encoder wrote.
    pub(crate) async fn send_encoded(&self, item: &[u8]) -> Result<(), StreamError> {
        let mut buffer = self.lane.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(item);
        let mut buffer = Some(buffer);
        std::future::poll_fn(|context| self.poll_put(context, &mut buffer)).await
    }

    fn put(&self, item: &mut Option<Vec<u8>>) -> Poll<Result<(), StreamError>> {
        if !self.lane.is_open() {
            return Poll::Ready(Err(StreamError::Over));
        }
        let Some(bytes) = item.take() else { return Poll::Ready(Ok(())) };
        match self.lane.items.push(bytes) {
            Ok(()) => {
                self.lane.notify();
                Poll::Ready(Ok(()))
            }
            Err(bytes) => {
                *item = Some(bytes);
                Poll::Pending
            }
        }
    }

    fn poll_put(&self, context: &Context<'_>, item: &mut Option<Vec<u8>>) -> Poll<Result<(), StreamError>> {
        if let Poll::Ready(put) = self.put(item) {
            return Poll::Ready(put);
        }
        if self.drive.turn() {
            context.waker().wake_by_ref();
        } else {
            self.lane.waker.register(context.waker());
        }
        self.put(item)
    }

    /// Sends an item if there is room for it, without waiting; whether there was.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn try_send(&mut self, item: &T) -> Result<bool, StreamError> {
        if self.lane.is_open() && self.lane.items.is_full() {
            return Ok(false);
        }
        let mut bytes = Some(self.encode(item)?);
        match self.put(&mut bytes) {
            Poll::Ready(put) => put.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Sends an item; waits while the reader is behind.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub async fn send(&mut self, item: &T) -> Result<(), StreamError> {
        let mut bytes = Some(self.encode(item)?);
        std::future::poll_fn(|context| self.poll_put(context, &mut bytes)).await
    }

    /// The same, blocking.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn send_wait(&mut self, item: &T) -> Result<(), StreamError> {
        let mut bytes = Some(self.encode(item)?);
        loop {
            if let Poll::Ready(put) = self.put(&mut bytes) {
                return put;
            }
            if !self.drive.idle() {
                return block(|context| self.poll_put(context, &mut bytes));
            }
        }
    }
}

impl<T, V> Drop for Sink<T, V> {
    fn drop(&mut self) {
        let _ = self.lane.state.compare_exchange(OPEN, ENDED, Ordering::AcqRel, Ordering::Relaxed);
        self.lane.notify();
    }
}

/// The lanes of a new call, and its user's ends.
pub(crate) fn lanes(up: bool, down: bool) -> Lanes {
    Lanes::of_caller(up.then(|| Lane::new(AHEAD)), down.then(|| Lane::new(WINDOW as usize)))
}

/// The same for a request.
pub(crate) fn lanes_of_callee(up: bool, down: bool, window: u32) -> Lanes {
    Lanes::of_callee(up.then(|| Lane::new(WINDOW as usize)), down.then(|| Lane::new(AHEAD)), window)
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Stream<u8>>();
    is_send::<Sink<u8>>();
};

#[cfg(test)]
mod tests;
