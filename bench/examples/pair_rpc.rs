//! Calls over shared memory with both ends on one thread: something for callgrind to count, as `pair` is for the
//! engine.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/pair_rpc raw 1 100000 raw, pipeline, bytes, flat or typed,
//! window, rounds
//! ```
//! `pipeline` calls the raw method without a handle for each call.
//! `bytes` is an inline method of 64 bytes that serde knows to be bytes, `typed` an async one of eight numbers; both
//! through postcard. `flat` is the first through zerocopy.

#![forbid(unsafe_code)]

/// The service, and what it is called with.
#[cfg(feature = "shm")]
mod mirror {
    use gimmal::{
        Cx,
        codec::{InPlace, Zerocopy},
        config::Idle,
        raw::ResponseWriter,
    };
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error, Visitor},
    };

    /// Bytes that serde is told to be bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, gimmal::Shape)]
    #[shape(opaque = "64 bytes@1")]
    pub(crate) struct Block(pub(crate) [u8; 64]);

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
                    f.write_str("64 bytes")
                }
                fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Block, E> {
                    bytes.try_into().map(Block).map_err(|_| E::invalid_length(bytes.len(), &self))
                }
            }
            deserializer.deserialize_bytes(Bytes)
        }
    }

    #[gimmal::service]
    pub(crate) trait Mirror {
        /// Sends the request back.
        #[raw]
        fn raw(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
        /// Echoes bytes through the codec, decoded in place.
        #[inline]
        fn bytes(&self, cx: &Cx, block: Block) -> Block;
        /// Echoes a block that is not decoded at all.
        #[codec(Zerocopy)]
        #[inline]
        fn flat(&self, cx: &Cx, block: InPlace<'_, [u8; 64]>) -> [u8; 64];
        /// Numbers, through the codec.
        async fn typed(&self, cx: &Cx, words: [u64; 8]) -> [u64; 8];
    }

    /// Both ends never sleep.
    pub(crate) fn spinning() -> gimmal::Config {
        let mut config = gimmal::Config::default();
        config.engine.idle = Idle::Spin;
        config
    }

    /// What is called.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Layer {
        Raw,
        Pipeline,
        Bytes,
        Flat,
        Typed,
    }

    impl Layer {
        pub(crate) fn named(name: &str) -> Self {
            match name {
                "raw" => Self::Raw,
                "pipeline" => Self::Pipeline,
                "bytes" => Self::Bytes,
                "flat" => Self::Flat,
                _ => Self::Typed,
            }
        }
    }

    #[derive(Debug)]
    pub(crate) struct Glass;

    impl Mirror for Glass {
        fn raw(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
            answer.write(request);
        }
        fn bytes(&self, _: &Cx, block: Block) -> Block {
            block
        }
        fn flat(&self, _: &Cx, block: InPlace<'_, [u8; 64]>) -> [u8; 64] {
            *block
        }
        async fn typed(&self, _: &Cx, words: [u64; 8]) -> [u64; 8] {
            words
        }
    }
}

#[cfg(feature = "shm")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::collections::VecDeque;

    use gimmal::{Client, Server};
    use gimmal_bench::clock::Stamp;
    use mirror::{Block, Glass, Layer, MirrorClient, serve_mirror, spinning};

    let mut arguments = std::env::args().skip(1);
    let layer = Layer::named(arguments.next().as_deref().unwrap_or("raw"));
    let mut next = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (window, rounds) = (next(1)?, next(100_000)?);
    let folder = tempfile::tempdir()?;
    let url = format!("shm://{}", folder.path().join("pair").display());
    let config = spinning();
    let mut server =
        Server::builder().service(serve_mirror(Glass)).config(config.clone()).listen_local(&url)?;
    let client = MirrorClient::new(Client::builder().config(config).connect_local(&url)?);
    // The handshake's last step is the server's.
    for _ in 0..1000 {
        server.turn();
        std::thread::sleep(std::time::Duration::from_micros(10));
    }
    let (body, words) = ([1; 64], [7; 8]);
    let mut raw = VecDeque::with_capacity(window);
    let (mut bytes, mut typed) = (VecDeque::with_capacity(window), VecDeque::with_capacity(window));
    let (mut flat, mut pipeline) = (VecDeque::with_capacity(window), client.raw_pipeline());
    let start = Stamp::now();
    for _ in 0..rounds {
        if layer == Layer::Pipeline {
            pipeline.call_all((0..window as u64).map(|number| (number, &body[..])))?;
        }
        let handles = if layer == Layer::Pipeline { 0 } else { window };
        for _ in 0..handles {
            match layer {
                Layer::Bytes => bytes.push_back(client.bytes(Block(body))),
                Layer::Flat => flat.push_back(client.flat((&body).into())),
                Layer::Typed => typed.push_back(client.typed(words)),
                Layer::Raw | Layer::Pipeline => raw.push_back(client.raw(&body)),
            }
        }
        if window > 1 || layer == Layer::Pipeline {
            // All but the first leave with a turn.
            client.channel().turn();
        }
        let mut served = 0;
        while served < handles {
            served += server.turn();
        }
        // Not one frame each.
        while pipeline.under_way() > 0 {
            server.turn();
            pipeline.poll(|_, answer| assert_eq!(answer.expect("it answers").len(), 64));
        }
        while let Some(call) = raw.pop_front() {
            call.wait_with(|answer| assert_eq!(answer.len(), 64))?;
        }
        while let Some(call) = bytes.pop_front() {
            assert_eq!(call.wait()?, Block(body));
        }
        while let Some(call) = flat.pop_front() {
            assert_eq!(call.wait()?, body);
        }
        while let Some(call) = typed.pop_front() {
            assert_eq!(call.wait()?, words);
        }
    }
    let nanos = Stamp::now().nanos_since(start);
    println!("{} ns for {window} calls, nobody waiting", nanos / rounds.max(1) as u64);
    Ok(())
}

#[cfg(not(feature = "shm"))]
fn main() {
    println!("SKIP: built without shm");
}
