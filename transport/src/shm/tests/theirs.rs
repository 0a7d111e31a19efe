//! Memory that a peer passes: what of it is taken, what it costs, and what the peer can do to it afterwards.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::{
    super::{
        bulk::SEGMENTS,
        exposed::KNOWN_MAX,
        segment::{EXPOSED_SEALS, SEALS, create_file},
        table::Stage,
    },
    skip, *,
};
use crate::{
    AccessError, Accessed, Gate, Offer, OneSided, Remote, Violation,
    mem::{Words, charge::MAPPINGS_MAX},
    testing::process::{alone, role},
};

const PAGE: usize = 4096;

fn sealed(name: &str, bytes: usize, seals: SealFlags) -> OwnedFd {
    let fd = create_file(name, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn socket_of(side: &Side) -> BorrowedFd<'_> {
    let Stage::Live(live) = &side.port.table.slots[side.conn.index() as usize].stage else { panic!() };
    live.end.socket.as_fd()
}

/// What `from` exposed as `name`, whatever it is.
fn remote(name: u64, bytes: u64) -> Remote {
    let mut encoded = [0; 24];
    encoded[8..16].copy_from_slice(&name.to_le_bytes());
    encoded[16..].copy_from_slice(&bytes.to_le_bytes());
    Remote::decode(&encoded).unwrap()
}

fn made(side: &mut Side, remote: Remote, op: OneSided) -> Result<Accessed, AccessError> {
    side.port.access(side.conn, remote, op, 4).map_err(|(error, _)| error)?;
    let mut events = side.wait();
    let Some(Came::Accessed { token: 4, result, .. }) = events.pop() else { panic!("{events:?}") };
    result
}

/// Bytes of the file `name` that this process has page table entries for; `None`: it has no mapping of it.
fn resident(name: &str) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let lines = smaps.lines().skip_while(|line| !line.contains(&format!("/memfd:{name} ")));
    let rss = lines.map_while(|line| Some(line.strip_prefix("Rss:"))).flatten().next()?;
    Some(rss.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10)
}

fn malformed(what: &'static str) -> CloseReason {
    CloseReason::Violation(Violation::Malformed { what })
}

/// How many mappings this process has of files called `name`.
fn maps(name: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(&format!("/memfd:{name} "))).count() as u64
}

/// A second name for a file costs the peer nothing: it costs us no mapping. All of them can be used, and there is an end.
#[test]
fn a_file_is_mapped_once_under_all_its_names() {
    let (bytes, shown) = (16 * PAGE as u64, PAGE as u64 - 16);
    let lent = sealed("named-lent", 16 * PAGE, SEALS);
    let exposed = sealed("named-shown", PAGE, EXPOSED_SEALS);
    let (mut server, client) = pair(4096);
    for name in 0..200 {
        send_pool(socket_of(&client), name, bytes, lent.as_fd()).unwrap();
        send_exposed(socket_of(&client), name, shown, exposed.as_fd()).unwrap();
        server.port.table.read_sockets();
    }
    assert!(server.poll().is_empty());
    assert_eq!((maps("named-lent"), maps("named-shown")), (1, 1));
    let counters = server.port.counters(server.conn);
    assert_eq!((counters.passed_pieces, counters.passed_bytes), (2, bytes + PAGE as u64));
    for name in [0, 199] {
        let bulk = server.pulled(Offer { address: 0, key: name, len: bytes }, name);
        assert_eq!(bulk.unwrap().len(), 16 * PAGE);
        made(&mut server, remote(name, shown), OneSided::FetchAdd { at: 0, add: 1 }).unwrap();
    }
    for name in 200..=SEGMENTS.pieces_max as u64 {
        send_pool(socket_of(&client), name, bytes, lent.as_fd()).unwrap();
        server.port.table.read_sockets();
    }
    let limit = SEGMENTS.pieces_max as u64;
    let violation = Violation::Passed { what: "pool segments", value: limit + 1, limit };
    assert_eq!(server.closed(), CloseReason::Violation(violation));
}

