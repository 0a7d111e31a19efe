//! What reads and writes of a stream allocate: nothing, once its buffers have grown, at both ends and on a worker.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::{ErrorKind, Read as _, Write as _},
    sync::mpsc,
    time::Duration,
};

use allocation_counter::measure;
use gimmal::{Client, Server, local::LocalServer};
use gimmal_io::{Duplex, open};

const WARM_UP: usize = 400;
/// So many pieces at once warm up: more than the rounds that count have in flight.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 2000;

/// Turns, and sends so many bytes back as they arrive.
fn echo(server: &mut LocalServer, stream: &mut Duplex, mut left: usize) {
    let mut buffer = [0; 16 << 10];
    while left > 0 {
        server.idle(Duration::from_millis(1));
        let (recv, send) = stream.split();
        let read = match recv.try_read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => panic!("{error}"),
        };
        assert!(read > 0, "it ended early");
        left -= read;
        let mut written = 0;
        while written < read {
            match send.try_write(&buffer[written..read]) {
                Ok(bytes) => written += bytes,
                Err(_) => drop(server.idle(Duration::from_millis(1))),
            }
        }
    }
}

/// What the client's thread and the server's, which is its worker too, allocate for echoes of so many bytes.
fn allocated(len: usize) -> (u64, u64) {
    let (ready, listening) = mpsc::channel();
    let url = format!("mem://io-writes-{}-{len}", std::process::id());
    let theirs = url.clone();
    let serving = std::thread::spawn(move || {
        let (streams, mut incoming) = gimmal_io::serve(1);
        let mut server = Server::builder().service(streams).listen_local(&theirs).unwrap();
        ready.send(()).unwrap();
        let (_, mut stream) = loop {
            server.idle(Duration::from_millis(1));
            let context = std::task::Context::from_waker(std::task::Waker::noop());
            if let std::task::Poll::Ready(accepted) = incoming.poll_accept(&context) {
                break accepted.unwrap();
            }
        };
        echo(&mut server, &mut stream, WARM_UP * len);
        let counted = measure(|| echo(&mut server, &mut stream, ROUNDS * len));
        stream.split().1.finish();
        for _ in 0..50 {
            server.idle(Duration::from_millis(1));
        }
        counted.count_total
    });
    listening.recv().unwrap();
    let client = Client::connect(&url).unwrap();
    let mut stream = open(&client, "echo").blocking();
    let (sent, mut read) = (vec![7; AT_ONCE * len], vec![0; AT_ONCE * len]);
    let mut rounds = |rounds, len| {
        for _ in 0..rounds {
            stream.write_all(&sent[..len]).unwrap();
            stream.read_exact(&mut read[..len]).unwrap();
        }
    };
    rounds(WARM_UP / AT_ONCE, AT_ONCE * len);
    let counted = measure(|| rounds(ROUNDS, len));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    (counted.count_total, serving.join().unwrap())
}

#[test]
fn reads_and_writes_allocate_nothing() {
    for len in [64, 4000, 64 << 10] {
        let allocated = allocated(len);
        println!(
            "{len} bytes, {ROUNDS} times there and back: {allocated:?} allocations of the client and the server"
        );
        assert_eq!(allocated, (0, 0), "{len} bytes");
    }
}
