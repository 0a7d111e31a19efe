//! A client's line to its server: the connection it has now, and the way to the next one.
//!
//! ```text
//!  worker: closed ─► Watcher::ended ─► a thread: wait (jittered back-off) ─► connect ─► swap ─► watch again
//! ```
//! A peer that says that it goes away, or asks us to come again, is left in the same way, while calls in flight end on the old
//! connection, which is closed then.
//! The thread lives only while there is no connection, or an old one, and holds the client only while it tries: a dropped client
//! is not dialled for. The worker looks after it: where no thread can be had, or it has ended, the worker starts another. Calls go to whatever connection there is; on one that ended they fail at once, not run.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use gimmal_engine::{
    proto::wire::HEAD_BYTES,
    transport::{
        CloseReason, ConnId, Instant, Negotiated,
        frame::FRAME_WORD_BYTES,
        pack::{high_half, join, low_half},
        thread,
    },
};

use crate::{
    again::{jittered, random},
    command::{Command, Watcher},
    config::Reconnect,
    error::ConnectError,
    frame::REQUEST_BYTES,
    here,
    route::{Opened, Route},
    workers::{Handle, Place, WorkerSet},
};

/// Waits between attempts.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(reconnect: &Reconnect) -> Self {
        Self { next: reconnect.first, first: reconnect.first, max: reconnect.max }
    }

    /// The waits before the next connection. The `last` ones go on where the connection that they led to stood for no longer than the
    /// longest of them: a server that lets its clients in and drops them at once is not dialled in a loop.
    fn after(last: Option<(Self, Duration)>, reconnect: &Reconnect) -> Self {
        last.filter(|(waits, stood)| *stood < waits.max)
            .map_or_else(|| Self::new(reconnect), |(waits, _)| waits)
    }

    /// The first attempt is made at once.
    fn at_once(reconnect: &Reconnect) -> Self {
        Self { next: Duration::ZERO, ..Self::new(reconnect) }
    }

    /// The next wait, drawn by `random`.
    fn wait(&mut self, random: u32) -> Duration {
        let span = self.next;
        self.next = span.saturating_mul(2).clamp(self.first, self.max);
        jittered(span, random)
    }
}

/// A client's line to its server: the connection, and the next one.
#[derive(Debug)]
pub(crate) struct Line {
    place: Place,
    /// The worker of the first connection; as a rule, of every other one too.
    first: Handle,
    /// The worker of the present connection, when the first has panicked.
    later: RwLock<Option<Arc<Handle>>>,
    has_moved: AtomicBool,
    route: Route,
    reconnect: Option<Reconnect>,
    conn: AtomicU64,
    arguments_max: AtomicUsize,
    negotiated: Mutex<Option<Arc<Negotiated>>>,
    reconnects: AtomicU64,
    /// The waits of the last dialling, and when it came to its end.
    last_waits: Mutex<Option<(Backoff, Instant)>>,
    /// Connections that were left for others, until the calls on them have ended.
    left: Mutex<Vec<Left>>,
    standing: Arc<Standing>,
}

/// Whether a line is of use. Shared with the watcher, which runs on the worker and must not hold the client: dropping
/// the last hold on a client stops its workers, and a worker cannot wait for itself.
#[derive(Debug)]
struct Standing {
    is_up: AtomicBool,
    /// Its user wants no connection any more.
    is_left: AtomicBool,
}

/// The way to the worker of a connection.
#[derive(Debug)]
pub(crate) enum Way<'a> {
    First(&'a Handle),
    Later(Arc<Handle>),
}

impl Deref for Way<'_> {
    type Target = Handle;

    #[inline]
    fn deref(&self) -> &Handle {
        match self {
            Self::First(handle) => handle,
            Self::Later(handle) => handle,
        }
    }
}

/// A connection that calls have left or are to leave, and its worker.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    handle: Handle,
    conn: ConnId,
    /// `None`: it never was.
    negotiated: Option<Arc<Negotiated>>,
}

/// A connection that never was: calls on it fail at once.
pub(crate) const NOWHERE: ConnId = ConnId::new(u32::MAX, u32::MAX);

fn bits(conn: ConnId) -> u64 {
    join(conn.generation(), conn.index())
}

