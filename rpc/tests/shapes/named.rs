//! What a codec with names on the wire makes of each change.

use gimmal_rpc::MessagePack;

use super::*;

/// What is no equal value with named fields: for version `b` at a server of `a`, and the other way round.
const OTHERS: &[(&str, Outcome, Outcome)] = &[
    ("added_last", Same, Refused("missing field `more`")),
    ("added_first", Same, Refused("missing field `new`")),
    ("removed", Refused("missing field `old`"), Same),
    ("renamed", Refused("missing field `id`"), Refused("missing field `key`")),
    (
        "float_of_int",
        Refused("`x`: invalid type: floating point `1.0`, expected u32"),
        Refused("`x`: invalid type: integer `1`, expected f32"),
    ),
    ("bool_of_byte", Refused("boolean `true`, expected u8"), Refused("integer `1`, expected a boolean")),
    ("text_of_bytes", Refused("string \"x\", expected a sequence"), Refused("sequence, expected a string")),
    (
        "option_twice",
        Refused("field 1 of T: here `x: Option<Option<u8>>`, there `x: Option<u8>`"),
        Unfit("`Option<Option<u8>>`"),
    ),
    ("list_of_option", Refused("sequence, expected u32"), Refused("unit value, expected a sequence")),
    ("map_of_pairs", Refused("sequence, expected a map"), Refused("map, expected a sequence")),
    ("longer_array", Refused("1 items too many"), Refused("invalid length 3, expected an array of length 4")),
    ("tuple_swapped", Refused("argument 1: here"), Refused("argument 1: here")),
    ("tuple_longer", Refused("argument 1: here"), Refused("argument 1: here")),
    ("skip_writing", Refused("missing field `h`"), Same),
    ("skip_reading", Refused("skip_deserializing"), Unfit("`#[serde(skip_deserializing)]` on T.h")),
    ("untagged", Refused("untagged"), Refused("untagged")),
    ("tagged", Refused("tag = "), Refused("tag = ")),
    ("tagged_beside", Refused("tag = "), Refused("tag = ")),
    ("tag_of_a_struct", Refused("tag = "), Refused("tag = ")),
    ("deep_inside", Refused("untagged"), Refused("untagged")),
    (
        "variant_renamed",
        Refused("unknown variant `Store`, expected `Put`"),
        Refused("unknown variant `Put`, expected `Store`"),
    ),
    ("variant_fields_by_rule", Refused("`A`: missing field `x_y`"), Refused("`A`: missing field `xY`")),
    (
        "variant_contents",
        Refused("`A`: invalid type: a variant with contents, expected a unit variant"),
        Refused("unit variant, expected newtype variant"),
    ),
    ("tree", Same, Refused("invalid length 1")),
    ("duration", Refused("integer `1`, expected struct Duration"), Refused("map, expected u64")),
    ("opaque_version", Refused("opaque seconds@2"), Refused("opaque seconds@1")),
];

/// Whether `read` is what was sent: fields that only the sender has are skipped, those that only the reader has are at
/// their default.
fn agrees(sent: &Value, read: &Value) -> bool {
    match (sent, read) {
        (Value::Object(sent), Value::Object(read)) => read.iter().all(|(name, value)| {
            let is_default = [Value::Null, 0.into(), false.into(), "".into()].contains(value);
            sent.get(name).map_or(is_default, |sent| agrees(sent, value))
        }),
        (Value::Array(sent), Value::Array(read)) => {
            sent.len() == read.len() && sent.iter().zip(read).all(|(sent, read)| agrees(sent, read))
        }
        (sent, read) => sent == read,
    }
}

fn direction(case: &str, served: &End, caller: &End, outcome: Outcome) {
    let Called { response, seen, .. } = called(served, caller);
    let response = match (response, outcome) {
        (Err(attribute), Unfit(said)) => {
            assert!(attribute.contains(said), "{case}: {attribute}");
            return;
        }
        (Err(attribute), _) => panic!("{case}: unfit for {attribute}"),
        (Ok(response), _) => response,
    };
    match (response.status, response.body, outcome) {
        (ResponseStatus::Ok, Body::Owned(body), Same) => {
            let seen = seen.unwrap();
            assert!(agrees(&caller.value, &seen), "{case}: {} arrived as {seen}", caller.value);
            // What an old server left out of its answer may be refused, by name.
            match (caller.read)(&body) {
                Ok((_, back)) => assert!(agrees(&seen, &back), "{case}: {seen} came back as {back}"),
                Err(error) => assert!(error.to_string().contains("missing field"), "{case}: {error}"),
            }
        }
        (ResponseStatus::Failed(failure), _, Refused(said)) => {
            assert_eq!((failure.fate(), seen), (Fate::NotRun, None), "{case}");
            assert!(failure.to_string().contains(said), "{case}: {failure}");
        }
        (status, _, outcome) => panic!("{case}: {status:?}, not {outcome:?}"),
    }
}

pub(super) fn both<A: Case, B: Case>(case: &str, a: &A, b: &B) {
    let other = OTHERS.iter().find(|(name, ..)| *name == case);
    let (there, back) = other.map_or((Same, Same), |(_, there, back)| (*there, *back));
    let (a, b) = (End::new::<A, MessagePack>(a), End::new::<B, MessagePack>(b));
    direction(&format!("{case}, messagepack"), &a, &b, there);
    direction(&format!("{case}, messagepack, back"), &b, &a, back);
}

