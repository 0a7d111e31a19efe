//! Publish and subscribe: what is published goes to every stream that is fed, each at its own reader's pace.
//!
//! ```text
//!  publish ─ encode once ─┬─► kept (n) ─ feed ─► Sink ─► a subscriber
//!                         ├─► kept (n) ─ feed ─► Sink ─► another
//!                         └─► …                         one that is behind: see `Behind`
//! ```
//! A [`Topic`] lives in a server. A method with a [`Sink`] argument subscribes its caller by feeding the sink from it;
//! the subscription ends with the call, at either side. Items are copied once for each subscriber, into its ring.

use std::{
    fmt,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    task::{Context, Poll, Waker},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;

use crate::{
    cell::block,
    codec::EncodeError,
    draining::Signal,
    here,
    stream::{Encoder, Sink},
    wake::{self, rouse},
};

/// What a [`Topic`] does with an item for a subscriber that has not read what is kept for it.
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

/// Where items are published and subscribers are fed, in one process. Clones are the same topic.
///
/// ```
/// use gimmal_rpc::topic::{Behind, Topic};
///
/// // A handler that got a `Sink<String>` feeds it: `topic.feed(items).await`.
/// let topic: Topic<String> = Topic::new(16, Behind::DropOldest);
/// topic.blocking_publish(&"rain".to_owned())?; // `publish(..).await` in async code
/// assert_eq!(topic.subscribers(), 0);
/// topic.close(); // ends every subscription
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Topic<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<T> {
    hall: Mutex<Hall<T>>,
    /// Items kept for each subscriber.
    kept: usize,
    behind: Behind,
    /// Whether publishers wait for room.
    is_waited_for: AtomicBool,
}

/// The subscribers. An item is given to all of them in one step, with this locked: so all get items in the same order, and nobody gets
/// one whose publisher gave up. Wakers run, and are dropped, when it is not: they are the user's code.
struct Hall<T> {
    seats: Arc<Vec<Arc<Seat<T>>>>,
    is_closed: bool,
    /// Publishers that wait for room, by their number.
    waiting: Vec<(u64, Waker)>,
    publishers: u64,
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
    /// Nothing is given to it any more; its feed is still to be woken.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

fn wake<T>(seats: &[Arc<Seat<T>>]) {
    seats.iter().for_each(|seat| rouse(&seat.waker));
}

/// What a subscriber got, as [`Topic::feed`] returns it.
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

/// Where an item went, as [`Topic::publish`] returns it.
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
    /// A topic that keeps at most `kept` items (1 or more) for each subscriber, beside what its stream's window holds. All subscribers
    /// share one encoded copy of an item. Items of several publishers come to all of them in the same order.
    #[must_use]
    pub fn new(kept: usize, behind: Behind) -> Self {
        let hall = Hall { seats: Arc::default(), is_closed: false, waiting: Vec::new(), publishers: 0 };
        let (hall, is_waited_for) = (Mutex::new(hall), AtomicBool::new(false));
        let shared = Shared { hall, kept: kept.max(1), behind, is_waited_for };
        Self { shared: Arc::new(shared) }
    }

    /// Returns how many sinks are subscribed at present.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.shared.hall().seats.len()
    }

    /// Ends every subscription after what is kept for it; what is published from now on goes nowhere.
    pub fn close(&self) {
        let mut hall = self.shared.hall();
        hall.is_closed = true;
        let seats = Arc::clone(&hall.seats);
        seats.iter().for_each(|seat| seat.end());
        drop(hall);
        wake(&seats);
        self.shared.room();
    }

    /// Subscribes `sink` from now on, and feeds it until its reader leaves, is cut off, the topic is closed, or the server begins
    /// to shut down.
    ///
    /// Dropping the future ends the subscription, and with it what was kept. Polled by reference it is cancel safe: no item is lost or
    /// sent twice.
    pub async fn feed(&self, mut sink: Sink<T>) -> Fed {
        let mut sent = 0;
        let seat = self.shared.sit(sink.encoder());
        let draining = sink.draining().cloned();
        let mut draining = draining.as_ref().map(Signal::wait);
        let mut next = |context: &mut Context<'_>| {
            if draining.as_mut().is_some_and(|draining| Pin::new(draining).poll(context).is_ready()) {
                seat.seat.end();
            }
            seat.poll_next(context)
        };
        while let Some(item) = std::future::poll_fn(&mut next).await {
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

    /// Publishes `item` to all subscribers in one step. With [`Behind::Wait`] it first waits until each of them has room.
    ///
    /// Cancel safe: when the future is dropped before it is ready, no subscriber gets the item.
    ///
    /// # Errors
    /// [`EncodeError::Value`] when the codec of a subscriber cannot write it; then nobody gets it.
    pub async fn publish(&self, item: &T) -> Result<Published, EncodeError> {
        let mut going = Going { topic: &self.shared, item, written: Vec::new(), number: None };
        std::future::poll_fn(|context| going.poll(context.waker())).await
    }

    /// Publishes `item` to all subscribers in one step. With [`Behind::Wait`] it blocks the thread until each of them has room;
    /// otherwise it does not block.
    ///
    /// # Errors
    /// [`EncodeError::Value`] when the codec of a subscriber cannot write it, [`EncodeError::OwnWorker`] where it would block a
    /// worker's thread. Nobody gets the item then.
    pub fn blocking_publish(&self, item: &T) -> Result<Published, EncodeError> {
        let mut publish = pin!(self.publish(item));
        if here::is_worker() {
            let polled = publish.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            return match polled {
                Poll::Ready(published) => published,
                Poll::Pending => Err(EncodeError::OwnWorker),
            };
        }
        block(|context| publish.as_mut().poll(&mut Context::from_waker(context.waker())))
    }
}

impl<T> Shared<T> {
    fn hall(&self) -> MutexGuard<'_, Hall<T>> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sit(&self, encoder: Encoder<T>) -> Seated<'_, T> {
        let seat = Arc::new(Seat {
            items: ArrayQueue::new(self.kept),
            encoder,
            waker: AtomicWaker::new(),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
        });
        let mut hall = self.hall();
        Arc::make_mut(&mut hall.seats).push(Arc::clone(&seat));
        if hall.is_closed {
            seat.end();
        }
        drop(hall);
        Seated { topic: self, seat }
    }

    /// A subscriber has room again, or left.
    fn room(&self) {
        // SYNC POINT: topic room. Pairs with `wait_for_room`: the publisher sees the room, or we see that it waits.
        fence(Ordering::SeqCst);
        if self.is_waited_for.swap(false, Ordering::AcqRel) {
            let wakers = std::mem::take(&mut self.hall().waiting);
            wakers.into_iter().for_each(|(_, waker)| wake::wake(waker));
        }
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
        let mut hall = self.topic.hall();
        self.seat.end();
        Arc::make_mut(&mut hall.seats).retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        drop(hall);
        self.topic.room();
    }
}

/// An item as each codec writes it, by the codec's name: nearly always there is one.
type Written = Vec<(&'static str, Arc<[u8]>)>;

/// What became of an item that was to be given.
enum Gave<T> {
    /// All subscribers have it.
    All(Published),
    /// One of them has no room, so none has it.
    NoRoom,
    /// One of them needs it written like this first.
    Unwritten(Encoder<T>),
}

impl<T> Hall<T> {
    /// Gives an item to every subscriber, or to none.
    fn give(&self, written: &Written, behind: Behind) -> Gave<T> {
        let find = |seat: &Seat<T>| written.iter().find(|(codec, _)| *codec == seat.encoder.codec);
        let open = || self.seats.iter().filter(|seat| !seat.is_over.load(Ordering::Acquire));
        if let Some(seat) = open().find(|seat| find(seat).is_none()) {
            return Gave::Unwritten(seat.encoder);
        }
        // Only this fills a seat, so what has room now has it below.
        if behind == Behind::Wait && open().any(|seat| seat.items.is_full()) {
            return Gave::NoRoom;
        }
        let mut published = Published::default();
        for seat in open() {
            let Some((_, bytes)) = find(seat) else { continue };
            let bytes = Arc::clone(bytes);
            if behind == Behind::DropOldest {
                if seat.items.force_push(bytes).is_some() {
                    seat.lost.fetch_add(1, Ordering::Relaxed);
                    published.lost += 1;
                }
            } else if seat.items.push(bytes).is_err() {
                published.cut += 1;
                seat.is_cut.store(true, Ordering::Release);
                seat.end();
                continue;
            }
            published.subscribers += 1;
        }
        Gave::All(published)
    }

    /// The number of one more publisher that waits.
    fn number(&mut self) -> u64 {
        self.publishers += 1;
        self.publishers
    }

    /// Keeps the waker of the publisher of this number until there is room, and gives back the one before.
    fn wait(&mut self, number: u64, waker: Option<Waker>) -> Option<Waker> {
        let at = self.waiting.iter().position(|(other, _)| *other == number);
        let before = at.map(|at| self.waiting.swap_remove(at).1);
        self.waiting.extend(waker.map(|waker| (number, waker)));
        before
    }
}

/// An item that is to be given.
struct Going<'a, T> {
    topic: &'a Shared<T>,
    item: &'a T,
    written: Written,
    /// As which it waited for room.
    number: Option<u64>,
}

impl<T> Going<'_, T> {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<Published, EncodeError>> {
        loop {
            let mut hall = self.topic.hall();
            let seats = Arc::clone(&hall.seats);
            let mut gave = hall.give(&self.written, self.topic.behind);
            let mut before = None;
            if let Gave::NoRoom = gave {
                let number = *self.number.get_or_insert_with(|| hall.number());
                before = hall.wait(number, Some(waker.clone()));
                self.topic.is_waited_for.store(true, Ordering::Release);
                // SYNC POINT: topic room. Pairs with `room`.
                fence(Ordering::SeqCst);
                gave = hall.give(&self.written, self.topic.behind);
            }
            drop(hall);
            drop(before);
            match gave {
                Gave::All(published) => {
                    wake(&seats);
                    return Poll::Ready(Ok(published));
                }
                Gave::NoRoom => return Poll::Pending,
                // Not with the list locked: how an item is written is the user's code.
                Gave::Unwritten(encoder) => {
                    let mut buffer = Vec::new();
                    encoder.encode_into(self.item, &mut buffer)?;
                    self.written.push((encoder.codec, Arc::from(buffer)));
                }
            }
        }
    }
}

/// A publisher that is done, or gave up, is not woken, and its task not kept.
impl<T> Drop for Going<'_, T> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.topic.hall().wait(number, None);
            drop(waker);
        }
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
        stream::{Budget, Owed, Woken, lanes_of_callee},
    };

    #[test]
    fn each_subscriber_gets_its_own_codec() {
        let topic = Topic::<String>::new(1, Behind::Wait);
        let budget = Budget::new(1 << 16, 1 << 20, 0);
        let mut lanes = [0; 2].map(|_| lanes_of_callee((false, true), 1000, &budget, &mut None));
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
        assert_eq!(topic.blocking_publish(&"hi".to_owned()).unwrap().subscribers, 2);
        assert_eq!(turn(), 0);
        let sent = lanes.each_mut().map(|lanes| match lanes.next_owed(usize::MAX) {
            Some(Owed::Item { .. }) => lanes.item().to_vec(),
            other => panic!("{other:?}"),
        });
        assert_eq!(sent, [b"hi".to_vec(), b"\x02hi".to_vec()]);
        topic.close();
        assert_eq!(turn(), 2);
    }
}