/// Neither page tables nor pages before somebody asks for them; what was asked for is there.
#[test]
fn what_is_passed_is_not_touched_before_it_is_used() {
    let bytes = 64 << 20;
    let (mut server, client) = pair(4096);
    let lent = sealed("untouched-lent", bytes, SEALS);
    let shown = sealed("untouched-shown", Words::mapped_bytes(bytes - 16), EXPOSED_SEALS);
    send_pool(socket_of(&client), 1, bytes as u64, lent.as_fd()).unwrap();
    send_exposed(socket_of(&client), 2, bytes as u64 - 16, shown.as_fd()).unwrap();
    server.port.table.read_sockets();
    assert!(server.poll().is_empty());
    assert_eq!((resident("untouched-lent"), resident("untouched-shown")), (Some(0), Some(0)));
    // Less than two pages, and what the kernel brings around them.
    let offer = Offer { address: 8 << 20, key: 1, len: 5000 };
    let bulk = server.pulled(offer, 9);
    assert!(bulk.unwrap().iter().all(|byte| *byte == 0));
    made(&mut server, remote(2, 64), OneSided::FetchAdd { at: 8, add: 1 }).unwrap();
    for name in ["untouched-lent", "untouched-shown"] {
        let resident = resident(name).unwrap();
        assert!((1..4 << 20).contains(&resident), "{name}: {resident}");
    }
}

#[test]
fn a_connection_passes_so_much_and_no_more() {
    let (mut server, client) = pair(4096);
    for name in 0..SEGMENTS.pieces_max as u64 {
        let fd = sealed("many", PAGE, SEALS);
        send_pool(socket_of(&client), name, PAGE as u64, fd.as_fd()).unwrap();
        server.port.table.read_sockets();
    }
    assert!(server.poll().is_empty());
    assert_eq!(server.port.counters(server.conn).passed_pieces, SEGMENTS.pieces_max as u64);
    let fd = sealed("many", PAGE, SEALS);
    send_pool(socket_of(&client), u64::MAX, PAGE as u64, fd.as_fd()).unwrap();
    server.port.table.read_sockets();
    let limit = SEGMENTS.pieces_max as u64;
    let passed = |what, value, limit| CloseReason::Violation(Violation::Passed { what, value, limit });
    assert_eq!(server.closed(), passed("pool segments", limit + 1, limit));
    // Bytes, whether they are there or not.
    for is_pool in [true, false] {
        let (mut server, client) = pair(4096);
        let bytes: u64 = 1 << 43;
        let what = match is_pool {
            true => send_pool(socket_of(&client), 1, bytes, fd.as_fd()).map(|()| "pool segments"),
            false => {
                let pieces = "pieces of exposed memory";
                send_exposed(socket_of(&client), 1, bytes - 16, fd.as_fd()).map(|()| pieces)
            }
        };
        server.port.table.read_sockets();
        let what = match what.unwrap() {
            "pool segments" => "bytes of pool segments",
            _ => "bytes of exposed memory",
        };
        assert_eq!(server.closed(), passed(what, bytes, 1 << 42));
    }
}

#[test]
fn nothing_is_passed_where_no_bulk_was_agreed() {
    for is_pool in [true, false] {
        let none = PortConfig { initiator_depth: 0, ..config(4096) };
        let (mut server, client) = pair_of(&none, &config(4096));
        // An honest peer passes nothing, and what it shows is of no use.
        let exposed = client.port.gate().expose(client.conn, 64).unwrap();
        let mut client = client;
        let remote = client.port.show(client.conn, &exposed).unwrap();
        let refused = made(&mut server, remote, OneSided::FetchAdd { at: 0, add: 1 });
        assert!(matches!(refused, Err(AccessError::Off)), "{refused:?}");
        server.port.table.read_sockets();
        assert!(server.poll().is_empty());
        let sent = if is_pool {
            let fd = sealed("unasked", PAGE, SEALS);
            send_pool(socket_of(&client), 1, PAGE as u64, fd.as_fd())
        } else {
            let fd = sealed("unasked", PAGE, EXPOSED_SEALS);
            send_exposed(socket_of(&client), 1, 64, fd.as_fd())
        };
        sent.unwrap();
        server.port.table.read_sockets();
        assert_eq!(server.closed(), malformed("memory where no reads were granted"));
        assert_eq!(resident("unasked"), None);
    }
}

