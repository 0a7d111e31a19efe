//! Lanes, credit and ends, without a worker.

use super::*;
use crate::codec::Postcard;

#[test]
fn items_credit_and_the_end_go_in_order_and_within_the_window() {
    let mut caller = lanes(true, false);
    let mut callee = lanes_of_callee(true, false, 0);
    let mut sink = Sink::<u32>::new::<Postcard>(caller.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<u32>::new::<Postcard>(callee.rx.clone().unwrap(), Woken);
    sink.send_wait(&0).unwrap();
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
            sink.send_wait(&sent).unwrap();
            sent += 1;
        }
        assert!(sent - read <= WINDOW + 1);
        for _ in 0..7 {
            assert_eq!(stream.next_wait().unwrap().unwrap(), read);
            read += 1;
        }
    }
    drop(sink);
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
        assert_eq!(stream.next_wait().unwrap().unwrap(), read);
        read += 1;
    }
    assert!(matches!(caller.next_owed(), Some(Owed::End)));
    assert!(callee.ended() && !callee.ended());
    assert!(stream.next_wait().is_none());
    assert!(!callee.arrived(&[1]), "an item after the end");
}

#[test]
fn a_closed_call_ends_readers_and_refuses_senders() {
    let lanes = lanes(true, true);
    let mut sink = Sink::<u8>::new::<Postcard>(lanes.tx.clone().unwrap(), Woken);
    let mut stream = Stream::<u8>::new::<Postcard>(lanes.rx.clone().unwrap(), Woken);
    drop(lanes);
    assert_eq!(sink.send_wait(&1), Err(StreamError::Over));
    assert!(stream.next_wait().is_none());
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
