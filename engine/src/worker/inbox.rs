//! Commands from other threads: a bounded queue that never blocks, and a doorbell that is free while we are awake.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
        mpsc,
    },
    time::Duration,
};

use crossbeam::queue::ArrayQueue;
use gimmal_transport::{ConnId, Negotiated, PortCounters, Waker};

use crate::{error::OpenError, slots::Slot};

/// How often a command is offered to a full inbox with a yield between; then it is offered after each pause.
const YIELDS: u32 = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// How long a connection is offered.
const ADOPTION: Duration = Duration::from_millis(50);

/// What another thread may ask of a worker.
#[derive(Debug)]
pub(crate) enum Command<L, C> {
    App(C),
    Adopt(L, Adopted),
    Close(ConnId),
    Counters(ConnId, mpsc::SyncSender<PortCounters>),
}

/// The outcome of an adoption.
pub(crate) type Opened = Result<(ConnId, Arc<Negotiated>), OpenError>;

/// Receives the result of an adoption; none on the passive side. Once per connection, so a channel is cheap enough.
#[derive(Debug)]
pub(crate) struct Adopted {
    waits: Option<mpsc::SyncSender<Opened>>,
    /// Of an accepted connection: freed when its handshake is over.
    slot: Option<Slot>,
    /// Of an accepted connection: counts it until it ends.
    count: Option<Arc<()>>,
}

impl Adopted {
    pub(crate) const fn nobody() -> Self {
        Self { waits: None, slot: None, count: None }
    }

    pub(crate) fn channel() -> (Self, mpsc::Receiver<Opened>) {
        let (sender, receiver) = mpsc::sync_channel(1);
        (Self { waits: Some(sender), slot: None, count: None }, receiver)
    }

    /// A connection that was accepted, and is counted.
    pub(crate) const fn accepted(slot: Slot, count: Arc<()>) -> Self {
        Self { waits: None, slot: Some(slot), count: Some(count) }
    }

    pub(crate) const fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    /// What counts the connection, which has it from now on.
    pub(crate) const fn take_count(&mut self) -> Option<Arc<()>> {
        self.count.take()
    }

    /// Returns `false` when the caller that connects has stopped waiting.
    pub(crate) fn tell(self, outcome: Opened) -> bool {
        self.waits.is_none_or(|sender| sender.try_send(outcome).is_ok())
    }
}

/// Many producers, one worker. It closes with its worker, for ever.
#[derive(Debug)]
pub(crate) struct Inbox<L, C> {
    queue: ArrayQueue<Command<L, C>>,
    /// The application wants a turn, which needs no place in the queue.
    is_rung: AtomicBool,
    /// Connections that were handed over, and that the worker has not taken: many only while it is busy or blocked.
    untaken: AtomicUsize,
    waker: Waker,
    closed: AtomicBool,
    /// What becomes of the application's commands that no worker will take: [`App::refused`](crate::App::refused).
    refuse: fn(C),
}

impl<L, C> Inbox<L, C> {
    pub(crate) fn new(capacity: usize, waker: Waker, refuse: fn(C)) -> Self {
        let (is_rung, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let untaken = AtomicUsize::new(0);
        Self { queue: ArrayQueue::new(capacity), is_rung, untaken, waker, closed, refuse }
    }

    /// Gives the command back when the inbox is full. A closed inbox refuses it, as [`Inbox::close`] does.
    pub(crate) fn push(&self, command: Command<L, C>) -> Result<(), Command<L, C>> {
        self.queue.push(command)?;
        self.waker.ring();
        // SYNC POINT: inbox closed. `ring` begins with a full fence: either this sees the flag, or `close` sees the command.
        if self.is_closed() {
            self.refuse_all();
        }
        Ok(())
    }

    /// Has the worker take a turn, however full the inbox is. `false`: the worker is gone.
    pub(crate) fn ring(&self) -> bool {
        // SYNC POINT: inbox rung. What was done before is seen by the turn behind `unring`, or by whoever finds it closed.
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            self.waker.ring();
        }
        !self.is_closed()
    }

    /// The worker is armed and sleeps as this task: what is pushed from now on wakes it.
    pub(crate) fn wakes(&self, task: &std::task::Waker) {
        self.waker.arm_task(task);
    }

