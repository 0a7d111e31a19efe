//! A peer that speaks the engine's protocol but not ours: whatever it sends, the server lives, and lives on for others.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::time::Duration;

use common::{Fixture, config, connections, until};
use gimmal_rpc::{
    engine::{
        App, Head, Inline, Io, Message,
        transport::{Address, CloseReason, ConnId, Port, any::Any},
    },
    frame::{BARE_REQUEST, BARE_RESPONSE, Flags, Kind, REQUESTS, RESPONSES, RequestHead},
    id::CallId,
};
use proptest::prelude::*;

/// Remembers what happened to it.
#[derive(Debug, Default)]
struct Hostile {
    answers: Vec<(u16, u64, Vec<u8>)>,
    closed: Option<CloseReason>,
}

impl App for Hostile {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        self.answers.push((message.head.kind, message.head.aux, message.body.to_vec()));
        if let Some(bulk) = message.bulk {
            io.decline(conn, bulk);
        }
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        self.closed = Some(reason.clone());
    }
}

struct Attacker {
    inline: Inline<Any, Hostile>,
    conn: ConnId,
}

impl Attacker {
    fn new(url: &str) -> Self {
        let plan = config().engine.validate().unwrap();
        let mut inline = Inline::new(&Any::new(), &plan, Hostile::default()).unwrap();
        let (conn, _) = inline.connect(&url.parse::<Address>().unwrap()).unwrap();
        Self { inline, conn }
    }

    fn send(&mut self, kind: u16, aux: u64, body: &[u8]) -> bool {
        let conn = self.conn;
        let sent = self.inline.with(|_, io| {
            io.send(conn, Head { kind, aux }, body.len(), |out| {
                out[..body.len()].copy_from_slice(body);
                Some(body.len())
            })
        });
        self.inline.idle(Duration::from_millis(1));
        sent.is_ok()
    }

    fn until_closed(&mut self) {
        let inline = &mut self.inline;
        until("the server closes the connection", || {
            inline.idle(Duration::from_millis(1));
            inline.app().closed.is_some()
        });
    }

    fn until_answers(&mut self, count: usize) {
        let inline = &mut self.inline;
        until("the answers are here", || {
            inline.idle(Duration::from_millis(1));
            inline.app().answers.len() >= count
        });
    }
}

const REQUEST: u16 = Kind::Request.with(Flags::NONE);
const RESPONSE: u16 = Kind::Response.with(Flags::NONE);
const SCHEMA: u16 = Kind::Schema.with(Flags::NONE);
const ONE_WAY: u16 = Kind::Request.with(Flags::ONE_WAY);
const UP_ITEM: u16 = Kind::Item.with(Flags::NONE);
const UP_END: u16 = Kind::End.with(Flags::NONE);
const UP_ABORT: u16 = Kind::End.with(Flags::ABORT);
const UP_CREDIT: u16 = Kind::Credit.with(Flags::NONE);
const DOWN_ITEM: u16 = Kind::Item.with(Flags::DOWN);
const DOWN_CREDIT: u16 = Kind::Credit.with(Flags::DOWN);
const DOWN_END: u16 = Kind::End.with(Flags::DOWN);
const UP_STOP: u16 = Kind::Credit.with(Flags::ABORT);
const DOWN_STOP: u16 = Kind::Credit.with(Flags::DOWN.and(Flags::ABORT));

fn request(name: &str) -> Vec<u8> {
    let methods = gimmal_rpc::Service::methods(&common::serve_probe(common::Prober::default()));
    let method = methods.iter().find(|method| method.name == name).unwrap();
    RequestHead { method: method.id, signature: method.signature_hash, deadline_us: 0, window: 0 }
        .encode()
        .to_vec()
}

for_each_scheme! {
    what_is_no_message_closes_its_connection
    r86_a_doubled_request_is_not_run_again
    items_and_credit_out_of_place
    answers_and_cancels_of_nothing_are_ignored
    a_caller_that_ignores_the_limit_is_refused
    requests_in_company_are_checked_as_others_are
}

fn what_is_no_message_closes_its_connection(scheme: &str) {
    let fixture = Fixture::new(scheme, "nonsense");
    let honest = fixture.client();
    let nonsense: [(u16, &[u8]); 18] = [
        (0, b""),
        (ONE_WAY, b"short"),
        (99, b"what"),
        (REQUEST, b"short"),
        (RESPONSE, b"short"),
        (RESPONSE, &[9; 8]),
        // Flags that nobody has, or that do not go together.
        (REQUEST | 0x8000, b""),
        (REQUEST | 0xff00, b""),
        (Kind::Cancel.with(Flags::LARGE), b""),
        (Kind::Request.with(Flags::NO_HEAD.and(Flags::METADATA)), &[0; 64]),
        // Without what their flags promise.
        (Kind::Request.with(Flags::METADATA), &[0xff; 64]),
        (Kind::Response.with(Flags::LARGE), &[0; 8]),
        // Like which request?
        (BARE_REQUEST, b"arguments"),
        (REQUESTS, &[0; 8]),
        (RESPONSES, b"short"),
        (SCHEMA, b"short"),
        (RESPONSES, &[1; 16]),
        // More than a message may hold.
        (RESPONSES, &[0; 9 * 8]),
    ];
    for (kind, body) in nonsense {
        let mut attacker = Attacker::new(&fixture.url);
        attacker.send(kind, 0, body);
        attacker.until_closed();
        assert_eq!(honest.echo("still here".to_owned()).wait().unwrap(), "still here");
    }
}

