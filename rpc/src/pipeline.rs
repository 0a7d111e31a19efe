//! Many calls of one raw method from one thread: told apart by tags, their answers shown as they come.
//!
//! ```text
//!   call(tag, request) ─ written in the transmit ring ─►  poll: one turn, one doorbell for all of them
//!   seen(tag, Ok(answer)) ◄─ where it landed ───────────  … and other messages
//! ```

use std::{convert::Infallible, fmt, rc::Rc, sync::Arc, time::Duration};

use gimmal_engine::{
    Act, Io, Message, Pick,
    transport::{CloseReason, ConnId, Port},
};

use crate::{
    calls::{Reply, Tagged},
    channel::{CallOptions, SLEEP, body_of},
    codec::Raw,
    error::{CallError, TransportError},
    local::{LocalConn, Turns},
    metadata::{Metadata, Noted},
    method::Method,
    node::{Asked, Common, Fresh, Node},
    output::Plain,
    response::Body,
};

/// The result of a call of a pipeline: the bytes of its answer, lent for the time of the callback, or its error.
pub type Answered<'a> = Result<&'a [u8], CallError<Infallible>>;

/// Calls of one raw method in flight on an [`LocalClient`](crate::LocalClient), for the highest rate: nothing is
/// kept for
/// a call but its tag, and a turn shows all the answers that it finds. Made by a generated client's `…_pipeline`, or by
/// [`LocalClient::pipeline`](crate::LocalClient::pipeline).
///
/// ```
/// # use gimmal_rpc::{ResponseWriter, Client, Cx, Server};
/// #[gimmal_rpc::service(crate = gimmal_rpc)]
/// trait Shop {
///     #[raw]
///     fn price(&self, cx: &Cx, item: &[u8], answer: &mut ResponseWriter<'_>);
/// }
/// # struct Corner;
/// # impl Shop for Corner {
/// #     fn price(&self, _: &Cx, item: &[u8], answer: &mut ResponseWriter<'_>) { answer.write(&[item[0] * 2]) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("gimmal-pipeline-{}", std::process::id()));
/// # let url = format!("shm://{}", folder.display());
/// # let server = Server::builder().service(serve_shop(Corner)).listen(&url)?;
/// let shop = ShopClient::new(Client::builder().connect_local(&url)?);
/// let mut prices = shop.price_pipeline();
/// let mut sum = 0;
/// for item in 0..100 {
///     prices.call(item, &[item as u8])?;
///     if prices.under_way() == 32 {
///         prices.wait(8, |_item, price| sum += u64::from(price.unwrap()[0]));
///     }
/// }
/// prices.wait(usize::MAX, |_item, price| sum += u64::from(price.unwrap()[0]));
/// assert_eq!(sum, 99 * 100);
/// # Ok(())
/// # }
/// ```
///
/// Dropping it cancels the calls that are in flight.
pub struct Pipeline {
    local: Rc<LocalConn>,
    what: What,
    ours: Ours,
}

/// What its calls are.
struct What {
    common: Common,
    metadata: Option<Arc<Metadata>>,
}

/// Its calls.
#[derive(Default)]
struct Ours {
    under_way: usize,
    /// A buffer for answers that are not shown where they landed.
    spare: Vec<u8>,
}

type Started = Result<(), Box<TransportError>>;

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pipeline({} under way of {} on {:?})",
            self.ours.under_way, self.what.common.method, self.local
        )
    }
}

impl Pipeline {
    pub(crate) fn new(local: &Rc<LocalConn>, method: &'static Method, options: &CallOptions) -> Self {
        let (timeout, pipeline) = (local.timeout(options), local.next_pipeline());
        let common = Common { conn: local.conn(), method, timeout, pipeline };
        let what = What { common, metadata: options.metadata.clone().filter(|_| !method.is_oneway) };
        Self { local: Rc::clone(local), what, ours: Ours::default() }
    }

    /// Starts a call, which leaves with the next [`poll`](Pipeline::poll), together with others. `tag` comes back with its
    /// answer and says nothing to anybody else. Calls above the window wait in the client, and cost a copy each.
    ///
    /// # Errors
    /// The call did not run, and nothing more is heard of it. [`TransportError::Full`] when `Config::waiting_max` calls wait,
    /// [`TransportError::Closed`] without a connection, [`TransportError::TooLarge`] and [`TransportError::AboveMax`] for a request
    /// that cannot be sent.
    #[inline]
    pub fn call(&mut self, tag: u64, request: &[u8]) -> Result<(), TransportError> {
        self.call_all([(tag, request)])
    }

    /// Starts several calls, at a fraction of the cost of each: up to eight small ones leave in one message. The
    /// iterator must not use the client. If it panics, the calls that it returned last may not be in flight.
    ///
    /// # Errors
    /// The error of the first refused call. Those before it are in flight. Up to seven after it may have been taken
    /// from `calls`; they did not run either.
    #[inline]
    pub fn call_all<'a>(
        &mut self,
        calls: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<(), TransportError> {
        let Self { local, what, ours } = self;
        let start = Start { what, calls, under_way: &mut ours.under_way };
        local.turns().with_later(start).map_err(|error| *error)
    }

    /// Returns how many calls were started and have not ended.
    #[must_use]
    #[inline]
    pub fn under_way(&self) -> usize {
        self.ours.under_way
    }

