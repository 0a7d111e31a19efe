//! Lanes, credit and ends, without a worker.

use std::{io::IoSlice, task::Waker};

use gimmal_engine::transport::Bulk;

use super::*;
use crate::codec::Postcard;

/// Most bytes of a message.
const MESSAGE: usize = 1000;
/// Most bytes of an item in parts.
const LARGEST: usize = 100_000;

/// Windows of 4 KiB.
fn budget() -> Arc<Budget> {
    Budget::new(WINDOW_MIN, 1 << 20, LARGEST)
}

fn up(budget: &Arc<Budget>) -> (Lanes, Lanes) {
    (lanes(true, false), lanes_of_callee((true, false), 0, budget, &mut None))
}

impl Lanes {
    /// Whether the peer may send anything.
    pub(crate) const fn is_granted(&self) -> bool {
        self.granted > 0
    }

    fn owed(&mut self) -> Option<Owed> {
        self.next_owed(MESSAGE)
    }

    /// Has everything leave for `other` that may, until nothing moves.
    fn meet(&mut self, other: &mut Self) {
        loop {
            let moved = self.send_to(other) + other.send_to(self);
            if moved == 0 {
                return;
            }
        }
    }

    fn send_to(&mut self, other: &mut Self) -> usize {
        let mut sent = 0;
        while let Some(owed) = self.owed() {
            let fine = match owed {
                Owed::Item { bytes, is_short, has_more } => {
                    other.arrived(&self.item()[..bytes], (is_short, has_more))
                }
                Owed::Bulk { is_short, .. } => {
                    let loan = self.take_loan().and_then(|mut ahead| ahead.take()).unwrap();
                    match other.offered(loan.len() as u64, is_short) {
                        Offered::Wanted(lane, number) => lane.came(number, Bulk::own(loan)),
                        Offered::Unwanted => {}
                        Offered::Wrong(what) => panic!("{what}"),
                    }
                    true
                }
                Owed::Credit { bytes, .. } => other.credited(bytes),
                Owed::Stop(code) => other.stopped(code),
                Owed::End => other.ended(State::Ended),
                Owed::Abort(code) => other.ended(State::Aborted(code)),
            };
            assert!(fine, "{owed:?}");
            self.left(owed);
            sent += 1;
        }
        sent
    }
}

#[test]
fn items_credit_and_the_end_go_in_order_and_within_the_window() {
    let budget = budget();
    let (mut caller, mut callee) = up(&budget);
    let mut sink = Sink::<u32>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<u32>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    sink.blocking_send(&0).unwrap();
    assert!(caller.owed().is_none(), "nothing goes without credit");
    let (mut sent, mut read) = (1, 0);
    for _ in 0..200 {
        while sent - read < 100 && sink.try_send(&sent).unwrap() {
            sent += 1;
        }
        caller.meet(&mut callee);
        let lies = i64::from(WINDOW_MIN) - callee.granted;
        assert!(lies <= i64::from(WINDOW_MIN) + 70, "{lies} bytes");
        for _ in 0..7 {
            assert_eq!(stream.blocking_next().unwrap().unwrap(), read);
            read += 1;
        }
    }
    sink.finish();
    while read < sent {
        caller.meet(&mut callee);
        assert_eq!(stream.blocking_next().unwrap().unwrap(), read);
        read += 1;
    }
    assert!(stream.blocking_next().is_none());
    assert!(!callee.ended(State::Aborted(0)), "a second end");
    assert!(!callee.arrived(&[1], (false, false)), "an item after the end");
    drop(callee);
    assert_eq!(budget.left(), 1 << 20);
}

