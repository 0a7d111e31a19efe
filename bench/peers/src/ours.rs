//! gimmal's ways: the engine's echo over shared memory, and typed calls inline, driven and handed off.

use std::{
    path::Path,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use anyhow::{Result, ensure};
use gimmal::{
    Channel as _, Client, Config, Cx, Instant, Server,
    codec::{InPlace, Zerocopy},
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

use crate::{
    case::{BYTES, Idling},
    measure::{Job, Stretch, Times, many_threads, windowed, windowed_on},
    post::Post,
};

/// A server is asked so often whether it is to end.
const NAP: Duration = Duration::from_millis(20);
/// For a server to end.
pub(crate) const STOP: Duration = Duration::from_secs(1);

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

pub(crate) fn config(idling: Idling) -> Config {
    let mut config = Config::default();
    config.engine.idle = idling.idle();
    config
}

/// On the calling thread, until the other process ends.
pub(crate) fn serve(post: &Post) -> Result<()> {
    let builder = Server::builder().service(serve_echo(Glass)).config(config(post.idling));
    let mut server = builder.listen_local(&post.place.url_to_listen())?;
    post.place.tell(server.address())?;
    server.run_until(NAP, || post.is_over());
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
pub(crate) fn messages(job: &Job) -> Result<Times> {
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
        client_core: job.pins.client,
        server_core: job.pins.server,
        same_host: true,
    };
    let address = Address::Shm { path: job.place.path().to_owned() };
    let mut target = InlineTarget::connect(&Shm, &address, &plan, 256 << 10)?;
    let calls = u64::try_from(job.calls)?;
    target.run(calls / 10, &mut Recorder::new()?)?;
    let mut recorder = Recorder::new()?;
    let stretch = Stretch::begin(job);
    target.run(calls, &mut recorder)?;
    let times = stretch.end(&mut recorder);
    Box::new(target).close();
    times
}

fn inline(job: &Job) -> Result<EchoClient<LocalClient>> {
    let builder = Client::builder().config(config(job.case.idling));
    Ok(EchoClient::new(builder.connect_local(&job.place.url()?)?))
}

/// What `call` brings back is compared after its time was taken, as the engine's echo is.
fn timed<B: PartialEq<[u8; BYTES]>>(job: &Job, mut call: impl FnMut() -> Result<B>) -> Result<Times> {
    let check = |body: &B| -> Result<()> {
        ensure!(*body == [7; BYTES], "another body");
        Ok(())
    };
    (0..job.calls / 10).try_for_each(|_| check(&call()?))?;
    let mut recorder = Recorder::new()?;
    let stretch = Stretch::begin(job);
    for _ in 0..job.calls {
        let start = Instant::now();
        let body = call()?;
        recorder.record(u64::try_from(start.elapsed().as_nanos())?);
        check(&body)?;
    }
    stretch.end(&mut recorder)
}

/// The calling thread is the worker, and the handler runs where the request landed.
pub(crate) fn inline_calls(job: &Job) -> Result<Times> {
    let (client, block) = (inline(job)?, Block([7; BYTES]));
    timed(job, || Ok(client.mirror(block).wait()?))
}

/// Typed inline calls by a codec that checks only the length.
pub(crate) fn flat_calls(job: &Job) -> Result<Times> {
    let (client, block) = (inline(job)?, Block([7; BYTES]));
    timed(job, || Ok(client.reflect((&block).into()).wait()?))
}

/// Typed inline calls with owned vectors, as tarpc has them.
pub(crate) fn inline_vectors(job: &Job) -> Result<Times> {
    let client = inline(job)?;
    timed(job, || Ok(client.echo(vec![7; BYTES]).wait()?))
}

/// The floor of the clients that are driven by a runtime: the same calls, polled in a loop without one.
pub(crate) fn polled_calls(job: &Job) -> Result<Times> {
    let channel = Client::builder().config(config(job.case.idling)).connect_local(&job.place.url()?)?;
    let client = EchoClient::new(channel.clone());
    let mut all = pin!(windowed(job, async || {
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

/// A client on tokio's current-thread runtime, whose one thread also moves the calls.
pub(crate) fn driven(
    job: &Job,
    main: impl AsyncFnOnce(on_tokio::LocalClient) -> Result<Times>,
) -> Result<Times> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    let builder = Client::builder().config(config(job.case.idling));
    let url = job.place.url()?;
    runtime.block_on(async { main(on_tokio::LocalClient::connect_with(builder, &url).await?).await })
}

/// Typed calls of a driven client.
pub(crate) fn driven_calls(job: &Job) -> Result<Times> {
    driven(job, async |channel| {
        let client = EchoClient::new(channel.clone());
        let all = windowed(job, async || {
            ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
            Ok(())
        });
        channel.run_until(all).await
    })
}

/// Turns and handlers are a task of tokio's current-thread runtime, until the other process ends.
pub(crate) async fn serve_on_one_thread(post: &Post) -> Result<()> {
    let builder = Server::builder().service(serve_echo(Glass)).runtime(Tokio::current()?);
    let server = builder.config(config(post.idling)).listen_local(&post.place.url_to_listen())?;
    post.place.tell(server.address())?;
    on_tokio::serve_until(server, post.until(), STOP).await?;
    Ok(())
}

/// Handlers run on a worker inside a multi-thread runtime, until the other process ends.
pub(crate) fn serve_in_runtime(post: &Post) -> Result<()> {
    many_threads()?.block_on(async {
        let builder = Server::builder().service(serve_echo(Glass)).runtime(Tokio::current()?);
        let server = builder.config(config(post.idling)).listen(&post.place.url_to_listen())?;
        post.place.tell(server.address())?;
        server.serve_until(post.until(), STOP).await;
        Ok(())
    })
}

fn handed_off(job: &Job) -> Result<EchoClient<Client>> {
    let builder = Client::builder().config(config(job.case.idling));
    Ok(EchoClient::new(builder.connect(&job.place.url()?)?))
}

/// Handed off to a worker thread, and awaited on `runtime`.
pub(crate) fn handed_off_calls(runtime: &Runtime, job: &Job) -> Result<Times> {
    let client = handed_off(job)?;
    windowed_on(runtime, job, move || {
        let client = client.clone();
        async move {
            ensure!(client.echo(vec![7; BYTES]).await? == [7; BYTES], "another body");
            Ok(())
        }
    })
}

/// Handed off by a thread that blocks until the answer is there.
pub(crate) fn blocking_calls(job: &Job) -> Result<Times> {
    let client = handed_off(job)?;
    timed(job, || Ok(client.echo(vec![7; BYTES]).wait()?))
}
