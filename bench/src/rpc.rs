//! The RPC layer's echoes: a raw method that reads its request in place and writes its answer in place, and a typed one.

use std::{collections::VecDeque, fmt, time::Duration};

use gimmal::{
    Answer, Call, CallError, Channel, Client, Cx, InlineClient, InlineServer, Postcard, RawCall, Server,
    engine::Idle,
};
use gimmal_engine::transport::{Address, Provider};

use crate::{
    clock::Stamp,
    crew::{Calls, Crew},
    error::BenchError,
    inline::InlineTarget,
    plan::{Layer, Mode, Plan, engine_config},
    recorder::Recorder,
    stream::{Source, serve_streams},
    target::{Target, body, digest, total},
    under_way::UnderWay,
};

/// Calls that are ended before others start in their places, at most: about what comes back with one turn.
const BATCH_MAX: usize = 8;

/// What is called.
#[gimmal::service]
pub(crate) trait Bench {
    /// Sends the request back.
    #[raw]
    fn echo(&self, cx: &Cx, request: &[u8], answer: &mut Answer<'_>);
    /// The same through the codec.
    async fn typed(&self, cx: &Cx, body: Vec<u8>) -> Vec<u8>;
}

#[derive(Debug)]
struct Mirror;

impl Bench for Mirror {
    fn echo(&self, _: &Cx, request: &[u8], answer: &mut Answer<'_>) {
        answer.write(request);
    }

    async fn typed(&self, _: &Cx, body: Vec<u8>) -> Vec<u8> {
        body
    }
}

/// A call of the typed method, as its client makes it.
type TypedCall<C> = Call<C, Postcard, gimmal::bytes::PlainBytes>;

/// A call under way.
enum Pending<C: Channel> {
    Raw(RawCall<C>),
    Typed(TypedCall<C>),
}

impl<C: Channel> Pending<C> {
    /// What `read` makes of its answer.
    #[inline]
    fn finish(self, read: impl FnOnce(&[u8]) -> u64) -> Result<u64, BenchError> {
        match self {
            Self::Raw(call) => call.wait_with(read).map_err(failed),
            Self::Typed(call) => call.wait().map(|body| read(&body)).map_err(failed),
        }
    }
}

fn config(plan: &Plan, ring_bytes: u32, idle: Idle) -> gimmal::config::Config {
    let default = gimmal::config::Config::default();
    gimmal::config::Config {
        engine: engine_config(plan.bytes + 64, ring_bytes, idle),
        window: plan.window.max(default.window),
        serving_max: plan.window.max(default.serving_max),
        ..default
    }
}

/// The server of `plan`, on the calling thread, beside the one at `address`.
///
/// # Errors
/// [`BenchError::Rpc`].
pub(crate) fn serve(address: &Address, plan: &Plan, ring_bytes: u32) -> Result<InlineServer, BenchError> {
    let beside = match address {
        Address::Shm { path } => format!("shm://{}-rpc", path.display()),
        Address::Rdma { host, via, .. } => {
            Address::Rdma { host: host.clone(), port: 0, via: via.clone() }.to_string()
        }
        Address::Mem { name } => format!("mem://{name}-rpc"),
    };
    let services = Server::builder().service(serve_bench(Mirror)).service(serve_streams(Source));
    let builder = services.config(config(plan, ring_bytes, Idle::default()));
    builder.listen_inline(&beside).map_err(|error| BenchError::Rpc(error.to_string()))
}

/// Calls through `C`.
struct Caller<C: Channel> {
    client: BenchClient<C>,
    body: Vec<u8>,
    digest: u64,
    is_thorough: bool,
    window: usize,
    is_typed: bool,
    under_way: VecDeque<Pending<C>>,
    /// When those left.
    times: UnderWay,
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

/// A client whose thread is its worker.
pub(crate) fn inline(url: &str, plan: &Plan, ring_bytes: u32) -> Result<InlineClient, BenchError> {
    let config = config(plan, ring_bytes, Idle::Spin);
    let connected = Client::builder().config(config).connect_inline(url);
    connected.map_err(|error| BenchError::Rpc(error.to_string()))
}

/// A client with a worker on the client's core.
pub(crate) fn handed_off(url: &str, plan: &Plan, ring_bytes: u32) -> Result<Client, BenchError> {
    let mut config = config(plan, ring_bytes, Idle::default());
    config.engine.cores = vec![plan.client_core];
    config.engine.inbox = config.engine.inbox.max(plan.window);
    let connected = Client::builder().config(config).connect(url);
    connected.map_err(|error| BenchError::Rpc(error.to_string()))
}

fn open<P: Provider>(
    url: &str,
    control: Option<InlineTarget<P>>,
    plan: &Plan,
    ring_bytes: u32,
) -> Result<Box<dyn Target>, BenchError> {
    match plan.mode {
        Mode::Inline => {
            let calls = Caller::new(inline(url, plan, ring_bytes)?, plan);
            let close = |calls: Caller<InlineClient>| {
                let client = calls.end();
                // A server that does not answer our goodbye sees us go.
                let _ = client.close(Duration::from_secs(1));
            };
            Ok(Box::new(RpcTarget { calls, plan: control, close }))
        }
        Mode::Handoff => {
            let client = handed_off(url, plan, ring_bytes)?;
            let calls = Crew::new((0..plan.threads).map(|_| Caller::new(client.clone(), plan)).collect())?;
            Ok(Box::new(RpcTarget { calls, plan: control, close: drop }))
        }
    }
}

fn failed<E: fmt::Display + fmt::Debug>(error: CallError<E>) -> BenchError {
    BenchError::Rpc(error.to_string())
}

impl<C: Channel> Caller<C> {
    fn new(client: C, plan: &Plan) -> Self {
        let (body, window) = (body(plan.bytes), plan.window / plan.threads);
        Self {
            client: BenchClient::new(client),
            digest: if plan.verify { total(&body) } else { digest(&body) },
            is_thorough: plan.verify,
            body,
            window,
            is_typed: plan.layer == Layer::Typed,
            under_way: VecDeque::with_capacity(window),
            times: UnderWay::new(window),
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
        let batch = (self.window / 4).clamp(1, BATCH_MAX);
        let (mut started, mut done) = (0, 0);
        let first = Stamp::now();
        let mut now = first;
        while done < count {
            let before = started;
            while started < count && self.under_way.len() < self.window {
                let call = if self.is_typed {
                    Pending::Typed(self.client.typed(self.body.clone()))
                } else {
                    Pending::Raw(self.client.echo(&self.body))
                };
                self.under_way.push_back(call);
                started += 1;
            }
            self.times.leave(now, started - before);
            let ending = batch.min(self.under_way.len());
            for call in self.under_way.drain(..ending) {
                let found =
                    call.finish(|answer| if self.is_thorough { total(answer) } else { digest(answer) })?;
                if found != self.digest {
                    return Err(BenchError::Wrong("another body"));
                }
            }
            now = Stamp::now();
            self.times.come_back(now, ending as u64, recorder);
            done += ending as u64;
        }
        recorder.busy(now.nanos_since(first));
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