fn r86_a_doubled_request_is_not_run_again(scheme: &str) {
    let fixture = Fixture::new(scheme, "doubled");
    let mut attacker = Attacker::new(&fixture.url);
    let id = CallId { slot: 3, generation: 7 };
    attacker.send(REQUEST, id.aux(), &request("hang"));
    until("it runs", || fixture.hanging() == 1);
    attacker.send(REQUEST, id.aux(), &request("hang"));
    attacker.until_closed();
    until("its handler was dropped", || fixture.hanging() == 0);
    assert_eq!(fixture.server.stats().started, 1);
}

fn items_and_credit_out_of_place(scheme: &str) {
    let fixture = Fixture::new(scheme, "items");
    let kinds = [UP_ITEM, DOWN_ITEM, UP_END, UP_ABORT, UP_CREDIT, DOWN_CREDIT, DOWN_END, UP_STOP, DOWN_STOP];
    let id = CallId { slot: 2, generation: 1 };
    for kind in kinds {
        // Of calls that are not there: late, for all we know.
        let mut attacker = Attacker::new(&fixture.url);
        attacker.send(kind, id.aux(), &[1; 4]);
        attacker.send(REQUEST, 0, &[&request("echo")[..], b"\x02ok"].concat());
        attacker.until_answers(1);
    }
    for kind in [UP_ITEM, UP_END, UP_ABORT, DOWN_CREDIT, DOWN_STOP] {
        // Of a call that has no streams.
        let mut attacker = Attacker::new(&fixture.url);
        attacker.send(REQUEST, id.aux(), &request("hang"));
        until("it runs", || fixture.hanging() == 1);
        attacker.send(kind, id.aux(), &[1; 4]);
        attacker.until_closed();
        until("its handler was dropped", || fixture.hanging() == 0);
    }
}

fn answers_and_cancels_of_nothing_are_ignored(scheme: &str) {
    let fixture = Fixture::new(scheme, "nothing");
    let mut attacker = Attacker::new(&fixture.url);
    for aux in [0, 5, 1 << 32, u64::MAX] {
        attacker.send(RESPONSE, aux, &[0; 8]);
        attacker.send(BARE_RESPONSE, aux, b"what");
        attacker.send(RESPONSES, 0, &(aux & !0xffff_0000).to_le_bytes());
        attacker.send(Kind::Cancel.with(Flags::NONE), aux, b"");
    }
    attacker.send(REQUEST, 0, &[&request("echo")[..], b"\x02ok"].concat());
    attacker.until_answers(1);
    assert_eq!(attacker.inline.app().answers[0], (BARE_RESPONSE, 0, b"\x02ok".to_vec()));
    assert_eq!(fixture.server.stats().late_answers, 12);
}

fn a_caller_that_ignores_the_limit_is_refused(scheme: &str) {
    let fixture = Fixture::new(scheme, "limit");
    let mut attacker = Attacker::new(&fixture.url);
    for slot in [256, 16_384, u32::MAX] {
        let id = CallId { slot, generation: 0 };
        attacker.send(REQUEST, id.aux(), &request("hang"));
    }
    attacker.until_answers(3);
    // With metadata, of which there is none.
    for slot in [256, u32::MAX] {
        let id = CallId { slot, generation: 0 };
        attacker.send(
            Kind::Request.with(Flags::METADATA),
            id.aux(),
            &[&request("hang")[..], &[0; 16]].concat(),
        );
    }
    attacker.until_answers(5);
    for (_, _, body) in &attacker.inline.app().answers {
        assert_eq!(body[..3], [2, 8, 0], "ResourceExhausted, not run");
    }
    assert_eq!(fixture.server.stats().started, 0);
}

/// Over verbs a peer that takes no turn finds no room to send so many: its completions are read in a turn.
#[test]
fn a_peer_that_reads_no_refusal_is_cut_off() {
    let fixture = Fixture::new("shm", "refusals");
    let mut attacker = Attacker::new(&fixture.url);
    until("the server knows it", || connections(&fixture.server) == [1]);
    let (conn, body) = (attacker.conn, request("hang"));
    let id = CallId { slot: u32::MAX, generation: 0 };
    // It sends all the time, and takes no turn, so it reads nothing.
    until("the server has refused more than it keeps", || {
        let mut send = || {
            attacker.inline.with(|_, io| {
                io.send(conn, Head { kind: REQUEST, aux: id.aux() }, body.len(), |out| {
                    out[..body.len()].copy_from_slice(&body);
                    Some(body.len())
                })
            })
        };
        while send().is_ok() {}
        connections(&fixture.server) == [0]
    });
    assert!(fixture.server.stats().refused > 16_384);
    attacker.until_closed();
    fixture.client().echo("others are served".to_owned()).wait().unwrap();
}

