//! Calls over shared memory with both ends on one thread: something for callgrind to count, as `pair` is for the engine.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/pair_rpc raw 1 100000      raw or typed, window, rounds
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "shm")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::collections::VecDeque;

    use gimmal::{Answer, Client, Cx, Server, engine::Idle};
    use gimmal_bench::clock::Stamp;

    #[gimmal::service]
    trait Mirror {
        /// Sends the request back.
        #[raw]
        fn raw(&self, cx: &Cx, request: &[u8], answer: &mut Answer<'_>);
        /// As above, through the codec.
        async fn typed(&self, cx: &Cx, words: [u64; 8]) -> [u64; 8];
    }

    #[derive(Debug)]
    struct Glass;

    impl Mirror for Glass {
        fn raw(&self, _: &Cx, request: &[u8], answer: &mut Answer<'_>) {
            answer.write(request);
        }
        async fn typed(&self, _: &Cx, words: [u64; 8]) -> [u64; 8] {
            words
        }
    }

    let mut arguments = std::env::args().skip(1);
    let is_raw = arguments.next().is_none_or(|layer| layer == "raw");
    let mut next = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (window, rounds) = (next(1)?, next(100_000)?);
    let folder = tempfile::tempdir()?;
    let url = format!("shm://{}", folder.path().join("pair").display());
    let mut config = gimmal::config::Config::default();
    config.engine.idle = Idle::Spin;
    let builder = Server::builder().service(serve_mirror(Glass)).config(config.clone());
    let mut server = builder.listen_inline(&url)?;
    let client = MirrorClient::new(Client::builder().config(config).connect_inline(&url)?);
    // The handshake's last step is the server's.
    for _ in 0..1000 {
        server.turn();
        std::thread::sleep(std::time::Duration::from_micros(10));
    }
    let (body, words) = ([1; 64], [7; 8]);
    let (mut raw, mut typed) = (VecDeque::with_capacity(window), VecDeque::with_capacity(window));
    let start = Stamp::now();
    for _ in 0..rounds {
        for _ in 0..window {
            if is_raw {
                raw.push_back(client.raw(&body));
            } else {
                typed.push_back(client.typed(words));
            }
        }
        if window > 1 {
            // All but the first leave with a turn.
            client.channel().turn();
        }
        let mut served = 0;
        while served < window {
            served += server.turn();
        }
        while let Some(call) = raw.pop_front() {
            call.wait_with(|answer| assert_eq!(answer.len(), 64))?;
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
