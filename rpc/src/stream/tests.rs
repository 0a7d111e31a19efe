//! Lanes, credit and ends, without a worker.

use super::*;
use crate::codec::Postcard;

#[test]
fn items_credit_and_the_end_go_in_order_and_within_the_window() {
    let mut caller = lanes(true, false);
    let mut callee = lanes_of_callee(true, false, 0);
    let mut sink = Sink::<u32>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<u32>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    sink.blocking_send(&0).unwrap();
    assert!(caller.next_owed().is_none(), "nothing goes without credit");
    let mut sent = 1;
    let mut read = 0;
    for _ in 0..20 {
        while let Some(Owed::Credit(items)) = callee.next_owed() {
            callee.left(Owed::Credit(items));
            assert!(caller.credited(items));
        }
        while let Some(owed) = caller.next_owed() {
            let Owed::Item(item) = &owed else { panic!("{owed:?}") };
            assert!(callee.arrived(item));
            caller.left(owed);
            sink.blocking_send(&sent).unwrap();
            sent += 1;
        }
        assert!(sent - read <= WINDOW + 1);
        for _ in 0..7 {
            assert_eq!(stream.blocking_next().unwrap().unwrap(), read);
            read += 1;
        }
    }
    sink.finish();
    for _ in 0..(sent - read) {
        if let Some(Owed::Credit(items)) = callee.next_owed() {
            callee.left(Owed::Credit(items));
            assert!(caller.credited(items));
        }
        if let Some(owed @ Owed::Item(_)) = caller.next_owed() {
            let Owed::Item(item) = &owed else { unreachable!() };
            assert!(callee.arrived(item));
            caller.left(owed);
        }
        assert_eq!(stream.blocking_next().unwrap().unwrap(), read);
        read += 1;
    }
    assert!(matches!(caller.next_owed(), Some(Owed::End)));
    assert!(callee.ended(State::Ended) && !callee.ended(State::Aborted));
    assert!(stream.blocking_next().is_none());
    assert!(!callee.arrived(&[1]), "an item after the end");
}

/// An upload whose sink has sent one item, which is still in its lane, and whose callee has given credit.
fn uploading() -> (Lanes, Lanes, Sink<u8>, Stream<u8>) {
    let (mut caller, callee) = (lanes(true, false), lanes_of_callee(true, false, 0));
    let mut sink = Sink::<u8>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let stream = Stream::<u8>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    assert!(caller.credited(8));
    sink.blocking_send(&7).unwrap();
    (caller, callee, sink, stream)
}

#[test]
fn a_sink_that_is_dropped_aborts_behind_its_items() {
    let (mut caller, mut callee, sink, mut stream) = uploading();
    drop(sink);
    assert!(matches!(caller.next_owed(), Some(Owed::Item(_))));
    caller.left(Owed::Item(Vec::new()));
    assert!(matches!(caller.next_owed(), Some(Owed::Abort)));
    caller.left(Owed::Abort);
    assert!(caller.next_owed().is_none(), "it is said once");
    while let Some(owed @ Owed::Credit(_)) = callee.next_owed() {
        callee.left(owed);
    }
    assert!(callee.arrived(&[7]) && callee.ended(State::Aborted) && !callee.ended(State::Ended));
    assert_eq!(stream.blocking_next(), Some(Ok(7)));
    for _ in 0..3 {
        assert_eq!(stream.blocking_next(), Some(Err(ReadError::Aborted)));
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
        assert!(caller.next_owed().is_none(), "finished first: {is_finished}");
    }
}

#[test]
fn an_answer_waits_for_the_sink_and_an_error_does_not() {
    let mut callee = lanes_of_callee(false, true, 1);
    let mut sink = Sink::<u8>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
    sink.blocking_send(&7).unwrap();
    assert!(!callee.may_answer(true), "it may be given more");
    let error = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _sink = sink;
        std::panic::resume_unwind(Box::new("as it was asked to"));
    }));
    assert!(error.is_err() && !callee.may_answer(true), "the item has not left");
    let owed = callee.next_owed().unwrap();
    callee.left(owed);
    assert!(callee.may_answer(true) && callee.is_aborted(), "a panic dropped the sink");

    let callee = lanes_of_callee(false, true, 1);
    let mut sink = Sink::<u8>::new::<Postcard>(callee.tx.clone().unwrap(), Woken);
    assert!(!callee.may_answer(true) && callee.may_answer(false));
    assert_eq!(sink.blocking_send(&7), Err(StreamError::Over));
}

/// A handler that asks again and again gives its worker a turn between.
#[test]
fn an_error_is_said_again_in_another_poll() {
    let (_caller, callee, _sink, mut stream) = uploading();
    drop(callee);
    let context = Context::from_waker(std::task::Waker::noop());
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
    let mut callee = lanes_of_callee(true, false, 0);
    assert!(!callee.arrived(&[1]));
    let mut caller = lanes(false, true);
    for _ in 0..WINDOW {
        assert!(caller.arrived(&[1]));
    }
    assert!(!caller.arrived(&[1]));
    assert!(!caller.credited(1), "credit for what it does not send");
}