    /// A turn begins, which looks at what was rung for. Whether anything was.
    #[inline]
    pub(crate) fn unring(&self) -> bool {
        // SYNC POINT: inbox rung. Pairs with `ring`.
        self.is_rung.load(Ordering::Relaxed) && self.is_rung.swap(false, Ordering::AcqRel)
    }

    /// The worker is gone: what it did not take, and what is pushed from now on, is refused.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // SYNC POINT: inbox closed. Pairs with the fence of `push`.
        fence(Ordering::SeqCst);
        // SYNC POINT: inbox rung. Pairs with `ring`: it finds the inbox closed, or what it rang for is seen behind this.
        self.is_rung.swap(true, Ordering::AcqRel);
        self.refuse_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    #[cold]
    fn refuse_all(&self) {
        while let Some(command) = self.queue.pop() {
            // The others tell by being dropped: a link closes, and whoever waits for an answer finds nobody.
            if let Command::App(command) = command {
                (self.refuse)(command);
            }
        }
    }

    /// Pushes a command. While the inbox is full it is offered again: 64 times with a yield between, then every
    /// millisecond for `patience`. Gives the command back when all offers were refused.
    pub(crate) fn offer(&self, mut command: Command<L, C>, patience: Duration) -> Result<(), Command<L, C>> {
        let (mut offers, mut waited) = (0, Duration::ZERO);
        loop {
            match self.push(command) {
                Ok(()) => return Ok(()),
                Err(back) => command = back,
            }
            if offers < YIELDS {
                offers += 1;
                std::thread::yield_now();
            } else if waited < patience {
                waited = waited.saturating_add(PAUSE);
                std::thread::sleep(PAUSE);
            } else {
                return Err(command);
            }
        }
    }

    /// Hands a connection to the worker.
    pub(crate) fn adopt(&self, link: L, adopted: Adopted) -> Result<(), OpenError> {
        self.untaken.fetch_add(1, Ordering::Relaxed);
        self.offer(Command::Adopt(link, adopted), ADOPTION).map_err(|_| {
            self.took();
            OpenError::Worker("its inbox is full")
        })
    }

    /// A connection was taken that [`Inbox::adopt`] handed over.
    pub(crate) fn took(&self) {
        self.untaken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that were handed over and not taken yet.
    pub(crate) fn untaken(&self) -> usize {
        self.untaken.load(Ordering::Relaxed)
    }

    /// Commands that wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether one more command is refused.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Command<L, C>> {
        // An empty queue's `pop` costs a full fence, every turn; what is pushed now is seen by the next turn, and by
        // the look after arming.
        if self.queue.is_empty() {
            return None;
        }
        self.queue.pop()
    }

    /// Whether nothing waits for a turn.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.is_rung.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use gimmal_transport::sync::Doorbell;

    use super::*;

    #[test]
    fn a_full_inbox_is_waited_for_and_not_for_ever() {
        let inbox = Inbox::<(), u32>::new(1, Arc::new(Doorbell::new().unwrap()), drop);
        let offer = |number, patience| inbox.offer(Command::App(number), patience);
        offer(1, Duration::ZERO).unwrap();
        for patience in [Duration::ZERO, Duration::from_millis(3)] {
            assert!(matches!(offer(2, patience), Err(Command::App(2))));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| offer(3, Duration::from_secs(60)).unwrap());
            std::thread::sleep(Duration::from_millis(5));
            assert!(matches!(inbox.pop(), Some(Command::App(1))));
        });
        assert!(matches!(inbox.pop(), Some(Command::App(3))));
    }

    #[test]
    fn a_connection_that_nobody_waits_for_any_more_is_found_out() {
        let outcome = || Err(OpenError::Worker("as in a test"));
        let (adopted, receiver) = Adopted::channel();
        assert!(adopted.tell(outcome()));
        assert!(receiver.recv().unwrap().is_err());
        let (adopted, receiver) = Adopted::channel();
        drop(receiver);
        assert!(!adopted.tell(outcome()), "its worker closes it");
        assert!(Adopted::nobody().tell(outcome()), "one that was accepted has no caller");
    }
}