/// The last item may cost more than is left of the window, and only one does.
#[test]
fn an_item_above_the_window_goes_alone() {
    // It cannot grow.
    let (mut caller, mut callee) = up(&Budget::new(WINDOW_MIN, WINDOW_MIN as usize, LARGEST));
    let mut sink = Sink::<Vec<u8>>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<Vec<u8>>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    let item = vec![7; 3 * WINDOW_MIN as usize];
    assert!(sink.try_send(&item).unwrap());
    for _ in 0..4 {
        assert!(sink.try_send(&item).unwrap());
        caller.meet(&mut callee);
        assert_eq!(stream.exit.lane.len(), 1, "one at a time");
        assert_eq!(stream.blocking_next(), Some(Ok(item.clone())));
    }
}

#[test]
fn a_window_grows_for_a_reader_that_keeps_up_and_for_no_other() {
    for keeps_up in [true, false] {
        let budget = budget();
        let (mut caller, mut callee) = up(&budget);
        let mut sink = Sink::<[u8; 32]>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
        let mut stream = Stream::<[u8; 32]>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
        for _ in 0..1000 {
            while sink.try_send(&[1; 32]).unwrap() {}
            caller.meet(&mut callee);
            while let Poll::Ready(item) = stream.try_next() {
                item.unwrap().unwrap();
                if !keeps_up {
                    break;
                }
            }
        }
        let window = callee.window.as_ref().unwrap().bytes();
        assert_eq!(keeps_up, window > WINDOW_MIN, "{window}");
        assert!(i64::from(window) + budget.left() == 1 << 20, "within the budget");
    }
}

#[test]
fn a_byte_stream_is_cut_and_joined_as_messages_have_room() {
    let (mut caller, mut callee) = up(&Budget::new(WINDOW_MAX, 1 << 30, LARGEST));
    caller.credit = 1 << 20;
    let tx = caller.tx.clone().unwrap();
    tx.be_bytes();
    assert_eq!(tx.put_bytes([&b"ab"[..], b"", b"cd"].into_iter()), 4);
    assert_eq!(tx.put_bytes([&b"e"[..]].into_iter()), 1);
    let mut arrived = Vec::new();
    while let Some(owed @ Owed::Item { bytes, .. }) = caller.next_owed(3) {
        arrived.push(caller.item()[..bytes].to_vec());
        caller.left(owed);
    }
    assert_eq!(arrived, [b"abc".to_vec(), b"de".to_vec()]);
    let written = tx.put_bytes([&[1; 200_000][..]].into_iter());
    assert!(written < 80_000, "no more than the worker's turn: {written}");
    assert!(callee.owed().is_some());
}

#[test]
fn a_reader_that_stops_is_heard_and_gets_nothing_more() {
    let (mut caller, mut callee) = up(&budget());
    let mut sink = Sink::<u8>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let stream = Stream::<u8>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    sink.blocking_send(&7).unwrap();
    caller.meet(&mut callee);
    sink.blocking_send(&8).unwrap();
    stream.stop(42);
    caller.meet(&mut callee);
    assert_eq!(sink.blocking_send(&1), Err(StreamError::Stopped(42)));
    assert!(caller.owed().is_none() && callee.owed().is_none(), "it is said once");
    drop(caller);
    assert_eq!(sink.blocking_send(&1), Err(StreamError::Stopped(42)), "the first reason stays");
}

#[test]
fn a_stream_that_is_given_up_with_a_code_says_it_behind_its_items() {
    let (mut caller, mut callee, sink, mut stream) = uploading();
    sink.reset(9);
    caller.meet(&mut callee);
    assert_eq!(stream.blocking_next(), Some(Ok(7)));
    assert_eq!(stream.blocking_next(), Some(Err(ReadError::Aborted(9))));
    // Down, whatever the handler returns.
    let budget = budget();
    for code in [None, Some(3)] {
        let mut caller = lanes(false, true);
        let mut callee = lanes_of_callee((false, true), caller.open(&budget), &budget, &mut None);
        let sink = Sink::<u8>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
        let mut stream = Stream::<u8>::new::<Postcard>(caller.rx.clone().unwrap(), Woken);
        match code {
            None => sink.half_close(),
            Some(code) => sink.reset(code),
        }
        caller.meet(&mut callee);
        assert_eq!(stream.blocking_next(), code.map(|code| Err(ReadError::Aborted(code))));
        assert!(callee.may_answer(true) && !callee.is_aborted());
    }
}

