//! Records byte by byte.

use super::super::record::{ASK_BYTES, Ask, RECORD_BYTES, Record};
use crate::pack::join;

#[test]
fn records_and_requests_round_trip() {
    for record in [
        Record::Grant,
        Record::Goodbye { how: 3 },
        Record::Credit { position: u64::MAX - 15 },
        Record::Ask { id: 7, what: 2 },
        Record::Data { id: u32::MAX, bytes: 0 },
        Record::Put { id: 0, bytes: 65_536 },
        Record::End { id: 1, status: 9 },
        Record::Pulse,
    ] {
        let bytes = record.encode();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(Record::decode(word(0), word(8)), Ok(record));
    }
    for ask in [
        Ask::Pull { key: 1, at: 2, len: 3 },
        Ask::Read { key: 1, at: 2, len: 3 },
        Ask::Write { key: 1, at: 2, len: 3 },
        Ask::Swap { key: 1, at: 2, expected: 3, new: 4 },
        Ask::Add { key: 1, at: 2, add: u64::MAX },
    ] {
        let (what, body) = ask.encode();
        assert_eq!(Ask::decode(what, &body), Ok(ask));
    }
}

#[test]
fn a_golden_record() {
    let mut golden = [0; RECORD_BYTES];
    golden[4] = 5;
    golden[8] = 7;
    golden[12..14].copy_from_slice(&[0, 1]);
    assert_eq!(Record::Data { id: 7, bytes: 256 }.encode(), golden);
}

#[test]
fn what_is_no_record_is_a_violation() {
    for kind in (0..64).filter(|kind| !(1..=8).contains(kind)) {
        assert!(Record::decode(join(0, kind), 0).is_err(), "kind {kind}");
    }
    assert!(Record::decode(join(1, 1), 0).is_err(), "a length");
    for what in (0..64).filter(|what| !(1..=5).contains(what)) {
        assert!(Ask::decode(what, &[0; ASK_BYTES]).is_err(), "request {what}");
    }
}
