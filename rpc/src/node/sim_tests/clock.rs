//! Deadlines count from the moment that a call is there, however old the worker's reading of its clock is.

use gimmal_engine::transport::time;

use super::*;

#[test]
fn a_request_has_its_time_although_the_worker_was_away() {
    const SPAN: Duration = Duration::from_millis(10);
    each("a_request_has_its_time_although_the_worker_was_away", 3, |what, seed, device| {
        let mut run = Run::new(seed, world(seed, device));
        let conn = run.conn.unwrap();
        let arguments = (1u32,);
        let value = &Encoded::<Postcard, _>::new(&arguments);
        run.client.with(|node, io| {
            let (method, reply) = (&__WORLD_METHODS[1], Reply::Local);
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
fn time_0_is_the_same_for_every_worker() {
    let mut run = Run::apart(1, world(1, SimDevice::roce()), 0);
    // As if the worker had been away between reading the clock and opening the connection.
    std::thread::sleep(Duration::from_millis(20));
    run.connect();
    let (_, here) = run.server.app_mut().conns.iter_mut().next().unwrap();
    assert_eq!(here.peer.epoch, time::epoch());
}
