//! A peer that lies: in its frames, its records, its credit.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::{
    super::{live::Live, record::Ask, table::LEAVING_MAX, wire::Wire},
    idle::lives,
    *,
};
use crate::{Gate, Transfer, Violation, Wait, mem::Offer};

/// How the connection of a peer that says `bytes` ends.
fn ends(bytes: &[u8]) -> CloseReason {
    let (mut side, mut client) = open(4096);
    let _ = client.write_all(bytes);
    side.closed()
}

fn malformed(what: &'static str) -> CloseReason {
    CloseReason::Violation(Violation::Malformed { what })
}

#[test]
fn lies_end_the_connection_by_name() {
    let ask = |id, ask: Ask| {
        let (what, body) = ask.encode();
        [&Record::Ask { id, what }.encode()[..], &body].concat()
    };
    assert_eq!(ends(&[0; 16]), malformed("record"));
    assert_eq!(ends(&Record::Grant.encode()), malformed("second grant"));
    assert_eq!(ends(&Record::Data { id: 0, bytes: 5 }.encode()), malformed("answer that nobody asked for"));
    assert_eq!(ends(&Record::Data { id: 900, bytes: 0 }.encode()), malformed("answer that nobody asked for"));
    assert_eq!(ends(&Record::End { id: 0, status: 0 }.encode()), malformed("answer that nobody asked for"));
    assert_eq!(ends(&Record::Put { id: 0, bytes: 5 }.encode()), malformed("write that was not announced"));
    assert_eq!(
        ends(&[&Record::Ask { id: 0, what: 99 }.encode()[..], &[0; 32]].concat()),
        malformed("request")
    );
    let write = ask(0, Ask::Write { key: 1, at: 0, len: 64 });
    let behind = [&write[..], &Record::Put { id: 0, bytes: 65 }.encode()].concat();
    assert_eq!(ends(&behind), malformed("write that was not announced"));
    assert!(matches!(ends(&[&write[..], &write].concat()), CloseReason::Violation(_)), "two at once");
    let too_long = FrameWord::new(1 << 20, Tag(0)).bits().to_le_bytes();
    let ended = ends(&[&too_long[..], &[0; 8]].concat());
    assert!(matches!(ended, CloseReason::Violation(Violation::FrameLength { .. })), "{ended:?}");
    assert_eq!(ends(&Record::Goodbye { how: 1 }.encode()), CloseReason::Peer);
    assert_eq!(ends(&Record::Goodbye { how: 2 }.encode()), CloseReason::PeerLacks);
}

/// Frames beyond the credit are no frames, and overwrite nothing.
#[test]
fn a_peer_that_ignores_its_credit_is_closed() {
    let (mut side, mut client) = open(4096);
    let sender = std::thread::spawn(move || {
        for number in 0..100 {
            if client.write_all(&frame(&[number; 500], 0)).is_err() {
                break;
            }
        }
        client
    });
    let mut held = Vec::new();
    let reason = loop {
        let events = side.wait();
        let mut reason = None;
        for event in events {
            match event {
                Came::Frame { frame, .. } => held.push(frame),
                Came::Closed { reason: why, .. } => reason = Some(why),
                other => panic!("{other:?}"),
            }
        }
        if let Some(reason) = reason {
            break reason;
        }
    };
    assert!(matches!(reason, CloseReason::Violation(Violation::Overrun { .. })), "{reason:?}");
    assert!(held.len() >= 7, "{} frames", held.len());
    for (number, frame) in held.iter().enumerate() {
        assert!(frame.iter().all(|byte| usize::from(*byte) == number), "frame {number} changed");
    }
    drop(sender.join().unwrap());
}

/// Credit that runs ahead of what was sent frees nothing.
#[test]
fn a_lying_credit_frees_nothing() {
    let (mut side, mut client) = open(4096);
    let mut sent = 0;
    while side.stage(&[0; 1000], 0).is_ok() {
        sent += 1;
    }
    side.port.flush();
    assert_eq!(sent, 4);
    for lie in [4096 + 1, u64::MAX, u64::MAX - 4095, 1 << 63] {
        client.write_all(&Record::Credit { position: lie }.encode()).unwrap();
        let until = Instant::now() + LONG;
        while side.port.credit(side.conn).peer.unwrap().bytes.0 != lie {
            side.poll();
            assert!(Instant::now() < until);
        }
        assert_eq!(side.stage(&[0; 1000], 0), Err(Refused::Full), "{lie}");
    }
}