#[test]
fn a_byte_stream_that_is_abandoned_says_so_in_front_of_what_has_not_left() {
    let budget = Budget::new(WINDOW_MIN, WINDOW_MIN as usize, LARGEST);
    let (mut caller, mut callee) = up(&budget);
    let mut sink = ByteSink::from(Sink::<Vec<u8>>::new::<Postcard>(caller.tx.clone().unwrap(), Woken));
    let mut stream = ByteStream::from(Stream::<Vec<u8>>::new::<Postcard>(callee.rx.clone().unwrap(), Woken));
    let context = &Context::from_waker(Waker::noop());
    // More than the window, in its lane and in its worker's hands.
    let mut written = 0;
    while let Poll::Ready(more) = sink.try_write(&[IoSlice::new(&[7; 1000])]) {
        written += more.unwrap();
        caller.meet(&mut callee);
    }
    assert!(caller.owed().is_none() && stream.poll_broken(context).is_pending());
    sink.abandon(9);
    caller.meet(&mut callee);
    assert!(stream.poll_broken(context).is_ready(), "before anything is read");
    assert_eq!(sink.poll_left(context), Poll::Ready(Ok(())));
    let mut read = 0;
    let end = loop {
        match stream.try_fill() {
            Poll::Ready(Ok(here)) => {
                let taken = here.len();
                read += taken;
                stream.consume(taken);
            }
            Poll::Ready(Err(error)) => break error,
            Poll::Pending => panic!("no end behind {read} bytes"),
        }
    };
    assert_eq!(end, ReadError::Aborted(9));
    assert!((1..written).contains(&read), "{read} of {written}");
}

/// An upload whose sink has sent one item, which is still in its lane, and whose callee has given credit.
fn uploading() -> (Lanes, Lanes, Sink<u8>, Stream<u8>) {
    let (mut caller, mut callee) = up(&budget());
    let mut sink = Sink::<u8>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let stream = Stream::<u8>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    assert_eq!(callee.send_to(&mut caller), 1);
    sink.blocking_send(&7).unwrap();
    (caller, callee, sink, stream)
}

#[test]
fn a_sink_that_is_dropped_aborts_behind_its_items() {
    let (mut caller, mut callee, sink, mut stream) = uploading();
    drop(sink);
    assert_eq!(caller.send_to(&mut callee), 2);
    assert!(caller.owed().is_none(), "it is said once");
    assert!(!callee.ended(State::Ended));
    assert_eq!(stream.blocking_next(), Some(Ok(7)));
    for _ in 0..3 {
        assert_eq!(stream.blocking_next(), Some(Err(ReadError::Aborted(0))));
    }
}

#[test]
fn nothing_leaves_once_the_call_was_dropped() {
    // The end is said before the worker has looked, or after the call was dropped.
    for is_finished in [true, false] {
        let (mut caller, _callee, sink, _stream) = uploading();
        let tie = caller.tie();
        assert!(!caller.is_given_up());
        if is_finished {
            sink.finish();
            drop(tie);
        } else {
            drop(tie);
            sink.finish();
        }
        assert!(caller.is_given_up());
        assert!(caller.owed().is_none(), "finished first: {is_finished}");
    }
}

