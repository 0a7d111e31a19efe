//! The RPC layer's echoes: a raw method that reads its request in place and writes its answer in place, and a typed
//! one.

use std::{collections::VecDeque, fmt, time::Duration};

use gimmal::{Call, Channel, call::RawCall, codec::Postcard, local::LocalClient};
use gimmal_engine::transport::{Address, Provider};

use crate::{
    clock::Stamp,
    crew::{Calls, Crew, batch_of},
    error::BenchError,
    inline::InlineTarget,
    pipeline::Piper,
    plan::{Layer, Mode, Plan},
    recorder::Recorder,
    service::{BenchClient, failed, handed_off, inline},
    stopwatch::Stopwatch,
    target::{Target, body, read},
};

/// A call of the typed method, as its client makes it.
type TypedCall<C> = Call<C, Postcard, gimmal::__macro::PlainBytes>;

/// Calls in flight, oldest first, in a queue for each kind.
enum Pending<C: Channel> {
    Raw(VecDeque<RawCall<C>>),
    Typed(VecDeque<TypedCall<C>>),
}

impl<C: Channel> Pending<C> {
    fn new(is_typed: bool, window: usize) -> Self {
        match is_typed {
            true => Self::Typed(VecDeque::with_capacity(window)),
            false => Self::Raw(VecDeque::with_capacity(window)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Raw(calls) => calls.len(),
            Self::Typed(calls) => calls.len(),
        }
    }

    /// Starts `count` more.
    #[inline]
    fn start(&mut self, client: &BenchClient<C>, body: &[u8], count: u64) {
        match self {
            Self::Raw(calls) => (0..count).for_each(|_| calls.push_back(client.echo(body))),
            Self::Typed(calls) => (0..count).for_each(|_| calls.push_back(client.typed(body.to_vec()))),
        }
    }

    /// Waits for the `count` oldest; `is_right` sees each answer.
    #[inline]
    fn end(&mut self, count: usize, is_right: impl Fn(&[u8]) -> bool + Copy) -> Result<(), BenchError> {
        let seen = |right: bool| if right { Ok(()) } else { Err(BenchError::Wrong("another body")) };
        match self {
            Self::Raw(calls) => {
                calls.drain(..count).try_for_each(|call| seen(call.wait_with(is_right).map_err(failed)?))
            }
            Self::Typed(calls) => {
                calls.drain(..count).try_for_each(|call| seen(is_right(&call.wait().map_err(failed)?)))
            }
        }
    }
}

/// Calls through `C`.
struct Caller<C: Channel> {
    client: BenchClient<C>,
    body: Vec<u8>,
    digest: u64,
    is_thorough: bool,
    window: usize,
    under_way: Pending<C>,
    watch: Stopwatch,
    /// Calls started, and those of them that ended.
    started: u64,
    done: u64,
}

impl<C: Channel> fmt::Debug for Caller<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("window", &self.window).finish_non_exhaustive()
    }
}

/// The client's end, and the connection that carried the plan.
#[derive(Debug)]
pub(crate) struct RpcTarget<T: Calls, P: Provider> {
    calls: T,
    /// `None`: beside the connection that told it.
    plan: Option<InlineTarget<P>>,
    close: fn(T),
}

/// Connects, through whichever client the plan's mode wants.
///
/// # Errors
/// See [`BenchError`].
pub(crate) fn connect<P: Provider>(
    provider: &P,
    address: &Address,
    plan: &Plan,
    ring_bytes: u32,
) -> Result<Box<dyn Target>, BenchError> {
    let control = InlineTarget::connect(provider, address, plan, ring_bytes)?;
    let url = control.served_at().to_owned();
    open(&url, Some(control), plan, ring_bytes)
}

/// A client of the same server, beside the connection that told the plan.
///
/// # Errors
/// See [`BenchError`].
pub(crate) fn connect_beside<P: Provider>(
    _: &P,
    url: &str,
    plan: &Plan,
    ring_bytes: u32,
) -> Result<Box<dyn Target>, BenchError> {
    open::<P>(url, None, plan, ring_bytes)
}

fn open<P: Provider>(
    url: &str,
    control: Option<InlineTarget<P>>,
    plan: &Plan,
    ring_bytes: u32,
) -> Result<Box<dyn Target>, BenchError> {
    match (plan.mode, plan.layer) {
        (Mode::Inline | Mode::Asleep, Layer::Pipeline) => {
            let calls = Piper::new(BenchClient::new(inline(url, plan, ring_bytes)?), plan);
            Ok(Box::new(RpcTarget { calls, plan: control, close: |calls: Piper| say_goodbye(calls.end()) }))
        }
        (Mode::Handoff, Layer::Pipeline) => {
            let why = "--layer pipeline: only the inline client has pipelines: --mode inline";
            Err(BenchError::Arguments(why.to_owned()))
        }
        (Mode::Inline | Mode::Asleep, _) => {
            let calls = Caller::new(inline(url, plan, ring_bytes)?, plan);
            let close = |calls: Caller<LocalClient>| say_goodbye(calls.end());
            Ok(Box::new(RpcTarget { calls, plan: control, close }))
        }
        (Mode::Handoff, _) => {
            let client = handed_off(url, plan, ring_bytes)?;
            let calls = Crew::new((0..plan.threads).map(|_| Caller::new(client.clone(), plan)).collect())?;
            Ok(Box::new(RpcTarget { calls, plan: control, close: drop }))
        }
    }
}

fn say_goodbye(client: LocalClient) {
    // A server that does not answer sees us go.
    let _ = client.close(Duration::from_secs(1));
}

impl<C: Channel> Caller<C> {
    fn new(client: C, plan: &Plan) -> Self {
        let (body, window) = (body(plan.bytes), plan.window / plan.threads);
        Self {
            client: BenchClient::new(client),
            digest: read(&body, plan.verify),
            is_thorough: plan.verify,
            body,
            window,
            under_way: Pending::new(plan.layer == Layer::Typed, window),
            watch: Stopwatch::new(window),
            started: 0,
            done: 0,
        }
    }

    /// Gives its client back, alone.
    fn end(self) -> C {
        let Self { client, under_way, .. } = self;
        drop(under_way);
        client.channel().clone()
    }
}

impl<C: Channel> Calls for Caller<C> {
    fn calls(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let batch = batch_of(self.window);
        let last = self.done + count;
        let (wanted, is_thorough) = (self.digest, self.is_thorough);
        let is_right = |answer: &[u8]| wanted == read(answer, is_thorough);
        self.watch.begin(self.done);
        let first = Stamp::now();
        while self.done < last {
            let before = self.started;
            self.watch.start(before);
            let room = (self.window - self.under_way.len()) as u64;
            self.started = last.min(before + room);
            self.under_way.start(&self.client, &self.body, self.started - before);
            self.watch.leave(before, self.started);
            let ending = batch.min(self.under_way.len());
            self.under_way.end(ending, is_right)?;
            self.done += ending as u64;
            self.watch.come_back(self.done, recorder);
        }
        self.watch.end(recorder);
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }
}

impl<T: Calls, P: Provider> Target for RpcTarget<T, P> {
    fn run(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        self.calls.calls(count, recorder)
    }

    fn served_at(&self) -> &str {
        self.plan.as_ref().map_or("", |plan| plan.served_at())
    }

    fn close(self: Box<Self>) {
        let Self { calls, plan, close } = *self;
        close(calls);
        if let Some(plan) = plan {
            Box::new(plan).close();
        }
    }
}