/// A request for what was not offered on this connection, or for more of it, brings nothing.
#[test]
fn only_what_was_offered_is_sent() {
    let (mut side, mut client) = open(4096);
    let loan = side.port.gate().allocate(side.conn, 1000).unwrap();
    let other = side.port.gate().allocate(side.conn, 1000).unwrap();
    let Offer { key, .. } = side.port.offer(side.conn, &loan).unwrap();
    let asks = [(other.ticket(), 0, 8), (key, 0, 1001), (key, 993, 8), (key, u64::MAX, 8), (key + 999, 0, 8)];
    for (id, (key, at, len)) in (0..).zip(asks) {
        let (what, body) = Ask::Pull { key, at, len }.encode();
        client.write_all(&Record::Ask { id, what }.encode()).unwrap();
        client.write_all(&body).unwrap();
        client.set_nonblocking(true).unwrap();
        let (mut answer, mut got) = ([0; 16], 0);
        let until = Instant::now() + LONG;
        while got < 16 {
            side.poll();
            got += client.read(&mut answer[got..]).unwrap_or(0);
            assert!(Instant::now() < until);
        }
        client.set_nonblocking(false).unwrap();
        assert_eq!(answer, Record::End { id, status: 1 }.encode());
    }
}

/// The memory of a write is given back, also of one that is refused.
#[test]
fn a_write_leaves_no_memory_at_a_connection_at_rest() {
    let (mut side, mut client) = open(4096);
    let bytes = 64 << 10;
    let (what, body) = Ask::Write { key: 1, at: 0, len: bytes.into() }.encode();
    let put = [&Record::Put { id: 0, bytes }.encode()[..], &vec![1; bytes as usize]].concat();
    let says = [&Record::Ask { id: 0, what }.encode()[..], &body, &put].concat();
    let writer = std::thread::spawn(move || {
        client.write_all(&says).unwrap();
        let mut answer = [0; 16];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, Record::End { id: 0, status: 1 }.encode());
        client
    });
    let memory = |side: &Side| lives(side).map(Live::staged_memory).sum::<usize>();
    let (until, mut most) = (Instant::now() + Duration::from_secs(30), 0);
    while most == 0 || memory(&side) > 0 || !writer.is_finished() {
        side.poll();
        most = most.max(memory(&side));
        if side.port.arm() {
            side.port.disarm();
        }
        assert!(Instant::now() < until, "{} bytes are left of {most}", memory(&side));
    }
    writer.join().unwrap();
    assert_eq!(most, bytes as usize);
}

/// Clients that come and go leave nothing at memory that was shown to them.
#[test]
fn exposed_memory_forgets_connections_that_ended() {
    let mut listener = listen(&patient_listen());
    let port = Tcp.open_port(&config(4096)).unwrap();
    let (accepted, first) = greet(&mut listener, &port, 4096);
    let mut side = Side::adopt(port, accepted);
    side.opened();
    let (kept, gate) = (side.conn, side.port.gate());
    let exposed = gate.expose(kept, 16).unwrap();
    side.port.show(kept, &exposed).unwrap();
    for number in 0..10 {
        let (accepted, client) = greet(&mut listener, &side.port, 4096);
        side.conn = side.port.adopt(accepted, Time(0)).unwrap();
        side.opened();
        side.port.show(side.conn, &exposed).unwrap();
        assert_eq!(gate.shared.exposures.shown(), 2);
        if number % 2 == 0 {
            side.port.close(side.conn, CloseReason::Local, Time(0));
        }
        drop(client);
        side.closed();
        assert_eq!(gate.shared.exposures.shown(), 1);
    }
    assert!(gate.shared.exposures.find(exposed.key(), kept).is_some());
    drop(first);
}