#[test]
fn an_answer_waits_for_the_sink_and_an_error_does_not() {
    let mut callee = lanes_of_callee((false, true), 1, &budget(), &mut None);
    let mut sink = Sink::<u8>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
    sink.blocking_send(&7).unwrap();
    assert!(!callee.may_answer(true), "it may be given more");
    let error = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _sink = sink;
        std::panic::resume_unwind(Box::new("as it was asked to"));
    }));
    assert!(error.is_err() && !callee.may_answer(true), "the item has not left");
    let owed = callee.owed().unwrap();
    callee.left(owed);
    assert!(callee.may_answer(true) && callee.is_aborted(), "a panic dropped the sink");

    let callee = lanes_of_callee((false, true), 1, &budget(), &mut None);
    let mut sink = Sink::<u8>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
    assert!(!callee.may_answer(true) && callee.may_answer(false));
    assert_eq!(sink.blocking_send(&7), Err(StreamError::Over));
}

#[test]
fn a_lane_that_was_not_used_is_the_next_ones() {
    let budget = budget();
    let callee = || lanes_of_callee((false, true), 1, &budget, &mut None);
    let sink = |callee: &Lanes| Sink::<u8>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
    let first = callee();
    let place = Arc::as_ptr(first.tx.as_ref().unwrap());
    let open = sink(&first);
    assert!(!first.is_silent(), "more may come");
    drop(open);
    assert!(first.is_silent());
    let mut kept = first.into_spare();
    let second = lanes_of_callee((false, true), 1, &budget, &mut kept);
    let lane = second.tx.clone().unwrap();
    assert_eq!((Arc::as_ptr(&lane), lane.state(), kept.is_none()), (place, State::Open, true));
    drop(sink(&second));
    assert!(second.is_silent() && second.into_spare().is_none(), "somebody has it still");
    assert_eq!(lane.state(), State::Over);

    let sent = callee();
    sink(&sent).blocking_send(&7).unwrap();
    assert!(!sent.is_silent(), "an item is to leave");
    let told = callee();
    sink(&told).half_close();
    assert!(!told.is_silent(), "its end is to leave");
}

/// A handler that asks again and again gives its worker a turn between.
#[test]
fn an_error_is_said_again_in_another_poll() {
    let (_caller, callee, _sink, mut stream) = uploading();
    drop(callee);
    let context = Context::from_waker(Waker::noop());
    let error = Poll::Ready(Some(Err(ReadError::Over)));
    assert_eq!(stream.poll_next(&context), error);
    for _ in 0..3 {
        assert!(stream.poll_next(&context).is_pending());
        assert_eq!(stream.poll_next(&context), error);
    }
}

