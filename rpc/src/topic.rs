//! Publish and subscribe: what is published goes to every stream that is fed, each at its own reader's pace.
//!
//! ```text
//!  publish ─ encode once ─┬─► kept (n) ─ feed ─► Sink ─► a subscriber
//!                         ├─► kept (n) ─ feed ─► Sink ─► another
//!                         └─► …                         one that is behind: see `Behind`
//! ```
//! A [`Topic`] lives in a server. A method with a [`Sink`] argument subscribes its caller by feeding the sink from it;
//! the subscription ends with the call, whoever ends it. Items are copied once for each subscriber, into its ring.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    task::{Context, Poll, Waker},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;

use crate::{
    cell::block,
    codec::EncodeError,
    stream::{Encoder, Sink},
};

/// What happens when a subscriber has not read what is kept for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Behind {
    /// The publisher waits: the slowest subscriber sets the pace, nothing is lost.
    #[default]
    Wait,
    /// The subscriber loses the oldest item that is kept for it; counted in [`Fed::lost`]. Nobody waits.
    DropOldest,
    /// The subscriber is cut off: it gets what is kept for it, then [`Fed::is_cut`] is true. Nobody waits.
    Cut,
}

/// Where items are published and subscribers are fed. Clones are the same topic.
pub struct Topic<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<T> {
    seats: RwLock<Vec<Arc<Seat<T>>>>,
    /// Items kept for each subscriber.
    kept: usize,
    behind: Behind,
    is_closed: AtomicBool,
    /// Publishers that wait for room.
    waiting: Mutex<Vec<Waker>>,
    is_waited_for: AtomicBool,
}

/// One subscriber.
struct Seat<T> {
    items: ArrayQueue<Arc<[u8]>>,
    encoder: Encoder<T>,
    waker: AtomicWaker,
    lost: AtomicU64,
    /// No more is kept for it.
    is_over: AtomicBool,
    is_cut: AtomicBool,
}

impl<T> Seat<T> {
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What a subscriber got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Fed {
    /// Items that were handed to its stream.
    pub sent: u64,
    /// Items that it lost by [`Behind::DropOldest`].
    pub lost: u64,
    /// Whether it was too slow for [`Behind::Cut`].
    pub is_cut: bool,
}

/// Where an item went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Published {
    /// Subscribers for which it is kept now.
    pub subscribers: usize,
    /// How many of them lost an older one for it.
    pub lost: usize,
    /// Subscribers that were cut off instead.
    pub cut: usize,
}

impl<T> Topic<T> {
    /// A topic that keeps at most `kept` items (1 or more) for each subscriber, beside what its stream's window holds.
    #[must_use]
    pub fn new(kept: usize, behind: Behind) -> Self {
        let shared = Shared {
            seats: RwLock::default(),
            kept: kept.max(1),
            behind,
            is_closed: AtomicBool::new(false),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// How many are subscribed.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.shared.seats.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Ends every subscription after what is kept for it; what is published from now on goes nowhere.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        for seat in self.shared.seats.read().unwrap_or_else(PoisonError::into_inner).iter() {
            seat.end();
        }
        self.shared.room();
    }

    /// Subscribes `sink` from now on, and feeds it until its reader leaves, is cut off, or the topic is closed.
    /// Dropping the future ends the subscription too.
    pub async fn feed(&self, sink: Sink<T>) -> Fed {
        let mut sent = 0;
        let seat = self.shared.sit(sink.encoder());
        while let Some(item) = std::future::poll_fn(|context| seat.poll_next(context)).await {
            if sink.send_encoded(&item).await.is_err() {
                break;
            }
            sent += 1;
        }
        Fed {
            sent,
            lost: seat.seat.lost.load(Ordering::Relaxed),
            is_cut: seat.seat.is_cut.load(Ordering::Acquire),
        }
    }

    /// Publishes `item` to those that are subscribed now. With [`Behind::Wait`] it waits until each has room.
    ///
    /// # Errors
    /// [`EncodeError`] when it cannot be written; then nobody gets it.
    pub async fn publish(&self, item: &T) -> Result<Published, EncodeError> {
        let mut going = Going::new(&self.shared, item)?;
        std::future::poll_fn(|context| going.poll(&self.shared, context)).await;
        Ok(going.published)
    }

    /// The same, blocking the thread.
    ///
    /// # Errors
    /// As [`Topic::publish`].
    pub fn publish_wait(&self, item: &T) -> Result<Published, EncodeError> {
        let mut publish = pin!(self.publish(item));
        block(|context| publish.as_mut().poll(&mut Context::from_waker(context.waker())))
    }
}

impl<T> Shared<T> {
    fn sit(&self, encoder: Encoder<T>) -> Seated<'_, T> {
        let seat = Arc::new(Seat {
            items: ArrayQueue::new(self.kept),
            encoder,
            waker: AtomicWaker::new(),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
        });
        let mut seats = self.seats.write().unwrap_or_else(PoisonError::into_inner);
        seats.push(Arc::clone(&seat));
        // Read with the list locked: who closes after this finds the seat in it.
        if self.is_closed.load(Ordering::Acquire) {
            seat.end();
        }
        Seated { topic: self, seat }
    }

    /// A subscriber has room again, or left.
    fn room(&self) {
        // SYNC POINT: topic room. Pairs with `wait_for_room`: the publisher sees the room, or we see that it waits.
        fence(Ordering::SeqCst);
        if self.is_waited_for.swap(false, Ordering::AcqRel) {
            let wakers = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// After this a publisher looks once more.
    fn wait_for_room(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.is_waited_for.store(true, Ordering::Release);
        drop(waiting);
        // SYNC POINT: topic room. Pairs with `room`.
        fence(Ordering::SeqCst);
    }
}

/// A subscriber while it is fed.
struct Seated<'a, T> {
    topic: &'a Shared<T>,
    seat: Arc<Seat<T>>,
}