#[test]
fn every_other_outcome_is_that_of_a_case() {
    for (other, ..) in OTHERS {
        assert!(CASES.iter().any(|(case, _)| case == other), "{other}");
    }
}

mod old {
    use super::*;

    v! {
        pub(crate) struct T { pub(crate) key: u16 }
        pub(crate) enum Kind { Put }
        #[serde(deny_unknown_fields)]
        pub(crate) struct Strict { pub(crate) a: u8 }
    }
}

mod new {
    use super::*;

    const fn seven() -> u8 {
        7
    }

    v! {
        pub(crate) struct T {
            #[serde(alias = "key")] pub(crate) id: u8,
            #[serde(default = "seven")] pub(crate) more: u8,
        }
        pub(crate) enum Kind { Put, Delete(u8) }
        pub(crate) struct Strict { pub(crate) a: u8, pub(crate) b: Option<u8> }
    }
}

/// What a server reads whose type is that of `like`, or why it is refused.
fn arrives<A: Case, B: Case>(sent: &A, like: &B) -> Result<Value, String> {
    let called = called(&End::new::<B, MessagePack>(like), &End::new::<A, MessagePack>(sent));
    match called.response.unwrap().status {
        ResponseStatus::Failed(failure) => {
            assert_eq!((failure.fate(), called.seen), (Fate::NotRun, None));
            Err(failure.to_string())
        }
        _ => Ok(called.seen.unwrap()),
    }
}

#[test]
fn what_a_version_renames_adds_or_narrows_is_read_or_refused_by_name() {
    let like = new::T { id: 0, more: 0 };
    assert_eq!(arrives(&old::T { key: 5 }, &like), Ok(serde_json::json!({ "id": 5, "more": 7 })));
    let said = arrives(&old::T { key: 300 }, &like).unwrap_err();
    assert!(said.contains("`key`: invalid value: integer `300`, expected u8"), "{said}");
    assert_eq!(arrives(&old::Kind::Put, &new::Kind::Put), Ok("Put".into()));
    let said = arrives(&new::Kind::Delete(1), &old::Kind::Put).unwrap_err();
    assert!(said.contains("unknown variant `Delete`, expected `Put`"), "{said}");
    let said = arrives(&new::Strict { a: 1, b: None }, &old::Strict { a: 1 }).unwrap_err();
    assert!(said.contains("unknown field `b`, expected `a`"), "{said}");
}

mod older {
    use super::{Cx, old};

    #[gimmal_rpc::service(crate = gimmal_rpc, codec = gimmal_rpc::MessagePack)]
    pub(super) trait Store {
        async fn put(&self, cx: &Cx, order: old::T, blob: Vec<u8>) -> Result<Vec<u8>, old::Kind>;
        async fn follow(&self, cx: &Cx, items: gimmal_rpc::Sink<old::Kind>);
    }
}

#[gimmal_rpc::service(crate = gimmal_rpc, codec = MessagePack)]
trait Store {
    async fn put(&self, cx: &Cx, order: new::T, blob: Vec<u8>) -> Result<Vec<u8>, new::Kind>;
    async fn follow(&self, cx: &Cx, items: gimmal_rpc::Sink<new::Kind>);
}

struct Shelf;

impl Store for Shelf {
    async fn put(&self, _: &Cx, order: new::T, blob: Vec<u8>) -> Result<Vec<u8>, new::Kind> {
        match order.id {
            0 => Err(new::Kind::Put),
            1 => Err(new::Kind::Delete(1)),
            _ => Ok(blob),
        }
    }

    async fn follow(&self, _: &Cx, mut items: gimmal_rpc::Sink<new::Kind>) {
        items.send(&new::Kind::Put).await.unwrap();
        items.send(&new::Kind::Delete(1)).await.unwrap();
    }
}

#[test]
fn answers_errors_and_items_of_another_version_are_read_or_refused_by_name() {
    let server = Server::builder().service(serve_store(Shelf)).config(config());
    let server = server.listen("mem://shapes-store").unwrap();
    let client = Client::builder().config(config()).connect("mem://shapes-store").unwrap();
    let client = older::StoreClient::new(client);
    let put = |key| client.put(old::T { key }, vec![1, 200]).wait();
    assert_eq!(put(2).unwrap(), [1, 200]);
    assert!(matches!(put(0), Err(CallError::App(old::Kind::Put))));
    let error = put(1).unwrap_err();
    assert_eq!(error.fate(), Fate::Ran);
    assert!(format!("{error:?}").contains("unknown variant `Delete`, expected `Put`"), "{error:?}");
    let error = put(300).unwrap_err();
    assert_eq!(error.fate(), Fate::NotRun);
    let said = format!("{error:?}");
    assert!(said.contains("`key`: invalid value: integer `300`, expected u8"), "{said}");
    let (mut items, _call) = client.follow();
    assert_eq!(items.blocking_next().unwrap().unwrap(), old::Kind::Put);
    let error = items.blocking_next().unwrap().unwrap_err();
    assert!(error.to_string().contains("unknown variant `Delete`"), "{error}");
    drop(server);
}