pub(crate) fn arguments_max(negotiated: &Negotiated) -> usize {
    let heads = FRAME_WORD_BYTES + HEAD_BYTES + REQUEST_BYTES;
    (negotiated.frame_bytes_max as usize).saturating_sub(heads)
}

impl Line {
    pub(crate) fn new(
        place: (Place, Handle),
        route: Route,
        reconnect: Option<Reconnect>,
        (conn, negotiated): Opened,
    ) -> Self {
        let mut line = Self::later(place, route, reconnect);
        line.conn = AtomicU64::new(bits(conn));
        line.arguments_max = AtomicUsize::new(arguments_max(&negotiated));
        line.negotiated = Mutex::new(Some(negotiated));
        line.standing.is_up.store(true, Ordering::Relaxed);
        line
    }

    /// A line whose first connection is still to be made.
    pub(crate) fn later((place, first): (Place, Handle), route: Route, reconnect: Option<Reconnect>) -> Self {
        Self {
            place,
            first,
            later: RwLock::default(),
            has_moved: AtomicBool::new(false),
            route,
            reconnect,
            conn: AtomicU64::new(bits(NOWHERE)),
            arguments_max: AtomicUsize::new(0),
            negotiated: Mutex::default(),
            reconnects: AtomicU64::new(0),
            last_waits: Mutex::new(None),
            left: Mutex::default(),
            standing: Arc::new(Standing { is_up: AtomicBool::new(false), is_left: AtomicBool::new(false) }),
        }
    }

    /// Where it leads, for people.
    pub(crate) fn name(&self) -> String {
        self.route.name()
    }

    /// The present connection, and the way to its worker. Another worker may have another connection of that name: the two
    /// belong together.
    #[inline]
    pub(crate) fn here(&self) -> (Way<'_>, ConnId) {
        // SYNC POINT: line moved. Whoever reads the last connection's worker with the next one's name is refused: that worker
        // is gone.
        if self.has_moved.load(Ordering::Acquire) {
            self.here_later()
        } else {
            (Way::First(&self.first), self.conn())
        }
    }

    #[cold]
    fn here_later(&self) -> (Way<'_>, ConnId) {
        let later = self.later.read().unwrap_or_else(PoisonError::into_inner);
        let way = later.as_ref().map_or(Way::First(&self.first), |handle| Way::Later(Arc::clone(handle)));
        (way, self.conn())
    }

    pub(crate) fn conn(&self) -> ConnId {
        // A call that reads the old one is told that it has ended: nothing else hangs on the order.
        let bits = self.conn.load(Ordering::Relaxed);
        ConnId::new(high_half(bits), low_half(bits))
    }

    pub(crate) fn arguments_max(&self) -> usize {
        self.arguments_max.load(Ordering::Relaxed)
    }

    pub(crate) fn negotiated(&self) -> Option<Arc<Negotiated>> {
        self.negotiated.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this thread has an end of the connection.
    pub(crate) fn is_here(&self) -> bool {
        self.negotiated().is_some_and(|negotiated| here::has_end_of(&negotiated))
    }

    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.standing.is_up.load(Ordering::Acquire)
    }

    fn is_left(&self) -> bool {
        self.standing.is_left.load(Ordering::Relaxed)
    }

    /// Ends it when its calls have ended, at the latest after `timeout`; whether they had.
    pub(crate) fn leave(&self, timeout: Duration, workers: &WorkerSet) -> bool {
        let deadline = Instant::now() + timeout;
        let last = self.lead_nowhere();
        if here::is_serving() && self.is_here() {
            // Nothing would end while this thread waits.
            self.close(&last, workers);
            return false;
        }
        let done = Arc::new(AtomicBool::new(false));
        loop {
            // Behind every call that was made before in the worker's inbox.
            let _ = last.handle.submit(Command::Retire(last.conn, None, Arc::clone(&done)));
            std::thread::sleep(Duration::from_millis(1));
            if done.load(Ordering::Acquire) && self.left().is_empty() {
                return true;
            }
            if deadline.has_passed() {
                self.close(&last, workers);
                return false;
            }
        }
    }