/// A peer that asks and reads no answer is owed so many records, and no more.
#[test]
fn a_peer_that_reads_no_record_is_closed() {
    let (mut side, mut client) = open(4096);
    let (what, body) = Ask::Pull { key: 1, at: 0, len: 8 }.encode();
    let asks = [&Record::Ask { id: 0, what }.encode()[..], &body].concat().repeat(1000);
    client.set_nonblocking(true).unwrap();
    // The kernel keeps little of it.
    sockopt::set_socket_recv_buffer_size(&client, 4096).unwrap();
    lives(&side).for_each(|live| sockopt::set_socket_send_buffer_size(live.wire.socket(), 4096).unwrap());
    let (until, mut written) = (Instant::now() + Duration::from_secs(60), 0);
    let reason = loop {
        assert!(Instant::now() < until, "not closed");
        written += client.write(&asks[written % asks.len()..]).unwrap_or(0);
        if let Some(Came::Closed { reason, .. }) = side.poll().pop() {
            break reason;
        }
        assert!(lives(&side).all(|live| live.out.records_memory() <= 256 << 10));
    };
    assert_eq!(reason, malformed("number of requests: more than were granted"));
}

/// What left is forgotten, although a peer that reads slowly always leaves some behind.
#[test]
fn records_for_a_slow_reader_take_no_more_memory() {
    let (mut side, _client) = open(4096);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    let (mut wire, record) = (Wire::Plain(ours), Record::End { id: 0, status: 1 });
    let out = &mut side.port.table.slots[0].live.as_mut().unwrap().out;
    for number in 0..200_000 {
        if !out.say(record, &[]) {
            let _ = rustix::io::read(&theirs, &mut [0; 4096]);
            out.send(&mut wire).unwrap();
            assert!(out.say(record, &[]) && !out.is_empty(), "{number}: there is room");
        }
    }
    assert!(out.records_memory() <= 256 << 10, "{} bytes for records", out.records_memory());
}

/// A peer that never closes its end keeps a socket for a second, and at most 64 do.
#[test]
fn sockets_of_connections_that_ended_are_few_and_soon_gone() {
    let mut listener = listen(&patient_listen());
    let port = Tcp.open_port(&config(4096)).unwrap();
    let (accepted, client) = greet(&mut listener, &port, 4096);
    let (mut side, mut clients) = (Side::adopt(port, accepted), vec![client]);
    let mut conns = vec![side.conn];
    while conns.len() < LEAVING_MAX + 4 {
        let (accepted, client) = greet(&mut listener, &side.port, 4096);
        conns.push(side.port.adopt(accepted, Time(0)).unwrap());
        clients.push(client);
    }
    for conn in &conns {
        side.port.close(*conn, CloseReason::Local, Time(0));
    }
    // Time is what the port is told.
    let mut ends = |now| {
        let mut ended = 0;
        for _ in 0..64 {
            let came = testing::poll(&mut side.port, now, &mut side.batch);
            ended += came.iter().filter(|came| matches!(came, Came::Closed { .. })).count();
        }
        (ended, side.port.table.leaving.len())
    };
    assert_eq!(ends(Time(0)), (conns.len(), LEAVING_MAX));
    assert_eq!(ends(Time(0).plus(2 * SECOND)), (0, 0));
    drop(clients);
}

/// Seeded noise behind the grant: it ends in a close or is waited for, and nothing panics.
#[test]
fn noise_is_a_violation_and_no_panic() {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    for _ in 0..200 {
        let (mut side, mut client) = open(4096);
        let mut noise = Vec::new();
        for _ in 0..random() % 60 {
            let record = match random() % 9 {
                0 => frame(&vec![1; random() as usize % 900], random() as u32),
                1 => Record::Credit { position: random() >> (random() % 64) }.encode().to_vec(),
                2 => Record::Ask { id: random() as u32 % 4, what: random() as u32 % 7 }.encode().to_vec(),
                3 => Record::Data { id: random() as u32 % 4, bytes: random() as u32 % 100 }.encode().to_vec(),
                4 => Record::Put { id: random() as u32 % 4, bytes: random() as u32 % 100 }.encode().to_vec(),
                5 => Record::End { id: random() as u32 % 4, status: random() as u32 % 3 }.encode().to_vec(),
                6 => random().to_le_bytes().to_vec(),
                7 => vec![0; random() as usize % 40],
                _ => (0..random() % 50).map(|_| random() as u8).collect(),
            };
            noise.extend(record);
        }
        let _ = client.write_all(&noise);
        drop(client);
        // The close of the socket at the latest.
        side.closed();
    }
}
