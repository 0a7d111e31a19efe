//! What moves the calls of a local client on a current-thread runtime: a future of that runtime, no second thread.
//!
//! ```text
//!  a task of the runtime                       the driver, another task of it
//!   start ─ encoded in the transmit ring ─►     step, step, ... answer found ─► wakes the call's task
//!   await ◄──────── the call's slot ◄────────── nothing to do: waits for one descriptor
//! ```

use std::{
    cell::{Cell, RefMut},
    fmt,
    future::Future,
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::{Alarm, App as _, Rest, transport::CloseReason};

use super::conn::{LocalConn, Turns};

/// The longest sleep; deadlines wake earlier.
const SLEEP: Duration = Duration::from_secs(3600);
/// Steps that find nothing, before other tasks get their turn.
const STEPS: usize = 64;
/// Polls after one that found something which make one step only. A runtime may poll a task that wakes itself many times
/// before it polls the one whose call has ended (tokio's `LocalSet`: 61).
const QUICK: u32 = 64;
/// Of those polls one in so many makes its step where that would only ask the kernel, or a device, whether something arrived: so
/// many system calls would stand between an answer and its caller.
const ASKING: u32 = 16;
/// Times that [`Driver::run_until`] polls its future before the runtime gets its turn.
const ROUNDS: usize = 64;

/// Moves the calls of a [`LocalClient`](crate::LocalClient), as a future that [`Driver::run`] or [`Driver::run_until`] makes and
/// the runtime polls. Any event loop that can wait for a descriptor will do. `gimmal::tokio::LocalClient` does it for tokio. To drop the
/// driver, or the future of [`Driver::run`], ends the connection, and each call with its fate.
///
/// # Readiness
///
/// The caller gives `readable`, a function that tells whether the driver's descriptor ([`AsFd`]) can be read:
///
/// - `Ready(Ok(()))`: it can be read. To answer so too often costs a turn each; to miss that it can be read makes calls hang.
/// - `Pending`: it cannot be read now, and the task of the context is woken once it can. A call of `readable` replaces the waker of
///   the one before.
/// - `Ready(Err(_))`: the runtime does not watch the descriptor any more. The future ends with this error.
///
/// The descriptor is one for the life of the driver. It is only waited for: never read from it. Level-triggered and edge-triggered
/// loops both do, as `readable` is asked once before each sleep and once after it. Where an event loop caches readiness, such as
/// tokio's `AsyncFd`, `readable` clears what it returns.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let _server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-driver")?;
/// use std::{os::fd::AsFd as _, task::Context};
///
/// use tokio::io::{Interest, unix::AsyncFd};
///
/// let client = gimmal::LocalClient::connect("mem://doc-driver")?; // blocks
/// let mut driver = client.driver()?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// let fd = AsyncFd::with_interest(driver.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
/// let readable = |context: &mut Context<'_>| fd.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready());
/// let call = HelloClient::new(client).hello("world".into());
/// assert_eq!(driver.run_until(readable, call).await??, "Hello, world!");
/// # Ok(())
/// # })
/// # }
/// ```
pub struct Driver {
    local: Weak<LocalConn>,
    alarm: Alarm,
    /// Polls that make one step at most.
    quick: Cell<u32>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("alarm", &self.alarm).finish_non_exhaustive()
    }
}

/// Without it no call would end: the connection goes with it, and what is in flight ends with its fate.
impl Drop for Driver {
    fn drop(&mut self) {
        let Some(local) = self.local.upgrade().filter(|local| !local.is_turning()) else { return };
        let (mut turns, conn) = (local.driven_turns(), local.conn());
        // The device may take a while to let go of it; the calls need not wait for that.
        turns.with(|node, io| {
            io.abort(conn, CloseReason::Local);
            node.closed(io, conn, &CloseReason::Local);
        });
    }
}

/// The descriptor that the runtime waits for, to be read: it is never to be read from, only waited for.
impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}

impl Driver {
    /// The driver of a client that has none yet.
    pub(super) fn of(local: &Rc<LocalConn>) -> io::Result<Self> {
        let alarm = local.turns().alarm()?;
        if !local.take_driver() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "this client has a driver already"));
        }
        Ok(Self { local: Rc::downgrade(local), alarm, quick: Cell::new(0) })
    }

    /// Returns a future that moves the calls, and ends when the last clone of the client and its calls are gone. It is a task of its
    /// own on the client's thread. `readable` says when the descriptor can be read, as [`Driver`] describes.
    ///
    /// Not cancel safe: dropping the future ends the connection.
    ///
    /// # Errors
    /// The future ends with the error that `readable` returns, and with the system's when the timer of its sleep cannot be set. The
    /// connection ends when it is dropped.
    pub fn run<R>(self, readable: R) -> Running<R>
    where
        R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
    {
        Running { driver: self, readable }
    }

    /// Runs `main` to its end and moves the calls between its polls, as one task: the shortest way from a response to its caller,
    /// because the runtime is not involved. It gives way after 64 polls at the latest, so other tasks and timers go on. `readable`
    /// says when the descriptor can be read, as [`Driver`] describes. Afterwards this or [`Driver::run`] can be called again.
    ///
    /// Cancel safe but for `main`, which is dropped with the future: calls and streams outside of `main` go on when either is called
    /// again.
    ///
    /// # Errors
    /// The future ends with the error that `readable` returns, and with the system's when the timer of its sleep cannot be set.
    pub fn run_until<R, F>(&mut self, readable: R, main: F) -> RunningUntil<'_, R, F>
    where
        R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
        F: Future,
    {
        RunningUntil { driver: self, readable, main: Box::pin(main) }
    }
}