    /// The present connection.
    fn present(&self, negotiated: Option<Arc<Negotiated>>) -> Left {
        let (handle, conn) = self.here();
        Left { handle: Handle::clone(&handle), conn, negotiated }
    }

    /// From now on calls fail at once; the connection they went to.
    fn lead_nowhere(&self) -> Left {
        let negotiated = self.negotiated.lock().unwrap_or_else(PoisonError::into_inner);
        self.standing.is_left.store(true, Ordering::Relaxed);
        let last = self.present(negotiated.clone());
        self.conn.store(bits(NOWHERE), Ordering::Relaxed);
        // Who sees that it is down also sees that it leads nowhere.
        self.standing.is_up.store(false, Ordering::Release);
        last
    }

    /// Closes its last connection, and those that it has left.
    fn close(&self, last: &Left, workers: &WorkerSet) {
        for Left { handle, conn, negotiated } in self.left().iter().chain([last]) {
            workers.close(handle, *conn, negotiated.as_ref());
        }
    }

    /// Its user is gone.
    pub(crate) fn end(&self, workers: &WorkerSet) {
        self.close(&self.present(self.negotiated()), workers);
    }

    /// Connects by the way that is the best one now. Returns the connection that it has left for that, if its user has not left it.
    fn dial(&self, reconnect: &Reconnect, workers: &WorkerSet) -> Result<Option<Left>, ConnectError> {
        let handle = self.place.handle();
        let options = reconnect.options(handle.connect_options());
        let opened = self.route.open(&options, |address, options| handle.connect_with(address, options));
        let (conn, negotiated) = opened?;
        let mut current = self.negotiated.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_left() {
            // Its user left while it was dialled for.
            workers.close(&handle, conn, Some(&negotiated));
            return Ok(None);
        }
        self.arguments_max.store(arguments_max(&negotiated), Ordering::Relaxed);
        let left = self.present(current.replace(negotiated));
        let is_first = left.negotiated.is_none();
        // Seen by whoever sees that calls go elsewhere.
        self.left().push(left.clone());
        self.move_to(handle, conn);
        self.standing.is_up.store(true, Ordering::Release);
        self.reconnects.fetch_add(u64::from(!is_first), Ordering::Relaxed);
        Ok(Some(left))
    }
}

impl Line {
    fn last_waits(&self) -> MutexGuard<'_, Option<(Backoff, Instant)>> {
        self.last_waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Vec<Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on calls go to `conn`, on the worker of `handle`.
    fn move_to(&self, handle: Handle, conn: ConnId) {
        let has_moved = !self.here().0.is_same(&handle);
        let mut later = self.later.write().unwrap_or_else(PoisonError::into_inner);
        if has_moved {
            *later = Some(Arc::new(handle));
        }
        self.conn.store(bits(conn), Ordering::Relaxed);
        if has_moved {
            // SYNC POINT: line moved. Pairs with `here`.
            self.has_moved.store(true, Ordering::Release);
        }
    }
}

/// Whatever has a line: kept alive by its users, not by the dialling.
pub(crate) trait Lined: Send + Sync + 'static {
    fn line(&self) -> &Line;

    /// Where its connections are.
    fn workers(&self) -> &WorkerSet;
}

/// Makes the first connection of `owner`. Returns whether the worker took it on; otherwise its inbox stayed full.
pub(crate) fn begin<T: Lined>(owner: &Arc<T>) -> bool {
    let line = owner.line();
    // Not where the line leads now: the thread that connects may be done before the worker has this.
    tell((&line.first, NOWHERE), Redial::of(owner, Some(line.reconnect.unwrap_or_default())))
}

/// Follows the connection of `owner`: it is not ready once that has ended, and reconnects if it is to. Returns whether the worker
/// took it on; otherwise its inbox stayed full.
pub(crate) fn watch<T: Lined>(owner: &Arc<T>) -> bool {
    let line = owner.line();
    let (handle, conn) = line.here();
    tell((&handle, conn), Redial::of(owner, line.reconnect))
}

/// How long a worker with a full inbox is asked to watch a connection.
const WATCH: Duration = Duration::from_secs(1);

/// Has the worker watch a connection. One that it does not have has ended, and so has every connection of a worker that is gone.
fn tell((handle, conn): (&Handle, ConnId), redial: impl Watcher + 'static) -> bool {
    handle.offer(Command::Watch(conn, Arc::new(redial)), WATCH).is_ok()
}

