//! gimmal's ways over shared memory: the engine's echo, and typed calls inline, driven and handed off.

use std::{
    os::fd::AsFd as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Result, ensure};
use gimmal::{
    Client, Config, Cx, Instant, Server,
    codec::{InPlace, Zerocopy},
    config::Idle,
    local::LocalClient,
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
use tokio::io::{Interest, unix::AsyncFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::measure::{BYTES, Pins, Times, runtime, windowed};

/// For an answer.
const NAP: Duration = Duration::from_millis(20);

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
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

fn url(place: &Path) -> String {
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

/// All of what tokio needs to know of a driver: when its descriptor is readable.
fn on_tokio(driver: &Driver) -> Result<impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<()>> + use<>> {
    let fd = driver.as_fd().try_clone_to_owned()?;
    #[allow(deprecated, reason = "the way that replaces it is unsafe; nobody else has this descriptor")]
    let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
    Ok(move |context: &mut Context<'_>| fd.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready()))
}

/// On tokio's current-thread runtime, whose one thread also moves the calls.
pub(crate) fn driven_calls(place: &Path, calls: usize, window: usize) -> Result<Times> {
    runtime()?.block_on(async {
        let channel = Client::builder().connect_local(&url(place))?;
        let mut driver = channel.driver()?;
        let client = EchoClient::new(channel);
        let all = windowed(calls, window, async || {
            ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
            Ok(())
        });
        driver.run_until(on_tokio(&driver)?, all).await?
    })
}

/// Handed off to a worker thread, and awaited on tokio's current-thread runtime.
pub(crate) fn handed_off_calls(place: &Path, calls: usize, window: usize) -> Result<Times> {
    let client = EchoClient::new(Client::builder().connect(&url(place))?);
    runtime()?.block_on(windowed(calls, window, async || {
        ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
        Ok(())
    }))
}

/// Handed off by a thread that blocks until the answer is there.
pub(crate) fn blocking_calls(place: &Path, calls: usize) -> Result<Times> {
    let client = EchoClient::new(Client::builder().connect(&url(place))?);
    timed(calls, || Ok(client.echo(vec![7; BYTES]).wait()?))
}
