//! A port that sleeps, and connections that no round looks at.

use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::{Wait, kernel};

#[test]
fn a_parked_connection_wakes_its_port_and_is_read_at_once() {
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(64 << 10)).unwrap());
    let (accepted, made) = links(&mut listener, &server, &client);
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, made));
    server.opened();
    client.opened();
    let (accepted, made) = links(&mut listener, &server.port, &client.port);
    server.port.adopt(accepted, Time(0)).unwrap();
    client.port.adopt(made, Time(0)).unwrap();
    server.opened();
    client.opened();
    // As often as it takes until one of the two is left out of the rounds.
    for _ in 0..1000 {
        assert!(server.poll().is_empty());
    }
    for conn in [client.conn, ConnId::new(1, 1)] {
        assert!(server.port.arm());
        client.conn = conn;
        client.stage(b"wake up", 1).unwrap();
        client.port.flush();
        let fd = server.port.wait_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        kernel::wait(&mut fds, Instant::now() + SECOND).unwrap();
        assert!(!fds[0].revents().is_empty());
        server.port.disarm();
        // One look, the poll that it asks for, and the look behind it.
        let came: Vec<_> = (0..2).flat_map(|_| server.poll()).collect();
        assert!(matches!(&came[..], [Came::Frame { .. }]), "{came:?}");
        for _ in 0..1000 {
            assert!(server.poll().is_empty());
        }
        // Its owner spins: it only polls when a look says so.
        client.stage(b"and again", 2).unwrap();
        client.port.flush();
        let found = (0..200).find_map(|_| match server.port.next_run(Limit::Frames(1)) {
            Look::Run(mut run) => {
                let text = run.next_frame().map(|frame| frame.payload().to_vec());
                server.port.end_run(&mut run, false);
                text
            }
            Look::Events => {
                server.port.poll(Time(0), &mut server.batch);
                None
            }
            Look::Nothing => None,
        });
        assert_eq!(found.as_deref(), Some(&b"and again"[..]), "no look found it");
        for _ in 0..1000 {
            assert!(server.poll().is_empty());
        }
    }
}

/// A look takes a record, in which there is no frame, and the port sleeps. An event loop tells the end of that sleep once: a look that
/// does not ask the socket, because the one before had emptied it, would leave the frame there.
#[test]
fn the_first_look_after_a_sleep_asks_the_socket() {
    let (mut side, mut client) = open(4096);
    let readable = |side: &Side| {
        let fd = side.port.wait_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        kernel::wait(&mut fds, Instant::now() + SECOND).unwrap();
        assert!(!fds[0].revents().is_empty());
    };
    // One look at the sockets, and what is due.
    let look = |side: &mut Side| {
        let payload = match side.port.next_run(Limit::Frames(1)) {
            Look::Events | Look::Nothing => None,
            Look::Run(mut run) => {
                let payload = run.next_frame().map(|frame| frame.payload().to_vec());
                side.port.end_run(&mut run, false);
                payload
            }
        };
        side.port.poll(Time(0), &mut side.batch);
        payload
    };
    for number in 0..3 {
        client.write_all(&Record::Credit { position: 0 }.encode()).unwrap();
        readable(&side);
        assert_eq!(look(&mut side), None, "a record is no frame");
        assert!(side.port.arm());
        client.write_all(&frame(b"wake up", number)).unwrap();
        readable(&side);
        side.port.disarm();
        assert_eq!(look(&mut side).as_deref(), Some(&b"wake up"[..]), "sleep {number}: it was left there");
        // It asks again, and finds nothing.
        assert_eq!((look(&mut side), look(&mut side)), (None, None));
    }
}

/// A look makes a few calls only. Bytes that it leaves in the socket were told of when they arrived, and nobody tells of them again.
#[test]
fn a_port_does_not_sleep_while_its_socket_has_bytes_that_it_did_not_ask_for() {
    let (mut side, mut client) = open(64 << 10);
    let socket = |side: &Side| {
        let live = side.port.table.slots[0].live.as_ref().unwrap();
        live.wire.socket().try_clone().unwrap()
    };
    rustix::net::sockopt::set_socket_recv_buffer_size(socket(&side), 1 << 20).unwrap();
    let unread = |side: &Side| rustix::io::ioctl_fionread(socket(side)).unwrap();
    let records = Record::Credit { position: 0 }.encode().repeat(6 << 10);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&records).unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        while unread(&side) < records.len() as u64 {
            assert!(Instant::now() < until, "{} bytes arrived", unread(&side));
            std::thread::yield_now();
        }
    });
    let mut looks = 0;
    while unread(&side) > 0 {
        assert!(matches!(side.port.next_run(Limit::Frames(1)), Look::Nothing | Look::Events));
        let left = unread(&side);
        // The first look may make no call; what arrived since is still to be told.
        let may_sleep = left == 0 || left == records.len() as u64;
        assert!(may_sleep || !side.port.arm(), "it sleeps with {left} bytes in its socket");
        looks += 1;
    }
    assert!(looks > 1, "one look took all");
    // The last call took less than it asked for, or the next look says that there is nothing.
    assert!(matches!(side.port.next_run(Limit::Frames(1)), Look::Nothing | Look::Events));
    assert!(side.port.arm());
}

