//! Items in memory of their own, without a worker.

use std::{
    collections::VecDeque,
    io::IoSlice,
    sync::atomic::{AtomicUsize, Ordering},
};

use gimmal_engine::transport::{Bulk, ConnId, Loan, mem::LoanHome};

use super::*;
use crate::{
    codec::{Encode, Postcard},
    draining::Signal,
};

/// Items of more bytes have memory of their own.
const FROM: usize = 100;
const LARGEST: usize = 100_000;

/// Lends, as long as it has `left` bytes, and counts what is not back.
#[derive(Debug)]
struct Memory {
    left: Arc<AtomicUsize>,
    signal: Arc<Signal>,
}

impl LoanHome for Memory {
    fn give_back(&self, bytes: u64) {
        self.left.fetch_add(usize::try_from(bytes).unwrap(), Ordering::Relaxed);
    }
}

impl Mover for Memory {
    fn look_at(&self, _: Arc<Lane>) {}

    fn loan(&self, _: ConnId, bytes: usize) -> Option<Loan> {
        let take = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let home = Arc::new(Self { left: Arc::clone(&self.left), signal: Arc::clone(&self.signal) });
        Loan::anonymous_from(bytes, bytes as u64, home).ok()
    }

    fn draining(&self) -> &Arc<Signal> {
        &self.signal
    }
}

/// A call with an upload, and the memory that its caller lends.
struct Upload {
    caller: Lanes,
    callee: Lanes,
    memory: Arc<AtomicUsize>,
    /// What the callee has not brought yet.
    on_way: VecDeque<(Arc<Lane>, u64, Loan)>,
}

const MEMORY: usize = 1 << 20;

impl Upload {
    fn new(budget: Budget) -> Self {
        let memory = Arc::new(AtomicUsize::new(MEMORY));
        let mover = Arc::new(Memory { left: Arc::clone(&memory), signal: Arc::default() });
        let budget = Arc::new(budget);
        let home = Arc::new(Home {
            mover,
            conn: ConnId::new(0, 1),
            lending: Lending { from: FROM, to: LARGEST },
            budget: Arc::clone(&budget),
        });
        let mut caller = lanes(true, false);
        caller.item_bytes_max = LARGEST;
        let callee = lanes_of_callee((true, false), 0, &budget, &mut None);
        for lanes in [&caller, &callee] {
            lanes.bind(&home, Owner::Caller(1));
        }
        Self { caller, callee, memory, on_way: VecDeque::new() }
    }

    fn sink<T>(&self) -> Sink<T>
    where
        Postcard: Encode<T>,
    {
        Sink::new::<Postcard>(self.caller.tx.clone().unwrap(), Woken)
    }

    fn stream<T>(&self) -> Stream<T>
    where
        Postcard: for<'a> Decode<'a, T>,
    {
        Stream::new::<Postcard>(self.callee.rx.clone().unwrap(), Woken)
    }

    /// Has everything leave that may, but what is in memory of its own comes later. How many of those.
    fn meet(&mut self) -> usize {
        let Self { caller, callee, on_way, .. } = self;
        let mut offered = 0;
        loop {
            while let Some(owed) = callee.next_owed(1000) {
                match owed {
                    Owed::Credit { bytes, .. } => assert!(caller.credited(bytes)),
                    Owed::Stop(code) => assert!(caller.stopped(code)),
                    other => panic!("{other:?}"),
                }
                callee.left(owed);
            }
            let Some(owed) = caller.next_owed(1000) else { return offered };
            match owed {
                Owed::Item { bytes, is_short, has_more } => {
                    assert!(callee.arrived(&caller.item()[..bytes], (is_short, has_more)));
                }
                Owed::Bulk { bytes, is_short } => {
                    let loan = caller.take_loan().and_then(|mut ahead| ahead.take()).unwrap();
                    assert_eq!(loan.len(), bytes);
                    match callee.offered(bytes as u64, is_short) {
                        Offered::Wanted(lane, number) => on_way.push_back((lane, number, loan)),
                        Offered::Unwanted => {}
                        Offered::Wrong(what) => panic!("{what}"),
                    }
                    offered += 1;
                }
                Owed::End => assert!(callee.ended(State::Ended)),
                Owed::Abort(code) => assert!(callee.ended(State::Aborted(code))),
                other => panic!("{other:?}"),
            }
            caller.left(owed);
        }
    }

    /// One that was on its way comes, not the first one first.
    fn bring(&mut self) {
        let at = self.on_way.len() / 2;
        if let Some((lane, number, loan)) = self.on_way.remove(at) {
            lane.came(number, Bulk::own(loan));
        }
    }