#[test]
fn a_closed_call_ends_readers_by_an_error_and_refuses_senders() {
    let lanes = lanes(true, true);
    let mut sink = Sink::<u8>::new::<Postcard>(lanes.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<u8>::new::<Postcard>(lanes.rx.clone().unwrap(), Woken);
    drop(lanes);
    assert_eq!(sink.blocking_send(&1), Err(StreamError::Over));
    assert_eq!(stream.blocking_next(), Some(Err(ReadError::Over)));
}

#[test]
fn r93_a_peer_that_sends_without_credit_is_refused() {
    let budget = budget();
    let mut callee = lanes_of_callee((true, false), 0, &budget, &mut None);
    assert!(!callee.arrived(&[1], (false, false)));
    let mut caller = lanes(false, true);
    let window = caller.open(&budget) as usize;
    for _ in 0..window.div_ceil(items::ITEM_COST + 1) {
        assert!(caller.arrived(&[1], (false, false)));
    }
    assert!(!caller.arrived(&[1], (false, false)));
    assert!(!caller.credited(1), "credit for what it does not send");
    assert!(!caller.stopped(1), "a stop of what it does not send");
}

/// Each is larger than a message and than the first window. While their reader does not read, no more than two of them are here
/// beside what the window holds.
#[test]
fn items_larger_than_a_message_come_in_parts() {
    let budget = budget();
    let (mut caller, mut callee) = up(&budget);
    assert_eq!(caller.open(&budget), 0);
    let mut sink = Sink::<String>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<String>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    let item = |number: usize| {
        let letter = (b'a'..=b'z').cycle().nth(number).map(char::from).unwrap();
        let bytes = if number.is_multiple_of(3) { 10 } else { 20_000 + number };
        String::from(letter).repeat(bytes)
    };
    let (mut sent, mut read) = (0, 0);
    while read < 60 {
        while sent < 60 && sink.try_send(&item(sent)).unwrap() {
            sent += 1;
        }
        caller.meet(&mut callee);
        let (here, window) =
            (callee.rx.as_ref().unwrap().items().cost(), callee.window.as_ref().unwrap().bytes());
        assert!(here <= 2 * 20_200 + i64::from(window), "{here} bytes are here, beside a window of {window}");
        if let Poll::Ready(next) = stream.try_next() {
            assert_eq!(next.unwrap().unwrap(), item(read));
            read += 1;
        }
    }
    sink.finish();
    caller.meet(&mut callee);
    assert!(matches!(stream.try_next(), Poll::Ready(None)));
    // All of the window is the sender's again, but for what is not worth a message yet.
    let window = i64::from(WINDOW_MIN);
    assert!(caller.credit > window / 2 && caller.credit <= callee.window.as_ref().unwrap().bytes().into());
}

#[test]
fn a_part_is_not_empty_and_an_item_has_an_end() {
    let (_, mut callee) = up(&budget());
    callee.granted = 4096;
    assert!(!callee.arrived(&[], (false, true)), "a part of nothing");
    assert!(callee.arrived(&[1], (false, true)));
    assert!(!callee.ended(State::Ended), "the end within an item");
    assert!(callee.arrived(&[2], (false, false)));
    assert!(callee.ended(State::Ended));
}

/// The receiver takes less than the sender sends: its reader is told the limit, and the sender to stop.
#[test]
fn an_item_above_what_its_receiver_takes_is_refused_by_name() {
    let (mut caller, mut callee) = up(&Budget::new(WINDOW_MIN, 1 << 20, 5000));
    caller.item_bytes_max = LARGEST;
    let mut sink = Sink::<String>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<String>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    for text in ["fine", &"x".repeat(4990), &"x".repeat(50_000)] {
        assert!(sink.try_send(&text.to_owned()).unwrap());
        caller.meet(&mut callee);
    }
    let lens = [stream.try_next(), stream.try_next()].map(|next| match next {
        Poll::Ready(Some(Ok(text))) => text.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lens, [4, 4990]);
    caller.meet(&mut callee);
    assert!(matches!(stream.try_next(), Poll::Ready(Some(Err(ReadError::TooLarge(5000))))));
    caller.meet(&mut callee);
    assert_eq!(sink.try_send(&"more".to_owned()), Err(StreamError::Stopped(0)));
}

/// The task that has the sink says the end when the worker has seen that nothing is to be sent, and takes the answer next.
#[test]
fn an_end_that_is_said_beside_the_answer_goes_before_it() {
    for end in [State::Aborted(7), State::Ended] {
        for is_closed in [false, true] {
            let mut callee = lanes_of_callee((false, true), 4096, &budget(), &mut None);
            let sink = Sink::<u32>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
            if is_closed {
                // As a `futures::Sink`, which is there afterwards.
                sink.entry.0.finished();
            }
            assert_eq!(callee.owed(), None);
            let said = match end {
                State::Aborted(code) => {
                    sink.reset(code);
                    if is_closed { Owed::End } else { Owed::Abort(code) }
                }
                _ => {
                    sink.half_close();
                    Owed::End
                }
            };
            assert!(!callee.may_answer(true), "{end:?}: it has not left");
            assert_eq!(callee.owed(), Some(said));
            callee.left(said);
            assert_eq!(callee.owed(), None);
            assert!(callee.may_answer(true) && !callee.is_aborted());
        }
    }
    // Any other answer waits for no end.
    let callee = lanes_of_callee((false, true), 4096, &budget(), &mut None);
    let sink = Sink::<u32>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
    assert!(callee.may_answer(false));
    sink.reset(7);
    assert!(callee.may_answer(false));
}