/// Each connection is looked at in each round, also in that in which another one parks and the last takes its place.
#[test]
fn no_look_leaves_one_out_while_another_parks() {
    // In which look the first parks depends on how many came before.
    let beside = (0..4).filter(|before| parks_beside_a_frame(*before)).count();
    assert!(beside > 0, "it never parked in the look that was to find the frame");
}

/// Whether one of two connections parked in the very look that found a frame of the other.
fn parks_beside_a_frame(before: usize) -> bool {
    let mut listener = listen(&patient_listen());
    let port = Tcp.open_port(&config(4096)).unwrap();
    // Both are there before the first look, so each round begins with the idle one.
    let (accepted, _idle) = greet(&mut listener, &port, 4096);
    let mut side = Side::adopt(port, accepted);
    let (accepted, mut client) = greet(&mut listener, &side.port, 4096);
    let busy = side.port.adopt(accepted, Time(0)).unwrap();
    let mut opened = 0;
    while opened < 2 {
        opened += side.wait().len();
    }
    let look = |side: &mut Side| match side.port.next_run(Limit::Frames(1)) {
        Look::Run(mut run) => {
            let payload = run.next_frame().map(|frame| frame.payload().to_vec());
            side.port.end_run(&mut run, false);
            payload.as_deref() == Some(b"busy")
        }
        _ => false,
    };
    let is_parked = |side: &Side| side.port.table.parked > 0;
    (0..before).for_each(|_| assert!(!look(&mut side)));
    for number in 0..1000 {
        // The first ends the round of the frame before, the next makes no call, since that one emptied the socket.
        (0..3).for_each(|_| assert!(!look(&mut side)));
        let was_parked = is_parked(&side);
        client.write_all(&frame(b"busy", number)).unwrap();
        let live = side.port.table.slots[busy.index() as usize].live.as_ref().unwrap();
        let fd = live.wire.socket().try_clone().unwrap();
        assert!(kernel::wait(&mut [PollFd::new(&fd, PollFlags::IN)], Instant::now() + SECOND).unwrap());
        assert!(look(&mut side), "round {number}, {before} before: it was left out");
        let bytes = crate::Position(u64::from(number + 1) * span(4) as u64);
        side.port.return_credit(busy, Credit { bytes, arrivals: 0 });
        if is_parked(&side) {
            return !was_parked;
        }
    }
    panic!("it never parks");
}

/// A handler that blocks ends no connection: one whose peer's host answers and takes nothing is neither given up by the kernel nor
/// without a pulse, and goes on where it stopped. All that waits for it may be in the kernel.
#[test]
fn a_peer_that_takes_nothing_for_long_is_borne() {
    std::thread::scope(|scope| {
        for (ring_bytes, send_buffer) in [(4 << 20, Some(64 << 10)), (256 << 10, None)] {
            scope.spawn(move || bear(ring_bytes, send_buffer));
        }
    });
}

fn bear(ring_bytes: u32, send_buffer: Option<usize>) {
    use rustix::net::sockopt;
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(ring_bytes)).unwrap());
    let (accepted, made) = links(&mut listener, &server, &client);
    let socket = made.wire.socket().try_clone().unwrap();
    if let Some(bytes) = send_buffer {
        sockopt::set_socket_send_buffer_size(&socket, bytes).unwrap();
    }
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, made));
    server.opened();
    client.opened();
    let mut sent = 0;
    while client.stage(&vec![sent as u8; 10_000], sent).is_ok() {
        sent += 1;
    }
    client.port.flush();
    // Half of the usual, so that it is over by the end. The next look raises it.
    sockopt::set_tcp_user_timeout(&socket, 10_000).unwrap();
    let (until, mut beat, mut still) = (Instant::now() + Duration::from_secs(14), 0, 0);
    while Instant::now() < until {
        for _ in 0..10 {
            let came = client.poll();
            assert!(came.is_empty(), "{came:?}");
            // A worker that sleeps.
            if client.port.arm() {
                client.port.disarm();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let now = Time::default().plus(client.started.elapsed());
        let seen = client.port.pulse(client.conn, now).unwrap();
        still = if seen.beat == beat { still + 1 } else { 0 };
        beat = seen.beat;
        assert!(still < 8, "no pulse for {still} half seconds");
    }
    assert!(sockopt::tcp_user_timeout(&socket).unwrap() > 20_000, "it was borne");
    let (mut got, until) = (0, Instant::now() + Duration::from_secs(60));
    while got < sent {
        for event in server.poll() {
            let Came::Frame { conn, frame } = event else { panic!("{event:?}") };
            assert_eq!((frame.len(), frame[0]), (10_000, got as u8));
            got += 1;
            let end = frame.end();
            server.port.release(conn, frame);
            server.port.return_credit(conn, Credit { bytes: end, arrivals: 0 });
        }
        server.port.flush();
        let came = client.poll();
        assert!(came.is_empty() && Instant::now() < until, "{got} of {sent}: {came:?}");
    }
    while sockopt::tcp_user_timeout(&socket).unwrap() != 20_000 {
        let came = client.poll();
        assert!(came.is_empty() && Instant::now() < until, "it is borne on: {came:?}");
        if client.port.arm() {
            client.port.disarm();
        }
    }
}
