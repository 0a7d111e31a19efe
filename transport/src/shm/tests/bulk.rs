//! Bulk in place: the same bytes, no copy, the pool's growth, and offers that cannot be true.

use super::{
    super::{
        pool::POOL_SEGMENT_BYTES,
        segment::{SEALS, create_file},
        table::Stage,
    },
    *,
};
use crate::{
    BulkError, Gate, LoanError, NotHuge, Pages, PortError, Refused, Violation,
    mem::{Account, charge},
    testing::process::{alone, role},
};

/// Carries `offer` as the engine would: in a frame, so that the segment comes first.
fn carry(from: &mut Side, to: &mut Side, offer: &Offer) -> Offer {
    from.send(&offer.encode(), 0);
    let frame = to.frame();
    let offer = Offer::decode(&frame).unwrap();
    to.give_back(frame);
    offer
}

#[test]
fn a_mebibyte_is_read_in_place() {
    let (mut server, mut client) = pair(4096);
    for round in 0..4 {
        let bytes = pattern(round, 1 << 20);
        let mut loan = client.port.gate().allocate(client.conn, bytes.len()).unwrap();
        loan.copy_from_slice(&bytes);
        let offer = client.port.offer(client.conn, &loan).unwrap();
        let offer = carry(&mut client, &mut server, &offer);
        let bulk = server.pulled(offer, 70 + u64::from(round)).unwrap();
        assert!(*bulk == bytes[..]);
        let release = bulk.release().unwrap();
        assert!(!release.is_done());
        // From any thread, and it wakes the port that must tell the peer.
        assert!(server.port.arm());
        std::thread::spawn(move || drop(bulk)).join().unwrap();
        assert!(readable(server.port.wait_fd(), SECOND));
        server.port.disarm();
        assert!(release.is_done());
    }
    assert_eq!(server.port.counters(server.conn).in_place_bytes, 4 << 20);
    assert_eq!(client.port.gate().shared.pool.counts(), (1, 0));
}

/// Nothing has to come, and no poll tells it again.
#[test]
fn a_pull_is_over_when_it_begins() {
    let (mut server, mut client) = pair(4096);
    let loan = client.port.gate().allocate(client.conn, 100).unwrap();
    let offer = client.port.offer(client.conn, &loan).unwrap();
    for token in [5, 6] {
        assert_eq!(server.pulled(offer, token).unwrap().len(), 100);
    }
    assert!(matches!(server.port.next_run(Limit::One), Look::Nothing));
    assert!(server.poll().is_empty());
}

#[test]
fn the_pool_grows_and_keeps_what_it_has() {
    let (mut server, mut client) = pair(4096);
    let gate = client.port.gate();
    // Three loans that do not share a segment, and one that is larger than any.
    let sizes = [POOL_SEGMENT_BYTES - 4096, 9 << 20, 10 << 20, 40 << 20, 100, 5000, 0];
    let mut loans = Vec::new();
    for (number, size) in sizes.into_iter().enumerate() {
        let mut loan = gate.allocate(client.conn, size).unwrap();
        loan.copy_from_slice(&pattern(number as u32, size));
        let offer = client.port.offer(client.conn, &loan).unwrap();
        let offer = carry(&mut client, &mut server, &offer);
        let bulk = server.pulled(offer, number as u64).unwrap();
        assert!(*bulk == *loan, "loan {number}");
        loans.push((loan, bulk));
    }
    let (segments, lent) = gate.shared.pool.counts();
    assert_eq!((segments, lent), (4, 7));
    // They are all still what they were: no two share a byte.
    for (number, (loan, bulk)) in loans.iter().enumerate() {
        assert!(**bulk == pattern(number as u32, loan.len())[..], "loan {number}");
    }
    drop(loans);
    for size in sizes {
        drop(gate.allocate(client.conn, size).unwrap());
    }
    assert_eq!(gate.shared.pool.counts(), (4, 0), "nothing grew");
    let whole: Vec<_> = (0..3).map(|_| gate.allocate(client.conn, POOL_SEGMENT_BYTES).unwrap()).collect();
    assert_eq!(gate.shared.pool.counts(), (4, 3), "gaps grew together again");
    drop(whole);
}

