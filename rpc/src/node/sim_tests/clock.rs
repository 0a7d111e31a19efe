//! Deadlines count from the moment that a call is there, however old the worker's reading of its clock is.

use gimmal_engine::{App as _, transport::time};

use super::*;
use crate::{
    cell::{CallCell, Responder},
    codec::compose_into,
    command::Command,
    frame::Flags,
};

#[test]
fn a_request_has_its_time_although_the_worker_was_away() {
    const SPAN: Duration = Duration::from_millis(10);
    each("a_request_has_its_time_although_the_worker_was_away", 3, |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let conn = run.conn.unwrap();
        let arguments = (1u32,);
        let value = &Encoded::<Postcard, _>::new(&arguments);
        run.client.with(|node, io| {
            let (method, reply) = (&__world_methods()[1], Reply::Local);
            node.start(io, conn, method, Some(SPAN), Fresh::new(value), (None, None), reply).unwrap();
        });
        while run.server.app().tasks.len() == 0 {
            run.turns();
        }
        let came = run.now;
        let mut overdue_at = |span| {
            run.server.at(came.plus(span)).turn();
            let mut stats = Stats::default();
            run.counters[1].add_to(&mut stats);
            stats.overdue
        };
        // It may have come at the end of these.
        assert_eq!(overdue_at(SPAN / 2), 0, "{what}");
        assert_eq!(overdue_at(SPAN * 5 / 4), 0, "{what}: its time began before it came");
        assert_eq!(overdue_at(SPAN * 3 / 2), 1, "{what}");
    });
}

#[test]
fn a_call_that_is_handed_off_has_its_time_although_the_worker_was_away() {
    const SPAN: Duration = Duration::from_millis(10);
    each("a_call_that_is_handed_off_has_its_time", 3, |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let conn = run.conn.unwrap();
        let cell = Arc::new(CallCell::new());
        let arguments = Encoded::<Postcard, _>::new(&(1u32,));
        let mut body = Vec::new();
        compose_into(&mut body, 64, &arguments).unwrap();
        let began = run.now;
        run.client.with(|node, io| {
            let (method, timeout, responder) = (&__world_methods()[1], Some(SPAN), Responder::new(&cell));
            let (loan, flags, lanes, is_later) = (None, Flags::NONE, None, false);
            let call = Command::Call { conn, method, timeout, body, loan, flags, lanes, is_later, responder };
            node.command(io, call);
        });
        let mut expired_at = |span| {
            run.client.at(began.plus(span)).turn();
            let mut stats = Stats::default();
            run.counters[0].add_to(&mut stats);
            stats.expired
        };
        // The worker was away between its look at the clock and the command.
        assert_eq!(expired_at(SPAN * 2), 0, "{what}: it ended before its time");
        assert_eq!(expired_at(SPAN * 3 - SPAN / 4), 0, "{what}");
        assert_eq!(expired_at(SPAN * 3), 1, "{what}");
    });
}

#[test]
fn time_0_is_the_same_for_every_worker() {
    let mut run = Run::apart(1, world(1, SimDevice::roce()), 0);
    // As if the worker had been away between reading the clock and opening the connection.
    std::thread::sleep(Duration::from_millis(20));
    run.connect();
    let (_, here) = run.server.app_mut().conns.iter_mut().next().unwrap();
    assert_eq!(here.peer.epoch, time::epoch());
}