/// A message of calls, each with these arguments: eight bytes or none.
fn batch(ids: &[CallId], arguments: &[u8]) -> Vec<u8> {
    let bytes = arguments.len() as u64;
    let word = |id: &CallId| u64::from(id.slot) | bytes << 16 | u64::from(id.generation) << 32;
    ids.iter().flat_map(|id| [&word(id).to_le_bytes()[..], arguments].concat()).collect()
}

fn requests_in_company_are_checked_as_others_are(scheme: &str) {
    let fixture = Fixture::new(scheme, "company");
    let ids =
        |slots: std::ops::Range<u32>| slots.map(|slot| CallId { slot, generation: 1 }).collect::<Vec<_>>();
    // Above the limit: those are refused, and the others run.
    let mut attacker = Attacker::new(&fixture.url);
    attacker.send(REQUEST, 0, &[&request("reverse")[..], b"first"].concat());
    attacker.send(REQUESTS, 0, &batch(&ids(254..259), b"abcdefgh"));
    attacker.until_answers(5);
    let kinds: Vec<_> = attacker
        .inline
        .app()
        .answers
        .iter()
        .map(|(kind, aux, _)| (*kind, CallId::from_aux(*aux).slot))
        .collect();
    let refused = [256, 257, 258].map(|slot| (RESPONSE, slot));
    assert_eq!(kinds, [&[(BARE_RESPONSE, 0), (RESPONSES, 0)][..], &refused].concat());
    assert_eq!(attacker.inline.app().answers[1].2, batch(&ids(254..256), b"hgfedcba"));
    assert_eq!(attacker.inline.app().answers[2].2[..3], [2, 8, 0], "ResourceExhausted, not run");
    // It ends in the middle of one.
    attacker.send(REQUESTS, 0, &batch(&ids(0..3), b"abcdefgh")[..40]);
    attacker.until_closed();
    // Handlers that are pending are run too, and one of them is not run twice.
    let mut attacker = Attacker::new(&fixture.url);
    attacker.send(REQUEST, 0, &request("hang"));
    attacker.send(REQUESTS, 0, &batch(&ids(1..4), b""));
    until("four run", || fixture.hanging() == 4);
    attacker.send(REQUESTS, 0, &batch(&ids(3..5), b""));
    attacker.until_closed();
    until("their handlers were dropped", || fixture.hanging() == 0);
    // Two of the message that was cut ran.
    assert_eq!(fixture.server.stats().started, 3 + 2 + 4);
    // What was said on one connection says nothing on another.
    let mut attacker = Attacker::new(&fixture.url);
    attacker.send(REQUESTS, 0, &batch(&ids(0..1), b"abcdefgh"));
    attacker.until_closed();
}

/// Every message that there is, and some that there are not.
const CODES: [u16; 31] = [
    SCHEMA,
    0,
    9,
    0x8001,
    0x2004,
    REQUEST,
    Kind::Request.with(Flags::METADATA),
    Kind::Request.with(Flags::LARGE),
    ONE_WAY,
    BARE_REQUEST,
    REQUESTS,
    RESPONSE,
    Kind::Response.with(Flags::METADATA),
    Kind::Response.with(Flags::LARGE),
    Kind::Response.with(Flags::LARGE.and(Flags::METADATA)),
    BARE_RESPONSE,
    RESPONSES,
    UP_ITEM,
    DOWN_ITEM,
    Kind::Item.with(Flags::BULK),
    Kind::Item.with(Flags::BULK.and(Flags::DOWN)),
    UP_END,
    UP_ABORT,
    UP_CREDIT,
    DOWN_CREDIT,
    DOWN_END,
    UP_STOP,
    DOWN_STOP,
    Kind::Cancel.with(Flags::NONE),
    Kind::GoAway.with(Flags::NONE),
    Kind::Request.with(Flags::LARGE.and(Flags::METADATA)),
];

#[test]
fn any_bytes_leave_the_server_alive() {
    let fixture = Fixture::new("mem", "fuzz");
    let honest = fixture.client();
    let names = ["echo", "divide", "fill", "reverse", "sum", "left", "hang"];
    let message = (
        proptest::sample::select(&CODES[..]),
        0u64..8,
        0..names.len(),
        any::<bool>(),
        proptest::collection::vec(any::<u8>(), 0..40),
    );
    let messages = proptest::collection::vec(message, 1..20);
    let cases = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(cases, |(messages in messages)| {
        let mut attacker = Attacker::new(&fixture.url);
        for (kind, aux, name, headed, tail) in messages {
            let mut body = if headed { request(names[name]) } else { Vec::new() };
            body.extend_from_slice(&tail);
            // A few bytes may ask it for 4 GiB.
            if headed && names[name] == "fill" {
                continue;
            }
            if !attacker.send(kind, aux, &body) {
                break;
            }
        }
        prop_assert_eq!(honest.echo("alive".to_owned()).wait().unwrap(), "alive");
    });
    drop(honest);
    until("nothing is left", || fixture.hanging() == 0 && fixture.server.stats().serving == 0);
    assert_eq!(fixture.server.stats().panics, 0);
}