    fn is_whole(&self) -> bool {
        self.memory.load(Ordering::Relaxed) == MEMORY
    }
}

fn budget() -> Budget {
    Budget::of(WINDOW_MIN, 1 << 20, LARGEST)
}

fn item(number: usize) -> String {
    let letter = (b'a'..=b'z').cycle().nth(number).map(char::from).unwrap();
    String::from(letter).repeat([3, 90, 101, 0, 9000, 500][number % 6] + number % 5)
}

#[test]
fn large_items_come_in_memory_of_their_own_and_in_order() {
    let mut upload = Upload::new(budget());
    let (mut sink, mut stream) = (upload.sink::<String>(), upload.stream::<String>());
    let (mut sent, mut read, mut apart) = (0, 0, 0);
    while read < 300 {
        while sent < 300 && sink.try_send(&item(sent)).unwrap() {
            sent += 1;
        }
        apart += upload.meet();
        while let Poll::Ready(next) = stream.try_next() {
            assert_eq!(next.unwrap().unwrap(), item(read));
            read += 1;
        }
        upload.bring();
    }
    assert_eq!(apart, (0..300).filter(|number| item(*number).len() > FROM - 2).count());
    sink.finish();
    upload.meet();
    assert!(matches!(stream.try_next(), Poll::Ready(None)));
    assert!(upload.is_whole());
}

#[test]
fn the_end_waits_for_what_is_on_its_way_whatever_became_of_the_call() {
    let mut upload = Upload::new(budget());
    let (mut sink, mut stream) = (upload.sink::<String>(), upload.stream::<String>());
    for number in [4, 0, 10] {
        assert!(sink.try_send(&item(number)).unwrap());
    }
    sink.finish();
    assert_eq!(upload.meet(), 1, "the window is used up");
    upload.bring();
    assert_eq!(stream.try_next(), Poll::Ready(Some(Ok(item(4)))));
    assert_eq!(upload.meet(), 1);
    let Upload { callee, on_way, .. } = &mut upload;
    // The call is over for its worker, and the lane is not.
    *callee = lanes(false, false);
    assert_eq!(stream.try_next(), Poll::Ready(Some(Ok(item(0)))));
    assert!(stream.try_next().is_pending());
    let (lane, number, loan) = on_way.pop_front().unwrap();
    lane.came(number, Bulk::own(loan));
    assert_eq!(stream.try_next(), Poll::Ready(Some(Ok(item(10)))));
    assert!(matches!(stream.try_next(), Poll::Ready(None)));
    drop(stream);
    assert!(upload.is_whole());
}

#[test]
fn what_is_behind_a_lost_item_is_not_given_to_anybody() {
    let mut upload = Upload::new(Budget::of(1 << 20, 64 << 20, LARGEST));
    let (mut sink, mut stream) = (upload.sink::<String>(), upload.stream::<String>());
    for number in [0, 4, 1, 10, 2] {
        assert!(sink.try_send(&item(number)).unwrap());
        upload.meet();
    }
    sink.finish();
    upload.meet();
    let (lane, number, loan) = upload.on_way.pop_back().unwrap();
    lane.came(number, Bulk::own(loan));
    let (lane, number, loan) = upload.on_way.remove(1).unwrap();
    lane.lose(number);
    drop(loan);
    upload.bring();
    for number in [0, 4, 1] {
        assert_eq!(stream.try_next(), Poll::Ready(Some(Ok(item(number)))));
    }
    for _ in 0..3 {
        assert_eq!(stream.try_next(), Poll::Ready(Some(Err(ReadError::Over))));
    }
    assert!(upload.is_whole());
}

#[test]
fn memory_comes_back_whoever_goes_first() {
    for case in 0..5 {
        let mut upload = Upload::new(Budget::of(1 << 20, 64 << 20, LARGEST));
        let (mut sink, stream) = (upload.sink::<String>(), upload.stream::<String>());
        let mut reader = None;
        for number in [4, 10, 16] {
            assert!(sink.try_send(&item(number)).unwrap());
            if number < 16 {
                upload.meet();
            }
        }
        assert!(!upload.is_whole());
        match case {
            // The reader is dropped, before and after what is on its way comes.
            0 => drop(stream),
            1 => {
                upload.bring();
                drop(stream);
            }
            // It stops the stream.
            2 => stream.stop(7),
            // The call is dropped by its user, or ends otherwise, while its reader goes on.
            3 => {
                reader = Some(stream);
                drop(upload.caller.tie());
            }
            _ => {
                reader = Some(stream);
                upload.caller = lanes(false, false);
            }
        }
        upload.meet();
        while !upload.on_way.is_empty() {
            upload.bring();
        }
        upload.callee = lanes(false, false);
        upload.caller = lanes(false, false);
        drop(reader);
        assert!(upload.is_whole(), "case {case}");
    }
}

