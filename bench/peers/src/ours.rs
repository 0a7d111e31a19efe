//! gimmal's ways over shared memory: the engine's echo, and typed calls inline, driven and handed off.

use std::{
    path::Path,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use anyhow::{Result, ensure};
use gimmal::{
    Channel as _, Client, Config, Cx, Instant, Server,
    codec::{InPlace, Zerocopy},
    config::Idle,
    local::LocalClient,
    tokio::{self as on_tokio, Tokio},
};
use gimmal_bench::{
    inline::InlineTarget,
    plan::{Layer, Mode, Plan},
    recorder::Recorder,
    serve::{ServeOptions, serve as serve_engine},
    target::Target as _,
};
use gimmal_engine::transport::{Address, shm::Shm};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};
use tokio::runtime::Runtime;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::measure::{BYTES, Pins, Times, many_threads, runtime, windowed, windowed_on};

/// For an answer.
const NAP: Duration = Duration::from_millis(20);
/// For a server to end.
const STOP: Duration = Duration::from_secs(1);

/// What is called.
#[gimmal::service]
trait Echo {
    /// As tarpc's: sends the body back.
    async fn echo(&self, cx: &Cx, body: Vec<u8>) -> Vec<u8>;
    /// Echoes a block in place; serde treats its type as bytes.
    #[inline]
    fn mirror(&self, cx: &Cx, body: Block) -> Block;
    /// Echoes a block that is not decoded at all.
    #[codec(Zerocopy)]
    #[inline]
    fn reflect(&self, cx: &Cx, body: InPlace<'_, Block>) -> Block;
}

/// Bytes that serde is told to be bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, gimmal::Shape)]
#[repr(transparent)]
pub(crate) struct Block([u8; BYTES]);

impl PartialEq<[u8; BYTES]> for Block {
    fn eq(&self, other: &[u8; BYTES]) -> bool {
        self.0 == *other
    }
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Block;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{BYTES} bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Block, E> {
                bytes.try_into().map(Block).map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

struct Glass;

impl Echo for Glass {
    async fn echo(&self, _: &Cx, body: Vec<u8>) -> Vec<u8> {
        body
    }

    fn mirror(&self, _: &Cx, body: Block) -> Block {
        body
    }

    fn reflect(&self, _: &Cx, body: InPlace<'_, Block>) -> Block {
        *body
    }
}

fn config(idle: Idle) -> Config {
    let mut config = Config::default();
    config.engine.idle = idle;
    config
}

pub(crate) fn url(place: &Path) -> String {
    format!("shm://{}", place.display())
}

/// Until `stop`; never sleeps if it `spins`, else as the default configuration says.
pub(crate) fn serve(place: &Path, spins: bool, stop: &AtomicBool) -> Result<()> {
    let idle = if spins { Idle::Spin } else { Idle::default() };
    let builder = Server::builder().service(serve_echo(Glass)).config(config(idle));
    let mut server = builder.listen_local(&url(place))?;
    server.run_until(NAP, || stop.load(Ordering::Relaxed));
    Ok(())
}

/// The engine's echo; until it is killed.
pub(crate) fn serve_messages(place: &Path) -> Result<()> {
    let options = ServeOptions {
        address: Address::Shm { path: place.to_owned() },
        ring_bytes: 256 << 10,
        piece_bytes: None,
        is_child: false,
        is_tied: false,
        is_asleep: false,
        beside: vec![],
        stall: Duration::ZERO,
        corrupt: None,
    };
    Ok(serve_engine(&Shm, &options)?)
}

/// The engine's echo, as `gimmal-bench lat --layer engine` makes it.
pub(crate) fn messages(place: &Path, pins: Pins, calls: usize) -> Result<Times> {
    let plan = Plan {
        layer: Layer::Engine,
        mode: Mode::Inline,
        bytes: BYTES,
        window: 1,
        threads: 1,
        block: 0,
        // Typed callers read every byte of the answer: so does this one.
        verify: true,
        keeps_accepting: false,
        client_core: pins.client,
        server_core: pins.server,
        same_host: true,
    };
    let address = Address::Shm { path: place.to_owned() };
    let mut target = InlineTarget::connect(&Shm, &address, &plan, 256 << 10)?;
    let calls = u64::try_from(calls)?;
    target.run(calls / 10, &mut Recorder::new()?)?;
    let mut recorder = Recorder::new()?;
    target.run(calls, &mut recorder)?;
    Box::new(target).close();
    Ok(Times { median_ns: recorder.fine_median_ns(), per_second: recorder.per_second() })
}

fn inline(place: &Path) -> Result<EchoClient<LocalClient>> {
    Ok(EchoClient::new(Client::builder().config(config(Idle::Spin)).connect_local(&url(place))?))
}

/// What `call` brings back is compared after its time was taken, as the engine's echo is.
fn timed<B: PartialEq<[u8; BYTES]>>(calls: usize, mut call: impl FnMut() -> Result<B>) -> Result<Times> {
    let check = |body: &B| -> Result<()> {
        ensure!(*body == [7; BYTES], "another body");
        Ok(())
    };
    (0..calls / 10).try_for_each(|_| check(&call()?))?;
    let mut recorder = Recorder::new()?;
    let first = Instant::now();
    for _ in 0..calls {
        let start = Instant::now();
        let body = call()?;
        recorder.record(u64::try_from(start.elapsed().as_nanos())?);
        check(&body)?;
    }
    Times::of(&mut recorder, first)
}

/// The calling thread is the worker, and the handler runs where the request landed.
pub(crate) fn inline_calls(place: &Path, calls: usize) -> Result<Times> {
    let (client, block) = (inline(place)?, Block([7; BYTES]));
    timed(calls, || Ok(client.mirror(block).wait()?))
}

/// Typed inline calls by a codec that checks only the length.
pub(crate) fn flat_calls(place: &Path, calls: usize) -> Result<Times> {
    let (client, block) = (inline(place)?, Block([7; BYTES]));
    timed(calls, || Ok(client.reflect((&block).into()).wait()?))
}

/// Typed inline calls with owned vectors, as tarpc has them.
pub(crate) fn inline_vectors(place: &Path, calls: usize) -> Result<Times> {
    let client = inline(place)?;
    timed(calls, || Ok(client.echo(vec![7; BYTES]).wait()?))
}

/// The floor of the clients that are driven by a runtime: the same calls, polled in a loop without one.
pub(crate) fn polled_calls(place: &Path, calls: usize, window: usize) -> Result<Times> {
    let channel = Client::builder().config(config(Idle::Spin)).connect_local(&url(place))?;
    let client = EchoClient::new(channel.clone());
    let mut all = pin!(windowed(calls, window, async || {
        ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
        Ok(())
    }));
    loop {
        if let Poll::Ready(times) = all.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return times;
        }
        channel.drive(Duration::ZERO);
    }
}

/// On tokio's current-thread runtime, whose one thread also moves the calls.
pub(crate) fn driven_calls(place: &Path, calls: usize, window: usize) -> Result<Times> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(async {
        let channel = on_tokio::LocalClient::connect(&url(place)).await?;
        let client = EchoClient::new(channel.clone());
        let all = windowed(calls, window, async || {
            ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
            Ok(())
        });
        channel.run_until(all).await
    })
}

/// Turns and handlers are a task of tokio's current-thread runtime; until `stop`.
pub(crate) fn serve_on_one_thread(place: &Path, stop: &AtomicBool) -> Result<()> {
    runtime()?.block_on(async {
        let builder = Server::builder().service(serve_echo(Glass)).runtime(Tokio::current()?);
        let server = builder.listen_local(&url(place))?;
        on_tokio::serve_until(server, until(stop), STOP).await?;
        Ok(())
    })
}

/// Handlers run on a worker inside a multi-thread runtime; until `stop`.
pub(crate) fn serve_in_runtime(place: &Path, stop: &AtomicBool) -> Result<()> {
    many_threads()?.block_on(async {
        let builder = Server::builder().service(serve_echo(Glass)).runtime(Tokio::current()?);
        builder.listen(&url(place))?.serve_until(until(stop), STOP).await;
        Ok(())
    })
}

pub(crate) async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(NAP).await;
    }
}

/// Handed off to a worker thread, and awaited on `runtime`.
pub(crate) fn handed_off_calls(
    runtime: &Runtime,
    place: &Path,
    calls: usize,
    window: usize,
) -> Result<Times> {
    let client = EchoClient::new(Client::builder().connect(&url(place))?);
    windowed_on(runtime, calls, window, move || {
        let client = client.clone();
        async move {
            ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
            Ok(())
        }
    })
}

/// Handed off by a thread that blocks until the answer is there.
pub(crate) fn blocking_calls(place: &Path, calls: usize) -> Result<Times> {
    let client = EchoClient::new(Client::builder().connect(&url(place))?);
    timed(calls, || Ok(client.echo(vec![7; BYTES]).wait()?))
}