impl<T> Seated<'_, T> {
    fn poll_next(&self, context: &Context<'_>) -> Poll<Option<Arc<[u8]>>> {
        for is_last in [false, true] {
            // Read before nothing is found: nothing is kept after it.
            let is_over = self.seat.is_over.load(Ordering::Acquire);
            if let Some(item) = self.seat.items.pop() {
                self.topic.room();
                return Poll::Ready(Some(item));
            }
            if is_over {
                return Poll::Ready(None);
            }
            if !is_last {
                self.seat.waker.register(context.waker());
            }
        }
        Poll::Pending
    }
}

impl<T> Drop for Seated<'_, T> {
    fn drop(&mut self) {
        self.seat.end();
        let mut seats = self.topic.seats.write().unwrap_or_else(PoisonError::into_inner);
        seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        drop(seats);
        self.topic.room();
    }
}

/// Whom an item is for, and as their codec writes it.
type Parcel<T> = (Arc<Seat<T>>, Arc<[u8]>);

/// An item on its way to those that were subscribed when it was published.
struct Going<T> {
    left: Vec<Parcel<T>>,
    published: Published,
}

impl<T> Going<T> {
    fn new(topic: &Shared<T>, item: &T) -> Result<Self, EncodeError> {
        let seats = topic.seats.read().unwrap_or_else(PoisonError::into_inner).clone();
        // One of each codec; nearly always there is only one.
        let mut written: Vec<(&str, Arc<[u8]>)> = Vec::with_capacity(1);
        let mut left = Vec::with_capacity(seats.len());
        for seat in seats {
            let codec = seat.encoder.codec;
            let bytes = match written.iter().find(|(name, _)| *name == codec) {
                Some((_, bytes)) => Arc::clone(bytes),
                None => {
                    let mut buffer = Vec::new();
                    seat.encoder.encode_into(item, &mut buffer)?;
                    let bytes = Arc::from(buffer);
                    written.push((codec, Arc::clone(&bytes)));
                    bytes
                }
            };
            left.push((seat, bytes));
        }
        Ok(Self { left, published: Published::default() })
    }

    fn poll(&mut self, topic: &Shared<T>, context: &Context<'_>) -> Poll<()> {
        self.give(topic.behind);
        if !self.left.is_empty() {
            topic.wait_for_room(context.waker());
            self.give(topic.behind);
        }
        if self.left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Gives it to those that have room, and treats the others as `behind` says.
    fn give(&mut self, behind: Behind) {
        let published = &mut self.published;
        self.left.retain_mut(|(seat, bytes)| {
            if seat.is_over.load(Ordering::Acquire) {
                return false;
            }
            let bytes = Arc::clone(bytes);
            let (is_kept, is_left) = match behind {
                Behind::Wait => {
                    let fits = seat.items.push(bytes).is_ok();
                    (fits, !fits)
                }
                Behind::DropOldest => {
                    if seat.items.force_push(bytes).is_some() {
                        seat.lost.fetch_add(1, Ordering::Relaxed);
                        published.lost += 1;
                    }
                    (true, false)
                }
                Behind::Cut => (seat.items.push(bytes).is_ok(), false),
            };
            if is_kept {
                published.subscribers += 1;
                seat.waker.wake();
            } else if behind == Behind::Cut {
                published.cut += 1;
                seat.is_cut.store(true, Ordering::Release);
                seat.end();
            }
            is_left
        });
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topic({} subscribers, {:?})", self.subscribers(), self.shared.behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::{Postcard, Raw},
        stream::{Owed, Woken, lanes_of_callee},
    };

    #[test]
    fn each_subscriber_gets_its_own_codec() {
        let topic = Topic::<String>::new(1, Behind::Wait);
        let mut lanes = [lanes_of_callee(false, true, 8), lanes_of_callee(false, true, 8)];
        let [plain, packed] = lanes.each_ref().map(|lanes| lanes.tx.clone().unwrap());
        let mut feeds = [
            Box::pin(topic.feed(Sink::new::<Raw>(plain, Woken))),
            Box::pin(topic.feed(Sink::new::<Postcard>(packed, Woken))),
        ];
        let mut context = Context::from_waker(Waker::noop());
        let mut turn = || {
            feeds
                .iter_mut()
                .map(|feed| feed.as_mut().poll(&mut context).is_ready())
                .filter(|ended| *ended)
                .count()
        };
        assert_eq!(turn(), 0);
        assert_eq!(topic.publish_wait(&"hi".to_owned()).unwrap().subscribers, 2);
        assert_eq!(turn(), 0);
        let sent = lanes.each_mut().map(|lanes| match lanes.next_owed() {
            Some(Owed::Item(item)) => item,
            other => panic!("{other:?}"),
        });
        assert_eq!(sent, [b"hi".to_vec(), b"\x02hi".to_vec()]);
        topic.close();
        assert_eq!(turn(), 2);
    }
}