#[test]
fn bytes_are_copied_where_there_is_no_memory_to_lend() {
    let mut upload = Upload::new(Budget::of(1 << 20, 64 << 20, LARGEST));
    upload.memory.store(70_000, Ordering::Relaxed);
    let (mut sink, mut stream) =
        (ByteSink::from(upload.sink::<Vec<u8>>()), ByteStream::from(upload.stream::<Vec<u8>>()));
    let all: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    let (mut sent, mut read, mut apart) = (0, 0, 0);
    while read < all.len() {
        while sent < all.len()
            && let Poll::Ready(written) = sink.try_write(&[IoSlice::new(&all[sent..]), IoSlice::new(b"")])
        {
            sent += written.unwrap();
        }
        apart += upload.meet();
        upload.bring();
        while let Poll::Ready(here) = stream.try_fill() {
            let here = here.unwrap();
            let taken = here.len().min(7000);
            assert_eq!(here[..taken], all[read..read + taken]);
            read += taken;
            stream.consume(taken);
        }
    }
    assert!((1..10).contains(&apart), "{apart} of them in memory of their own");
    sink.finish();
    upload.meet();
    assert_eq!(stream.try_fill(), Poll::Ready(Ok(&[][..])));
}

#[test]
fn a_user_keeps_items_without_a_copy_but_not_too_many() {
    let mut upload = Upload::new(Budget::of(1 << 20, 64 << 20, LARGEST).keeping(20_000));
    let (mut sink, mut stream) = (upload.sink::<String>(), upload.stream::<String>());
    let context = Context::from_waker(std::task::Waker::noop());
    let mut kept = Vec::new();
    for _ in 0..3 {
        assert!(sink.try_send(&item(4)).unwrap());
        upload.meet();
        upload.bring();
        kept.push(stream.poll_item(&context, |item| match item {
            Item::Kept(kept) => (Some(kept), 0),
            Item::Copied(bytes) => (None, bytes.len()),
            Item::Here(bytes) => (None, bytes.len()),
        }));
    }
    let kept: Vec<_> =
        kept.into_iter().map(|item| matches!(item, Poll::Ready(Some(Ok((Some(_), 0)))))).collect();
    assert_eq!(kept, [true, true, false], "the third is above 20,000 bytes");
    assert!(upload.is_whole());
    let (mut sink, mut stream) = (ByteSink::from(sink), ByteStream::from(stream));
    for len in [30, 70_000] {
        assert_eq!(sink.try_write(&[IoSlice::new(&vec![7; len])]), Poll::Ready(Ok(len)));
        upload.meet();
    }
    assert_eq!(stream.try_fill().map(|here| here.map(<[u8]>::len)), Poll::Ready(Ok(30)));
    assert!(matches!(stream.take(), (Item::Copied(bytes), 0) if bytes.len() == 30));
    upload.bring();
    assert!(stream.try_fill().is_pending(), "the one before it is on its way");
    upload.bring();
    assert!(stream.try_fill().is_ready());
    assert!(matches!(stream.take(), (Item::Copied(bytes), 0) if bytes.len() == 65_536), "above 20,000 bytes");
}

#[test]
fn r93_bulk_without_credit_or_within_an_item_is_refused() {
    let budget = Arc::new(budget());
    let offered = |callee: &mut Lanes, bytes| match callee.offered(bytes, false) {
        Offered::Wrong(what) => what,
        other => panic!("{other:?}"),
    };
    let mut callee = lanes_of_callee((true, false), 0, &budget, &mut None);
    assert_eq!(offered(&mut callee, 5000), "an item of a stream without credit");
    callee.granted = 4096;
    assert_eq!(offered(&mut callee, 0), "bulk of a stream, empty or within an item");
    assert!(matches!(callee.offered(u64::MAX, false), Offered::Unwanted), "above what this side takes");
    let mut stream = Stream::<u8>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    assert_eq!(stream.try_next(), Poll::Ready(Some(Err(ReadError::TooLarge(LARGEST.try_into().unwrap())))));
    assert_eq!(offered(&mut callee, 5000), "an item of a stream without credit");
}