/// The future of [`Driver::run`]: it moves the calls of a local client until the client is gone.
#[must_use = "calls move only while this is polled"]
pub struct Running<R> {
    driver: Driver,
    readable: R,
}

impl<R> fmt::Debug for Running<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.driver)
    }
}

impl<R> Future for Running<R>
where
    R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
{
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(local) = this.driver.local.upgrade() else { return Poll::Ready(Ok(())) };
        let quick = this.driver.quick.get();
        let steps = steps_of(quick);
        this.driver.quick.set(quick.saturating_sub(1));
        match this.driver.advance(&local, steps, &mut this.readable, context) {
            Ok(true) => {
                this.driver.quick.set(QUICK);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// The future of [`Driver::run_until`]: it moves the calls of a local client until a future of the user's ends, and returns what that
/// returned.
#[must_use = "nothing happens until this is polled"]
pub struct RunningUntil<'a, R, F> {
    driver: &'a Driver,
    readable: R,
    main: Pin<Box<F>>,
}

impl<R, F> fmt::Debug for RunningUntil<'_, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningUntil({:?})", self.driver)
    }
}

impl<R, F> Future for RunningUntil<'_, R, F>
where
    R: FnMut(&mut Context<'_>) -> Poll<io::Result<()>> + Unpin,
    F: Future,
{
    type Output = io::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<F::Output>> {
        let this = &mut *self;
        for _ in 0..ROUNDS {
            if let Poll::Ready(output) = this.main.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            // Without a client there is nothing to move.
            let Some(local) = this.driver.local.upgrade() else { return Poll::Pending };
            match this.driver.advance(&local, steps_of(0), &mut this.readable, context) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Driver {
    /// Turns until something was done (`true`: calls may have ended) or the thread is better given to others. The task is
    /// then woken again when it is its turn, or sleeps with the port armed.
    fn advance(
        &self,
        local: &LocalConn,
        steps: (usize, bool),
        readable: &mut impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        local.driven_by(context.waker());
        if local.is_asleep()
            && let Poll::Ready(rang) = readable(context)
        {
            // Taken note of before the turn that looks: it need not be followed by another.
            rang?;
        }
        match round(local.driven_turns(), steps, context) {
            Rest::Worked => return Ok(true),
            Rest::Spin | Rest::Yield => {}
            Rest::Sleep(limit) => {
                self.alarm.set(limit)?;
                local.sleeps();
                match readable(context) {
                    Poll::Pending => {
                        self.quick.set(0);
                        return Ok(false);
                    }
                    // It rang, now or before: a turn tells.
                    Poll::Ready(rang) => rang?,
                }
            }
        }
        context.waker().wake_by_ref();
        Ok(false)
    }
}

impl LocalConn {
    /// Turns like a poll of the driver. Ready when something was found. A driver that sleeps is woken by the first of these turns:
    /// what would have ended its sleep may be found here, and nobody may turn after it.
    pub(super) fn poll_turns(&self, context: &Context<'_>) -> Poll<()> {
        match round(self.turns(), steps_of(0), context) {
            Rest::Worked => return Poll::Ready(()),
            Rest::Spin | Rest::Yield => context.waker().wake_by_ref(),
            Rest::Sleep(_) => {
                self.driven_turns().woke();
                self.wake_driver();
            }
        }
        Poll::Pending
    }
}

/// The steps of a poll when so many of the polls to come are quick, and whether they ask.
const fn steps_of(quick: u32) -> (usize, bool) {
    if quick == 0 { (STEPS, true) } else { (1, quick.is_multiple_of(ASKING)) }
}

/// Steps, until one found something or wants more than another; what the last one wants. Before a sleep the port is armed.
fn round(mut turns: RefMut<'_, Turns>, (steps, asks): (usize, bool), context: &Context<'_>) -> Rest {
    for _ in 0..steps {
        match turns.step(SLEEP, context.waker(), asks) {
            Rest::Spin => std::hint::spin_loop(),
            rest => return rest,
        }
    }
    Rest::Spin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_polls_behind_an_answer_ask_the_kernel() {
        let asking: Vec<u32> = (1..=QUICK).rev().filter(|quick| steps_of(*quick).1).collect();
        // The first one tells whether the thread may sleep.
        assert_eq!(asking, [64, 48, 32, 16]);
        assert_eq!((steps_of(QUICK), steps_of(0)), ((1, true), (STEPS, true)));
    }
}