/// Wherever the pages come from, they are zeroed, all there, and the peer cannot write them.
#[test]
fn pool_memory_says_what_it_lies_on() {
    for huge_pages in [true, false] {
        let (mut server, mut client) = pair_of(&config(4096), &PortConfig { huge_pages, ..config(4096) });
        let gate = client.port.gate();
        assert_eq!(gate.memory(), []);
        let mut loan = gate.allocate(client.conn, 20 << 20).unwrap();
        assert!(loan.iter().all(|byte| *byte == 0));
        loan.fill(3);
        let memory = gate.memory();
        assert_eq!((memory.len(), memory[0].bytes), (1, 20 << 20));
        let is_off = memory[0].pages == Pages::Normal { why: NotHuge::Off };
        assert_eq!(is_off, !huge_pages, "{}", memory[0]);
        let offer = client.port.offer(client.conn, &loan).unwrap();
        let offer = carry(&mut client, &mut server, &offer);
        assert!(*server.pulled(offer, 1).unwrap() == *loan);
    }
}

#[test]
fn what_may_still_be_read_is_never_written_again() {
    let (mut server, mut client) = pair(4096);
    let gate = client.port.gate();
    let bytes = pattern(1, 100_000);
    let mut loan = gate.allocate(client.conn, bytes.len()).unwrap();
    loan.copy_from_slice(&bytes);
    let neighbour = gate.allocate(client.conn, 5000).unwrap();
    let offer = client.port.offer(client.conn, &loan).unwrap();
    let offer = carry(&mut client, &mut server, &offer);
    let bulk = server.pulled(offer, 70).unwrap();
    // As when the connection is gone, and nobody said that the reading is over.
    loan.set_aside();
    assert_eq!(gate.shared.pool.counts(), (1, 1), "the neighbour's memory stays");
    for _ in 0..4 {
        gate.allocate(client.conn, POOL_SEGMENT_BYTES).unwrap().fill(0xee);
    }
    drop(neighbour);
    assert_eq!(gate.shared.pool.counts(), (1, 0), "the old segment is gone here, the new one is kept");
    gate.allocate(client.conn, 100_000).unwrap().fill(0xee);
    assert!(*bulk == bytes[..]);
}

