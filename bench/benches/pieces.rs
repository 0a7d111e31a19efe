//! The pieces of the hot path, each alone: frame words, ring cursors, hellos, credit, codecs, the histogram of this
//! program, and an engine's echo on one thread.
//!
//! `cargo bench -p gimmal-bench --bench pieces`; with `-- --test` each runs once.

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use gimmal_bench::{pair::Pair, recorder::Recorder};
use gimmal_engine::{
    proto::{Lane, RxLedger, TxWindow},
    transport::{
        Address, Capabilities, FrameWord, Hello, Negotiated, PortConfig, Position, Provider, Tag,
        frame::span, hello::Feature,
    },
};
use gimmal_sim::{Sim, SimConfig};
use serde::{Deserialize, Serialize};

fn hello() -> Hello {
    Hello {
        features: Feature::RING,
        ring_bytes: 256 << 10,
        slot_bytes: 16 << 10,
        arrivals: 64,
        responder_resources: 16,
        initiator_depth: 16,
        lane: 0,
        service: 0,
        nonce: 0x1234_5678_9abc_def0,
    }
}

fn negotiated(credit_words: bool) -> Negotiated {
    let caps = Capabilities {
        ring: true,
        credit_words,
        arrivals: !credit_words,
        bulk_in_place: credit_words,
        atomics: false,
        transfers_in_post: false,
        responder_resources: 16,
        initiator_depth: 16,
        inline_bytes: 220,
        message_bytes: 1 << 31,
        timers: false,
    };
    Negotiated::settle("bench", &caps, &PortConfig::default(), &hello(), &hello()).expect("two good hellos")
}

fn words(criterion: &mut Criterion) {
    criterion.bench_function("frame word, written and parsed", |bench| {
        bench.iter(|| {
            let word = FrameWord::new(black_box(72), Tag(2));
            FrameWord::parse(black_box(word.bits()), 64 << 10)
        });
    });
    criterion.bench_function("hello encode", |bench| bench.iter(|| black_box(hello()).encode()));
    let bytes = hello().encode();
    criterion.bench_function("hello decode", |bench| bench.iter(|| Hello::decode(black_box(&bytes))));
}

/// Where a stream's next frame lies in its ring: a position is moved on, measured against another, and made an offset.
fn cursor(criterion: &mut Criterion) {
    const RING_BYTES: u64 = 256 << 10;
    let (mut head, mut tail) = (Position(0), Position(0));
    criterion.bench_function("ring cursor, one frame", |bench| {
        bench.iter(|| {
            head = head.plus(span(black_box(72)) as u64);
            if head.since(tail) > RING_BYTES / 2 {
                tail = head;
            }
            black_box(head.offset(black_box(256 << 10)))
        });
    });
}

/// What the bench itself does for each round trip, and once for each slice.
fn histogram(criterion: &mut Criterion) {
    let mut recorder = Recorder::new().expect("its bounds are constant");
    let mut nanos = 250;
    criterion.bench_function("histogram, one time recorded", |bench| {
        bench.iter(|| {
            nanos = 250 + (nanos * 31 + 7) % 100_000;
            recorder.record(black_box(nanos));
        });
    });
    recorder.reset();
    (0..100_000).for_each(|time| recorder.record(250 + time * 31 % 100_000));
    criterion.bench_function("histogram, p99.9 of 100,000", |bench| {
        bench.iter(|| black_box(&recorder).quantile_ns(0.999));
    });
    let mut sum = recorder.clone();
    criterion.bench_function("histogram, a slice added", |bench| {
        bench.iter(|| sum.add(black_box(&recorder)).expect("the same bounds"));
    });
}

/// One frame there and its credit back, as the pure core sees it.
fn credit(criterion: &mut Criterion) {
    const PAYLOAD: usize = 72;
    for (name, credit_words) in [("words", true), ("frames", false)] {
        let negotiated = negotiated(credit_words);
        let (mut window, mut ledger) = (TxWindow::new(&negotiated, true), RxLedger::new(&negotiated, 25));
        let (mut head, mut posted) = (Position(0), u64::from(negotiated.rx_arrivals));
        criterion.bench_function(&format!("window and ledger, one frame, credit in {name}"), |bench| {
            bench.iter(|| {
                let room = window.room(PAYLOAD, Lane::Data).expect("credit comes back every time");
                head = head.plus(span(PAYLOAD) as u64);
                let chain = window.chain(PAYLOAD);
                window.committed(head, chain);
                window.flushed();
                window.handle_completed(head);
                ledger.handle_receive();
                ledger.handle_run(head).expect("within the ring");
                posted += 1;
                ledger.handle_posted(posted);
                black_box(ledger.owed());
                let credit = ledger.credit();
                ledger.handle_told(credit);
                window.handle_credit(credit).expect("what the ledger says is true");
                room
            });
        });
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    digest: [u8; 32],
}

fn codec(criterion: &mut Criterion) {
    let entry = Entry { name: "share/doc/rust/html/index.html".to_owned(), bytes: 65_536, digest: [7; 32] };
    let mut buffer = [0; 128];
    criterion.bench_function("postcard encode, in place", |bench| {
        bench.iter(|| postcard::to_slice(black_box(&entry), &mut buffer).map(|used| used.len()));
    });
    let encoded = postcard::to_stdvec(&entry).expect("it fits in memory");
    criterion.bench_function("postcard decode", |bench| {
        bench.iter(|| postcard::from_bytes::<Entry>(black_box(&encoded)));
    });
}

fn pair<P: Provider>(criterion: &mut Criterion, name: &str, provider: &P, address: &Address) {
    let mut pair = Pair::connect(provider, address, 64).expect("a machine with memory");
    for window in [1, 32] {
        criterion.bench_function(
            &format!("engine echo on {name}, one thread, {window} x 64 bytes"),
            |bench| {
                bench.iter(|| pair.echo(window).expect("a connection to ourselves"));
            },
        );
    }
    criterion.bench_function(&format!("two empty turns on {name}"), |bench| bench.iter(|| pair.idle()));
}

fn engines(criterion: &mut Criterion) {
    let sim = Sim::new(SimConfig { real_time: true, ..SimConfig::default() });
    pair(criterion, "sim", &sim, &Address::Mem { name: "pieces".to_owned() });
    #[cfg(feature = "shm")]
    {
        let folder = tempfile::tempdir().expect("a place for a socket");
        let address = Address::Shm { path: folder.path().join("pieces") };
        pair(criterion, "shm", &gimmal_transport::shm::Shm, &address);
    }
}

criterion_group! {
    name = pieces;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = words, cursor, credit, codec, histogram, engines
}
criterion_main!(pieces);