struct Redial<T> {
    owner: Weak<T>,
    standing: Arc<Standing>,
    /// `None`: it stays without a connection.
    reconnect: Option<Reconnect>,
    state: Arc<AtomicU8>,
    has_warned: AtomicBool,
}

/// Nobody has to move.
const STANDS: u8 = 0;
/// The next connection is wanted, and no thread makes it.
const WANTS: u8 = 1;
/// A thread makes it.
const MOVES: u8 = 2;
/// It is made.
const MOVED: u8 = 3;

/// A thread that makes the next connection; when it ends without, another is wanted.
struct Mover(Arc<AtomicU8>);

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.0.compare_exchange(MOVES, WANTS, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl<T> fmt::Debug for Redial<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redial({:?})", self.reconnect)
    }
}

impl<T: Lined> Watcher for Redial<T> {
    fn ended(&self, _: &CloseReason) {
        // Whatever the reason: one that was left is not wanted any more, or has been moved on from.
        self.move_on();
    }

    fn leaving(&self) {
        // Else it stays where it is until that ends.
        if self.reconnect.is_some() {
            self.move_on();
        }
    }

    fn is_moving(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == WANTS {
            self.start();
        }
        self.is_wanted() && matches!(self.state.load(Ordering::Relaxed), WANTS | MOVES)
    }
}

impl<T: Lined> Redial<T> {
    fn of(owner: &Arc<T>, reconnect: Option<Reconnect>) -> Self {
        Self {
            owner: Arc::downgrade(owner),
            standing: Arc::clone(&owner.line().standing),
            reconnect,
            state: Arc::new(AtomicU8::new(STANDS)),
            has_warned: AtomicBool::new(false),
        }
    }

    fn is_wanted(&self) -> bool {
        self.reconnect.is_some()
            && self.owner.strong_count() > 0
            && !self.standing.is_left.load(Ordering::Relaxed)
    }

    fn move_on(&self) {
        let begins = self.state.compare_exchange(STANDS, WANTS, Ordering::Relaxed, Ordering::Relaxed);
        if begins.is_ok() {
            self.standing.is_up.store(false, Ordering::Relaxed);
            self.start();
        }
    }

    /// Starts the thread. Only the worker calls this.
    fn start(&self) {
        let Some(reconnect) = self.reconnect.filter(|_| self.is_wanted()) else { return };
        let owner = Weak::clone(&self.owner);
        self.state.store(MOVES, Ordering::Relaxed);
        let mover = Mover(Arc::clone(&self.state));
        let thread = thread::spawn("gimmal-redial", move || redial(&owner, &reconnect, &mover));
        if let Err(error) = thread
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "no thread to reconnect with yet; trying again");
        }
    }
}

fn redial<T: Lined>(owner: &Weak<T>, reconnect: &Reconnect, mover: &Mover) {
    let known = owner.upgrade().map(|client| (client.line().name(), client.line().negotiated()));
    let Some((url, last)) = known else { return };
    let waits = owner.upgrade().and_then(|client| client.line().last_waits().take());
    let waits = waits.map(|(waits, until)| (waits, Instant::now() - until));
    let mut backoff =
        if last.is_some() { Backoff::after(waits, reconnect) } else { Backoff::at_once(reconnect) };
    let attempt = || {
        let client = owner.upgrade().filter(|client| !client.line().is_left())?;
        Some(client.line().dial(reconnect, client.workers()).map(|left| (client, left)))
    };
    let Some((client, left)) = persist(&mut backoff, &url, attempt) else { return };
    *client.line().last_waits() = Some((backoff, Instant::now()));
    drop(client);
    // Otherwise its user left it meanwhile: there is nothing to watch.
    if let Some(left) = left
        && follow(owner)
    {
        mover.0.store(MOVED, Ordering::Relaxed);
        retire(owner, &left);
    }
}