/// The peer takes its pages back: they come again, zeroed, and nobody gets a signal.
#[test]
fn holes_in_exposed_memory_are_zeros() {
    let bytes = (4 << 20) - 16;
    let mapped = Words::mapped_bytes(bytes);
    let fd = sealed("punched", mapped, EXPOSED_SEALS);
    let punch = || {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&fd, flags, 0, mapped as u64).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0);
    };
    let (mut server, client) = pair(4096);
    send_exposed(socket_of(&client), 77, bytes as u64, fd.as_fd()).unwrap();
    server.port.table.read_sockets();
    for round in 0..3 {
        let add = OneSided::FetchAdd { at: 1 << 20, add: 5 };
        let found = made(&mut server, remote(77, bytes as u64), add);
        assert!(matches!(found, Ok(Accessed::Word(0))), "round {round}: {found:?}");
        let into = server.port.gate().allocate(server.conn, bytes).unwrap();
        let read = made(&mut server, remote(77, bytes as u64), OneSided::Read { at: 0, into });
        let Ok(Accessed::Loan(loan)) = read else { panic!("round {round}: {read:?}") };
        assert_eq!(loan.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 5, "round {round}");
        punch();
    }
}

/// Huge pages that a peer takes back are given to somebody else, and touching them is SIGBUS. With or without a page in
/// the system's pool: the kind of file alone decides.
#[test]
fn exposed_memory_on_huge_pages_is_refused() {
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let fd = match rustix::fs::memfd_create("huge", flags) {
        Ok(fd) => fd,
        Err(errno) => {
            return skip(&format!("no huge pages: {errno}"));
        }
    };
    let bytes: u64 = 2 << 20;
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    let has_page = rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes).is_ok();
    println!("with a huge page: {has_page}");
    rustix::fs::fcntl_add_seals(&fd, EXPOSED_SEALS).unwrap();
    let (mut server, client) = pair(4096);
    send_exposed(socket_of(&client), 77, bytes - 16, fd.as_fd()).unwrap();
    server.port.table.read_sockets();
    assert_eq!(server.closed(), malformed("segment on pages of another kind"));
}

/// What was passed before an offer is found, however much waits on the socket.
#[test]
fn the_last_of_many_pieces_is_found() {
    let (mut server, mut client) = pair(4096);
    let gate = server.port.gate();
    let kept: Vec<_> = (0..20).map(|_| gate.expose(server.conn, 16).unwrap()).collect();
    let remotes: Vec<_> = kept.iter().map(|one| server.port.show(server.conn, one).unwrap()).collect();
    for remote in [remotes[19], remotes[0]] {
        let found = made(&mut client, remote, OneSided::FetchAdd { at: 8, add: 1 });
        assert!(matches!(found, Ok(Accessed::Word(0))), "{found:?}");
    }
    // Each more than half a segment, so each in one of its own.
    let loans: Vec<_> = (0..18).map(|_| gate.allocate(server.conn, (8 << 20) + PAGE).unwrap()).collect();
    let offers: Vec<_> = loans.iter().map(|loan| server.port.offer(server.conn, loan).unwrap()).collect();
    let bulk = client.pulled(offers[17], 9);
    assert_eq!(bulk.unwrap().len(), (8 << 20) + PAGE);
}

/// However many peers there are, mappings are left for threads, rings and memory of our own.
#[test]
fn all_peers_together_leave_mappings_for_the_rest() {
    alone("shm::tests::theirs::child_all_peers");
}

#[test]
#[ignore = "the other process of another test"]
fn child_all_peers() {
    if role().is_none() {
        return;
    }
    let each = SEGMENTS.pieces_max as u64;
    let mut pairs: Vec<_> = (0..MAPPINGS_MAX / each).map(|_| pair(4096)).collect();
    let pass = |(server, client): &mut (Side, Side), name, fd: &OwnedFd| {
        send_pool(socket_of(client), name, PAGE as u64, fd.as_fd()).unwrap();
        server.port.table.read_sockets();
    };
    for name in 0..each {
        let fd = sealed("many", PAGE, SEALS);
        pairs.iter_mut().for_each(|pair| pass(pair, name, &fd));
    }
    assert!(pairs.iter_mut().all(|(server, _)| server.poll().is_empty()));
    assert_eq!(maps("many"), MAPPINGS_MAX);
    let mut another = pair(4096);
    let fd = sealed("many", PAGE, SEALS);
    pass(&mut another, 1, &fd);
    let (field, limit) = ("mappings of peers' memory", MAPPINGS_MAX);
    let lack = crate::PortError::Limit { field, value: limit + 1, limit };
    assert_eq!(another.0.closed(), CloseReason::Port(Box::new(lack)));
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    drop(pairs.pop());
    let mut another = pair(4096);
    pass(&mut another, 1, &fd);
    assert!(another.0.poll().is_empty(), "there is room again");
    assert_eq!(maps("many"), MAPPINGS_MAX - each + 1);
    const { assert!(KNOWN_MAX <= SEGMENTS.pieces_max) };
}