    /// Runs one turn: calls that were started leave, and calls that have ended are shown to `seen`, in any order. Never blocks.
    /// Returns how many have ended.
    ///
    /// `seen` runs in the middle of the turn, on bytes that lie where they landed: it must not use the client. If it panics,
    /// the connection is closed.
    #[inline]
    pub fn poll(&mut self, seen: impl FnMut(u64, Answered<'_>)) -> usize {
        self.turn(Duration::ZERO, seen)
    }

    /// Blocks the thread until `at_least` calls have ended, or all calls in flight, and shows each to `seen`. Idles by the
    /// configured strategy between turns. Returns how many have ended. Waiting for a few at once keeps calls together that leave
    /// together: with a window of 32 for 8, for example.
    ///
    /// `seen` runs in the middle of a turn, on bytes that lie where they landed: it must not use the client. If it panics, the
    /// connection is closed.
    #[inline]
    pub fn wait(&mut self, at_least: usize, mut seen: impl FnMut(u64, Answered<'_>)) -> usize {
        let mut ended = 0;
        while ended < at_least && self.ours.under_way > 0 {
            ended += self.turn(SLEEP, &mut seen);
        }
        ended
    }

    /// A turn, idle for `limit` at most.
    #[inline(always)]
    fn turn(&mut self, limit: Duration, mut seen: impl FnMut(u64, Answered<'_>)) -> usize {
        let Self { local, what, ours } = self;
        let broken = Broken(local);
        let mut turns = local.turns();
        // Some may have ended in the turns of others.
        let mut ended = show_others(&mut turns, what, ours, &mut seen);
        let limit = if ended > 0 { Duration::ZERO } else { limit };
        let Common { conn, pipeline, .. } = what.common;
        let read = |tag: u64, answer: &[u8]| {
            ours.under_way -= 1;
            ended += 1;
            seen(tag, Ok(answer));
        };
        turns.sift(limit, Shown { conn, pipeline, read });
        ended += show_others(&mut turns, what, ours, &mut seen);
        drop(turns);
        std::mem::forget(broken);
        ended
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let pipeline = self.what.common.pipeline;
        if self.ours.under_way > 0 {
            self.local.cancel_pipeline(pipeline);
        } else {
            self.local.end_pipeline(pipeline);
        }
    }
}

/// A reader of answers may have panicked in the middle of a turn, which cannot be repaired.
struct Broken<'a>(&'a LocalConn);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        let conn = self.0.conn();
        self.0.turns().with(|_, io| io.abort(conn, CloseReason::Local));
    }
}

impl What {
    /// Whether nothing but bytes goes either way.
    fn is_plain(&self) -> bool {
        self.metadata.is_none() && !self.common.method.is_oneway
    }

    /// Starts one that has something else about it, or finds no room.
    #[cold]
    fn begin<P: Port>(&self, node: &mut Node, io: &mut Io<'_, P>, (tag, request): Asked<'_>) -> Started {
        let Common { conn, method, timeout, pipeline } = self.common;
        let reply = Reply::Tagged(Tagged { pipeline, tag });
        let beside = (&mut None, None);
        match &self.metadata {
            None => node.begin(io, conn, method, timeout, Fresh::new(request), beside, reply),
            Some(metadata) => {
                let noted = Noted { metadata, arguments: request };
                node.begin(io, conn, method, timeout, Fresh::new(&noted), beside, reply)
            }
        }
        .map(drop)
    }
}

/// Starts calls between turns.
struct Start<'a, I> {
    what: &'a What,
    calls: I,
    under_way: &'a mut usize,
}

impl<'a, I: IntoIterator<Item = (u64, &'a [u8])>> Act<Node> for Start<'_, I> {
    type Outcome = Started;

    #[inline(always)]
    fn act<P: Port>(self, node: &mut Node, io: &mut Io<'_, P>) -> Started {
        let Self { what, calls, under_way } = self;
        let mut calls = calls.into_iter();
        if what.is_plain() {
            return node.post_tagged(io, &what.common, &mut calls, under_way);
        }
        for call in calls {
            what.begin(node, io, call)?;
            *under_way += 1;
        }
        Ok(())
    }
}

/// Shows those that ended otherwise than by an answer that was shown where it landed. Returns how many.
#[inline]
fn show_others(
    turns: &mut Turns,
    what: &What,
    ours: &mut Ours,
    seen: &mut impl FnMut(u64, Answered<'_>),
) -> usize {
    if turns.app_mut().has_done(what.common.conn) { take_others(turns, what, ours, seen) } else { 0 }
}

#[cold]
fn take_others(
    turns: &mut Turns,
    what: &What,
    Ours { under_way, spare }: &mut Ours,
    seen: &mut impl FnMut(u64, Answered<'_>),
) -> usize {
    let mut ended = 0;
    let Common { conn, pipeline, .. } = what.common;
    while let Some((tag, response)) = turns.app_mut().take_tagged(conn, pipeline, spare) {
        *under_way -= 1;
        ended += 1;
        match body_of::<Raw, Plain<Vec<u8>>>(response) {
            Ok(body) => {
                seen(tag, Ok(body.bytes()));
                if let Body::Owned(buffer) = body {
                    *spare = buffer;
                }
            }
            Err(error) => seen(tag, Err(error)),
        }
    }
    ended
}

/// Waits for the answers of a pipeline.
pub(crate) struct Shown<F> {
    pub(crate) conn: ConnId,
    pub(crate) pipeline: u32,
    /// Shown the answers where they landed, with their tags.
    pub(crate) read: F,
}

impl<F: FnMut(u64, &[u8])> Pick<Node> for Shown<F> {
    #[inline(always)]
    fn pick<P: Port>(
        &mut self,
        node: &mut Node,
        io: &mut Io<'_, P>,
        conn: ConnId,
        message: &Message<'_>,
    ) -> bool {
        let Self { pipeline, read, .. } = self;
        conn == self.conn && node.read_tagged(io, conn, *pipeline, message, read)
    }
}