/// Follows the new connection of `owner`, as soon as the worker's inbox has room. Returns whether the owner is still there.
pub(crate) fn follow<T: Lined>(owner: &Weak<T>) -> bool {
    loop {
        let Some(client) = owner.upgrade() else { return false };
        if watch(&client) {
            return true;
        }
        tracing::warn!(
            url = client.line().name(),
            "the worker's inbox is full: its new connection is not followed yet"
        );
    }
}

/// Makes attempts, each after a wait, until one succeeds; `None` when `attempt` has none to make any more.
pub(crate) fn persist<T>(
    backoff: &mut Backoff,
    url: &str,
    mut attempt: impl FnMut() -> Option<Result<T, ConnectError>>,
) -> Option<T> {
    let mut last = String::new();
    loop {
        std::thread::sleep(backoff.wait(random()));
        match attempt()? {
            Ok(connected) => {
                tracing::info!(url, "connected");
                return Some(connected);
            }
            Err(error) => {
                let error = error.to_string();
                if error == last {
                    tracing::debug!(error, url, "not connected yet");
                } else {
                    tracing::warn!(error, url, "not connected; trying again");
                    last = error;
                }
            }
        }
    }
}

/// Between two looks whether the calls on an old connection have ended.
const RETIRE_LOOK: Duration = Duration::from_millis(5);

/// Closes the `old` connection when its calls have ended. With its owner it is closed anyway, see [`Line::end`].
fn retire<T: Lined>(owner: &Weak<T>, Left { handle, conn: old, .. }: &Left) {
    let done = Arc::new(AtomicBool::new(false));
    while let Some(client) = owner.upgrade() {
        let line = client.line();
        if done.load(Ordering::Acquire) {
            return line.left().retain(|left| left.conn != *old || !left.handle.is_same(handle));
        }
        // A full inbox empties soon. Without its worker the connection is gone as well.
        let (way, conn) = line.here();
        let next = way.is_same(handle).then_some(conn);
        let _ = handle.submit(Command::Retire(*old, next, Arc::clone(&done)));
        drop(way);
        drop(client);
        std::thread::sleep(RETIRE_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_within_their_jitter() {
        let reconnect = Reconnect { max: Duration::from_millis(70), ..Reconnect::default() };
        for random in [0, 1, u32::MAX / 2, u32::MAX] {
            let mut backoff = Backoff::new(&reconnect);
            for expected in [10, 20, 40, 70, 70] {
                let (wait, full) = (backoff.wait(random), Duration::from_millis(expected));
                assert!((full / 2..=full).contains(&wait), "{wait:?} of {full:?}");
            }
        }
        let low = Backoff::new(&reconnect).wait(0);
        assert_ne!(low, Backoff::new(&reconnect).wait(u32::MAX), "no jitter at all");
    }

    #[test]
    fn a_server_that_drops_its_clients_at_once_is_dialled_ever_less_often() {
        let reconnect = Reconnect { max: Duration::from_millis(70), ..Reconnect::default() };
        let mut backoff = Backoff::after(None, &reconnect);
        for expected in [10, 20, 40, 70, 70] {
            assert_eq!(backoff.wait(u32::MAX), Duration::from_millis(expected));
            // The attempt succeeded, and the connection ended soon.
            backoff = Backoff::after(Some((backoff, Duration::from_millis(69))), &reconnect);
        }
        let mut backoff = Backoff::after(Some((backoff, reconnect.max)), &reconnect);
        assert_eq!(backoff.wait(u32::MAX), reconnect.first, "one that stood begins anew");
    }

    #[test]
    fn a_thread_that_ends_without_a_connection_leaves_one_wanted() {
        let state = Arc::new(AtomicU8::new(MOVES));
        let mover = Mover(Arc::clone(&state));
        let ended = thread::spawn("gimmal-redial", move || {
            let _mover = mover;
            panic!("as it was made to");
        });
        ended.unwrap().join().unwrap_err();
        assert_eq!(state.load(Ordering::Relaxed), WANTS);
        state.store(MOVED, Ordering::Relaxed);
        drop(Mover(Arc::clone(&state)));
        assert_eq!(state.load(Ordering::Relaxed), MOVED);
    }

    #[test]
    fn two_clients_draw_different_waits() {
        let drawn: std::collections::HashSet<_> = (0..16).map(|_| random()).collect();
        assert!(drawn.len() > 8, "{drawn:?}");
    }
}