#[test]
fn loans_are_freed_on_any_thread_and_outlive_the_port() {
    let (_server, client) = pair(4096);
    let gate = client.port.gate();
    let conn = client.conn;
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let gate = gate.clone();
            std::thread::spawn(move || {
                for round in 0..200 {
                    let size = (seed * 7919 + round * 104_729) % 60_000 + 1;
                    let mut loan = gate.allocate(conn, size).unwrap();
                    loan.fill(seed as u8);
                    std::thread::yield_now();
                    assert!(loan.iter().all(|byte| *byte == seed as u8));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(gate.shared.pool.counts(), (1, 0));
    let mut loan = gate.allocate(conn, 10).unwrap();
    drop((gate, client));
    loan.fill(1);
    assert_eq!(loan[9], 1);
}

#[test]
fn one_segment_is_read_by_many_connections() {
    let (_folder, address) = place();
    let mut listener = listen(&address);
    let server = Shm.open_port(&config(4096)).unwrap();
    let ports: Vec<_> = (0..3).map(|_| Shm.open_port(&config(4096)).unwrap()).collect();
    let mut server = {
        let (accepted, connected) = links(&mut listener, &server.gate(), &ports[0].gate());
        (Side::adopt(server, accepted), connected)
    };
    let mut readers = Vec::new();
    for (number, port) in ports.into_iter().enumerate() {
        let (conn, link) = if number == 0 {
            (server.0.conn, None)
        } else {
            let (accepted, connected) = links(&mut listener, &server.0.port.gate(), &port.gate());
            (server.0.port.adopt(accepted, Time(0)).unwrap(), Some(connected))
        };
        readers.push((conn, port, link));
    }
    readers[0].2 = Some(server.1);
    let mut server = server.0;
    let mut open = 0;
    while open < 3 {
        open += server.wait().len();
    }
    let mut loan = server.port.gate().allocate(server.conn, 5000).unwrap();
    loan.copy_from_slice(&pattern(5, 5000));
    for (conn, port, link) in readers {
        let mut reader = Side::adopt(port, link.unwrap());
        reader.opened();
        server.conn = conn;
        let offer = server.port.offer(conn, &loan).unwrap();
        assert!(*reader.pulled(offer, 1).unwrap() == *loan);
    }
}

/// R68: offsets and lengths that are too big or wrap, and segments that nobody passed.
#[test]
fn r68_offers_that_cannot_be_true_are_refused() {
    let (mut server, mut client) = pair(4096);
    let loan = client.port.gate().allocate(client.conn, 64).unwrap();
    let good = client.port.offer(client.conn, &loan).unwrap();
    let size = POOL_SEGMENT_BYTES as u64;
    for offer in [
        Offer { key: good.key + 1, ..good },
        Offer { key: u64::MAX, ..good },
        Offer { address: size, len: 1, ..good },
        Offer { address: size + 1, len: 0, ..good },
        Offer { address: u64::MAX, len: 64, ..good },
        Offer { address: u64::MAX - 63, len: 64, ..good },
        Offer { address: 0, len: size + 1, ..good },
        Offer { address: size - 63, len: 64, ..good },
    ] {
        let error = server.pulled(offer, 1).unwrap_err();
        assert_eq!(error, BulkError::Offer(Violation::Malformed { what: "bulk offer" }), "{offer:?}");
    }
    assert_eq!(
        server.port.pull(server.conn, Offer { len: u64::MAX, ..good }, 1).unwrap_err(),
        Refused::TooLarge { bytes: usize::MAX, limit: 1 << 30 }
    );
    let whole = Offer { address: 0, len: size, ..good };
    assert_eq!(server.pulled(whole, 1).unwrap().len(), POOL_SEGMENT_BYTES);
    assert_eq!(server.port.counters(server.conn).in_place_bytes, size);
}

#[test]
fn loans_and_offers_have_their_limits() {
    let small = PortConfig { bulk_bytes_max: 1000, initiator_depth: 0, ..config(4096) };
    let (mut server, mut client) = pair_of(&config(4096), &small);
    let gate = client.port.gate();
    assert_eq!(
        gate.allocate(client.conn, 1001).unwrap_err(),
        LoanError::TooLarge { bytes: 1001, limit: 1000 }
    );
    assert_eq!(gate.allocate(ConnId::new(0, 99), 1).unwrap_err(), LoanError::Closed);
    // The client reads nothing, so the server may offer it nothing.
    let loan = server.port.gate().allocate(server.conn, 10).unwrap();
    assert_eq!(server.port.offer(server.conn, &loan).unwrap_err(), Refused::NoReads);
    let offer = Offer { address: 0, key: 0, len: 10 };
    assert_eq!(client.port.pull(client.conn, offer, 1).unwrap_err(), Refused::NoReads);
    let loan = gate.allocate(client.conn, 10).unwrap();
    let conn = client.conn;
    client.port.close(conn, CloseReason::Local, Time(0));
    assert_eq!(client.port.offer(conn, &loan).unwrap_err(), Refused::Closed);
    assert_eq!(gate.allocate(conn, 1).unwrap_err(), LoanError::Closed);
    assert_eq!(client.closed(), CloseReason::Local);
}

/// An offer that the dead peer made is still good: its memory lives as long as we have it mapped.
#[test]
fn a_bulk_outlives_its_connection() {
    let (mut server, mut client) = pair(4096);
    let mut loan = client.port.gate().allocate(client.conn, 3000).unwrap();
    loan.copy_from_slice(&pattern(3, 3000));
    let offer = client.port.offer(client.conn, &loan).unwrap();
    let offer = carry(&mut client, &mut server, &offer);
    drop((client, loan));
    let bulk = server.pulled(offer, 9).unwrap();
    let events = server.wait();
    assert!(events.is_empty() || matches!(events[..], [Came::Closed { .. }]), "{events:?}");
    drop(server);
    assert!(*bulk == pattern(3, 3000)[..]);
}

/// A server whose client A stays, while clients B are killed, again and again, as they read a loan.
#[test]
fn retired_segments_leave_the_peers_that_stay() {
    alone("shm::tests::bulk::child_retired_segments");
}

#[test]
#[ignore = "the other process of another test"]
fn child_retired_segments() {
    if role().is_none() {
        return;
    }
    let (mut server, mut client) = pair(4096);
    let gate = server.port.gate();
    let mut most = 0;
    for round in 0..40 {
        let loan = gate.allocate(server.conn, 1000).unwrap();
        let offer = server.port.offer(server.conn, &loan).unwrap();
        assert_eq!(client.pulled(offer, round).unwrap().len(), 1000);
        drop(loan);
        // As when B dies while it reads one.
        gate.shared.pool.allocate(&Account::new(1 << 20), 1000).unwrap().set_aside();
        server.look();
        client.look();
        most = most.max(client.port.counters(client.conn).passed_pieces);
    }
    assert_eq!(gate.shared.pool.counts(), (0, 0));
    let counters = client.port.counters(client.conn);
    assert_eq!((counters.passed_pieces, counters.passed_bytes, most), (0, 0, 0));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let shared = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    let kibibytes: u64 = shared.trim().trim_end_matches(" kB").parse().unwrap();
    println!("shared memory after 40 retired segments of 16 MiB: {kibibytes} KiB");
    assert!(kibibytes < 32 << 10, "{kibibytes} KiB of shared memory are left");
}

/// An owner whose peer does not read its socket says it later, and never passes more than the peer takes.
#[test]
fn a_full_socket_delays_the_end_of_a_segment() {
    let (mut server, mut client) = pair(4096);
    let gate = server.port.gate();
    let loan = gate.allocate(server.conn, 1000).unwrap();
    let offer = server.port.offer(server.conn, &loan).unwrap();
    assert_eq!(client.pulled(offer, 1).unwrap().len(), 1000);
    loan.set_aside();
    let Stage::Live(live) = &server.port.table.slots[0].stage else { panic!() };
    while socket::send(&live.end.socket, &[0]).is_ok() {}
    server.look();
    assert_eq!(client.port.counters(client.conn).passed_pieces, 1);
    while client.port.counters(client.conn).passed_pieces > 0 {
        client.port.table.read_sockets();
        server.look();
    }
    assert!(server.poll().is_empty() && client.poll().is_empty());
    // What is gone cannot be named again, and is not gone twice.
    assert!(matches!(client.pulled(offer, 2), Err(BulkError::Offer(_))));
    let Stage::Live(live) = &server.port.table.slots[0].stage else { panic!() };
    socket::send_gone(&live.end.socket, offer.key).unwrap();
    client.look();
    let Some(Came::Closed { reason, .. }) = client.wait().pop() else { panic!() };
    assert_eq!(reason, Violation::Malformed { what: "pool segment that was not passed" }.into());
}

/// One file under several names is counted as long as one of them is left.
#[test]
fn a_file_of_many_names_goes_with_the_last() {
    let (mut server, client) = pair(4096);
    let fd = create_file("names", 4096).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SEALS).unwrap();
    let Stage::Live(live) = &client.port.table.slots[0].stage else { panic!() };
    let counts = |server: &Side| {
        let counters = server.port.counters(server.conn);
        (counters.passed_pieces, counters.passed_bytes)
    };
    for name in 0..3 {
        send_pool(&live.end.socket, name, 4096, fd.as_fd()).unwrap();
    }
    for (name, left) in [(0, (1, 4096)), (2, (1, 4096)), (1, (0, 0))] {
        socket::send_gone(&live.end.socket, name).unwrap();
        server.port.table.read_sockets();
        assert_eq!(counts(&server), left, "without {name}");
    }
    assert!(server.poll().is_empty());
}

/// Time is what the port is told: here it goes by in leaps.
#[test]
fn large_memory_that_no_loan_uses_is_given_back() {
    let (mut server, mut client) = pair(4096);
    let gate = server.port.gate();
    assert_eq!(server.port.deadline(), Time::NEVER);
    let loan = gate.allocate(server.conn, 65 << 20).unwrap();
    let offer = server.port.offer(server.conn, &loan).unwrap();
    assert_eq!(client.pulled(offer, 1).unwrap().len(), 65 << 20);
    let mut now = server.now();
    let mut leap = |server: &mut Side, client: &mut Side| {
        // A port with such memory wakes for it.
        let wakes = server.port.deadline();
        assert_ne!(wakes, Time::NEVER);
        now = now.max(wakes).plus(SECOND);
        for more in 0..8 {
            let now = now.plus(Duration::from_millis(20 * more));
            testing::poll(&mut server.port, now, &mut server.batch);
        }
        client.look();
    };
    for _ in 0..3 {
        leap(&mut server, &mut client);
    }
    assert_eq!(gate.memory().iter().map(|piece| piece.bytes).sum::<usize>(), 72 << 20);
    drop(loan);
    leap(&mut server, &mut client);
    if !gate.memory().is_empty() {
        leap(&mut server, &mut client);
    }
    assert_eq!(gate.memory(), []);
    assert_eq!(client.port.counters(client.conn).passed_bytes, 0);
    assert_eq!(server.port.deadline(), Time::NEVER);
}

/// A connection that is never quiet for as long as a look waits keeps neither the memory nor the worker awake.
#[test]
fn large_memory_is_given_back_beside_a_message_every_few_ms() {
    let (mut server, mut client) = pair(4096);
    let gate = server.port.gate();
    drop(gate.allocate(server.conn, 65 << 20).unwrap());
    assert!(!gate.memory().is_empty());
    let start = server.now();
    for step in 0..4000 {
        let now = start.plus(Duration::from_millis(5 * step));
        client.send(b"busy", 0);
        let mut came = Vec::new();
        for tries in 0.. {
            came = testing::poll(&mut server.port, now, &mut server.batch);
            if !came.is_empty() {
                break;
            }
            assert!(tries < 1000, "the frame of step {step} is not there");
        }
        let [Came::Frame { .. }] = &came[..] else { panic!("{came:?}") };
        let Some(Came::Frame { frame, .. }) = came.pop() else { panic!() };
        server.give_back(frame);
        for more in 1..3 {
            let now = now.plus(Duration::from_millis(more));
            assert!(testing::poll(&mut server.port, now, &mut server.batch).is_empty());
            assert!(server.port.deadline() > now, "step {step}: it may not sleep");
        }
    }
    assert_eq!(gate.memory(), []);
}

/// What a peer passed is unmapped by another thread than the worker's, which may be busy with other memory: then the worker does it.
#[test]
fn the_end_of_a_connection_does_not_unmap_on_the_worker() {
    const BYTES: u64 = 64 << 20;
    let elsewhere = |_| {
        let (mut server, mut client) = pair(4096);
        let loan = server.port.gate().allocate(server.conn, BYTES as usize).unwrap();
        let offer = server.port.offer(server.conn, &loan).unwrap();
        assert_eq!(client.pulled(offer, 1).unwrap().len() as u64, BYTES);
        let before = charge::unmapped_here();
        drop((loan, server));
        assert_eq!(client.closed(), CloseReason::Peer);
        charge::unmapped_here() - before < BYTES
    };
    assert!((0..20).any(elsewhere));
}

#[test]
fn a_peer_that_keeps_loans_has_so_much_of_our_memory() {
    let small = PortConfig { loan_bytes_max: 1 << 20, ..config(4096) };
    let (mut server, mut client) = pair_of(&small, &config(4096));
    let gate = server.port.gate();
    let mut loans: Vec<_> = (0..8).map(|_| gate.allocate(server.conn, 128 << 10).unwrap()).collect();
    for loan in &loans {
        server.port.offer(server.conn, loan).unwrap();
    }
    let lack = PortError::Limit { field: "port.loan_bytes_max", value: (1 << 20) + 128, limit: 1 << 20 };
    assert_eq!(gate.allocate(server.conn, 1).unwrap_err(), LoanError::Port(lack));
    assert!(server.poll().is_empty() && client.poll().is_empty(), "the connection lives");
    let counters = server.port.counters(server.conn);
    assert_eq!((counters.loan_bytes, counters.loans_refused), (1 << 20, 1));
    loans.pop();
    assert!(gate.allocate(server.conn, 128 << 10).is_ok());
}
