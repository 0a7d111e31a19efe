//! Exposed memory: room for what is withdrawn, names that nobody showed, and segments that cannot be true.

use std::os::fd::OwnedFd;

use rustix::fs::SealFlags;

use super::{
    super::{
        exposed::KNOWN_MAX,
        segment::{EXPOSED_SEALS as SEALS, create_file},
        table::Stage,
    },
    *,
};
use crate::{AccessError, Accessed, Gate, OneSided, Remote, Violation, mem::Words};

fn made(side: &mut Side, remote: Remote, op: OneSided) -> Result<Accessed, AccessError> {
    side.port.access(side.conn, remote, op, 4).map_err(|(error, _)| error)?;
    let mut events = side.wait();
    let Some(Came::Accessed { token: 4, result, .. }) = events.pop() else { panic!("{events:?}") };
    assert!(events.is_empty(), "{events:?}");
    result
}

#[test]
fn what_was_withdrawn_makes_room() {
    let (mut server, mut client) = pair(4096);
    for number in 0..KNOWN_MAX as u64 + 50 {
        let exposed = server.port.gate().expose(server.conn, 16).unwrap();
        exposed.store(8, number).unwrap();
        let remote = server.port.show(server.conn, &exposed).unwrap();
        assert_eq!(server.port.show(server.conn, &exposed), Ok(remote), "shown twice, passed once");
        let found = made(&mut client, remote, OneSided::FetchAdd { at: 8, add: 1 });
        assert!(matches!(found, Ok(Accessed::Word(word)) if word == number), "{found:?}");
        assert_eq!(exposed.load(8), Ok(number + 1));
        drop(exposed);
        let found = made(&mut client, remote, OneSided::FetchAdd { at: 8, add: 1 });
        assert!(matches!(found, Err(AccessError::NotExposed)), "{found:?}");
    }
}

#[test]
fn a_peer_is_shown_so_many_and_no_more() {
    let (mut server, mut client) = pair(4096);
    let mut kept = Vec::new();
    for _ in 0..KNOWN_MAX {
        let exposed = server.port.gate().expose(server.conn, 8).unwrap();
        let remote = loop {
            match server.port.show(server.conn, &exposed) {
                Ok(remote) => break remote,
                // Its socket holds a few; reading one for an access reads them all.
                Err(AccessError::Full) => drop(client.poll()),
                Err(error) => panic!("{error}"),
            }
        };
        made(&mut client, remote, OneSided::FetchAdd { at: 0, add: 1 }).unwrap();
        kept.push(exposed);
    }
    let more = server.port.gate().expose(server.conn, 8).unwrap();
    assert_eq!(server.port.show(server.conn, &more), Err(AccessError::Full));
    kept.truncate(KNOWN_MAX - 1);
    let remote = server.port.show(server.conn, &more).unwrap();
    made(&mut client, remote, OneSided::FetchAdd { at: 0, add: 1 }).unwrap();
}

#[test]
fn names_that_nobody_showed_name_nothing() {
    let (server, mut client) = pair(4096);
    let exposed = server.port.gate().expose(server.conn, 64).unwrap();
    for key in [0, exposed.key(), u64::MAX] {
        let mut bytes = [0; 24];
        bytes[8..16].copy_from_slice(&key.to_le_bytes());
        bytes[16..].copy_from_slice(&64_u64.to_le_bytes());
        let remote = Remote::decode(&bytes).unwrap();
        let found = made(&mut client, remote, OneSided::FetchAdd { at: 0, add: 1 });
        assert!(matches!(found, Err(AccessError::NotExposed)), "{found:?}");
    }
    assert_eq!(exposed.load(0), Ok(0));
}

/// A peer that says that there is more than there is finds what there is.
#[test]
fn a_length_that_is_not_true_reaches_no_further() {
    let (mut server, mut client) = pair(4096);
    let exposed = server.port.gate().expose(server.conn, 64).unwrap();
    let mut bytes = server.port.show(server.conn, &exposed).unwrap().encode();
    bytes[16..].copy_from_slice(&u64::MAX.to_le_bytes());
    let remote = Remote::decode(&bytes).unwrap();
    for at in [64, 4096, u64::MAX - 15] {
        let found = made(&mut client, remote, OneSided::FetchAdd { at, add: 1 });
        assert!(matches!(found, Err(AccessError::Outside { len: 64, .. })), "{found:?}");
    }
}

#[test]
fn segments_that_cannot_be_true_end_the_connection() {
    let sealed = |bytes, seals| {
        let fd: OwnedFd = create_file("exposed", bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let mapped = Words::mapped_bytes(64);
    let malformed = |what| CloseReason::Violation(Violation::Malformed { what });
    let (once, limits) = ("exposed memory passed twice", "exposed memory of an impossible size");
    let (seals, size) = ("segment without its seals", "segment of another size");
    let unwritable = "exposed memory that may not be written";
    for (fd, bytes, times, what) in [
        (sealed(mapped, SEALS.union(SealFlags::FUTURE_WRITE)), 64, 1, unwritable),
        (sealed(mapped, SEALS.union(SealFlags::WRITE)), 64, 1, unwritable),
        (sealed(mapped, SEALS), 64, 2, once),
        (sealed(mapped, SEALS), u64::MAX, 1, limits),
        (sealed(mapped, SealFlags::SHRINK), 64, 1, seals),
        (sealed(2 * mapped, SEALS), 64, 1, size),
    ] {
        let (mut server, client) = pair(4096);
        let Stage::Live(live) = &client.port.table.slots[0].stage else { panic!() };
        for _ in 0..times {
            send_exposed(&live.end.socket, 1, bytes, fd.as_fd()).unwrap();
        }
        server.port.table.read_sockets();
        assert_eq!(server.closed(), malformed(what));
    }
}
