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

/// Answers, errors and items that are not read, and why: those of a server of `a` by a client of `b`, and the other way round.
const UNREAD: &[(&str, &str, &str)] = &[
    ("added_last", "field `more` of T: here `more: u8`, there `none`", ""),
    ("added_first", "field `new` of T: here `new: u64`, there `none`", ""),
    ("removed", "", "field `old` of T: here `old: u8`, there `none`"),
    (
        "renamed",
        "field `key` of T: here `key: u64`, there `none`",
        "field `id` of T: here `id: u64`, there `none`",
    ),
    ("wider", "", "field `id` of T: here `id: u32`, there `id: u64`"),
    ("byte", "", "field `id` of T: here `id: u8`, there `id: u16`"),
    (
        "signed",
        "field `id` of T: here `id: i64`, there `id: u64`",
        "field `id` of T: here `id: u64`, there `id: i64`",
    ),
    ("float", "", "field `x` of T: here `x: f32`, there `x: f64`"),
    (
        "float_of_int",
        "field `x` of T: here `x: f32`, there `x: u32`",
        "field `x` of T: here `x: u32`, there `x: f32`",
    ),
    (
        "bool_of_byte",
        "field `x` of T: here `x: bool`, there `x: u8`",
        "field `x` of T: here `x: u8`, there `x: bool`",
    ),
    ("letter", "", "field `x` of T: here `x: char`, there `x: String`"),
    (
        "text_of_bytes",
        "field `x` of T: here `x: String`, there `x: Vec<u8>`",
        "field `x` of T: here `x: Vec<u8>`, there `x: String`",
    ),
    (
        "wide_integer",
        "field `x` of T: here `x: i128`, there `x: u128`",
        "field `x` of T: here `x: u128`, there `x: i128`",
    ),
    ("option", "", "field `x` of T: here `x: u8`, there `x: Option<u8>`"),
    ("option_twice", "field 1 of T: here `x: Option<Option<u8>>`, there `x: Option<u8>`", ""),
    (
        "list_of_option",
        "field `x` of T: here `x: Vec<u32>`, there `x: Option<u32>`",
        "field `x` of T: here `x: Option<u32>`, there `x: Vec<u32>`",
    ),
    ("items", "", "field `x` of T: here `x: Vec<u16>`, there `x: Vec<u32>`"),
    (
        "map_of_pairs",
        "field `x` of T: here `x: Vec<(u8, u8)>`, there `x: BTreeMap<u8, u8>`",
        "field `x` of T: here `x: BTreeMap<u8, u8>`, there `x: Vec<(u8, u8)>`",
    ),
    ("map_values", "", "field `x` of T: here `x: BTreeMap<u8, u8>`, there `x: BTreeMap<u8, u16>`"),
    (
        "longer_array",
        "field `x` of T: here `x: [u8; 4]`, there `x: [u8; 3]`",
        "field `x` of T: here `x: [u8; 3]`, there `x: [u8; 4]`",
    ),
    ("array_of_list", "field `x` of T: here `x: [u8; 1]`, there `x: Vec<u8>`", ""),
    ("tuple_swapped", "here `(u16, u8)`, there `(u8, u16)`", "here `(u8, u16)`, there `(u16, u8)`"),
    ("tuple_longer", "here `(u8, u16, u8)`, there `(u8, u16)`", "here `(u8, u16)`, there `(u8, u16, u8)`"),
    ("skip_writing", "", "field `h` of T: here `h: u8`, there `h: u8` or `none`"),
    ("skip_reading", "attributes of serde: here ``#[serde(skip_deserializing)]` on T.h`, there `none`", ""),
    (
        "untagged",
        "attributes of serde: here ``#[serde(untagged)]` on T`, there `none`",
        "attributes of serde: here `none`, there ``#[serde(untagged)]` on T`",
    ),
    (
        "tagged",
        "attributes of serde: here ``#[serde(tag = \"t\")]` on T`, there `none`",
        "attributes of serde: here `none`, there ``#[serde(tag = \"t\")]` on T`",
    ),
    (
        "tagged_beside",
        "attributes of serde: here ``#[serde(tag = \"t\")]` on T, `#[serde(content = \"c\")]` on T`, there `none`",
        "attributes of serde: here `none`, there ``#[serde(tag = \"t\")]` on T, `#[serde(content = \"c\")]` on T`",
    ),
    (
        "tag_of_a_struct",
        "attributes of serde: here ``#[serde(tag = \"t\")]` on T`, there `none`",
        "attributes of serde: here `none`, there ``#[serde(tag = \"t\")]` on T`",
    ),
    (
        "deep_inside",
        "attributes of serde: here ``#[serde(untagged)]` on In`, there `none`",
        "attributes of serde: here `none`, there ``#[serde(untagged)]` on In`",
    ),
    ("skipped_variant", "a variant of T: here `none`, there `Internal`", ""),
    ("variant_added", "", "a variant of T: here `none`, there `Delete`"),
    ("variant_before", "", "a variant of T: here `none`, there `Get`"),
    ("variant_removed", "a variant of T: here `none`, there `Delete`", ""),
    (
        "variant_renamed",
        "a variant of T: here `none`, there `Put`",
        "a variant of T: here `none`, there `Store`",
    ),
    (
        "variant_fields_by_rule",
        "field `xY` of T::A: here `xY: u8`, there `none`",
        "field `x_y` of T::A: here `x_y: u8`, there `none`",
    ),
    (
        "variant_contents",
        "T::A: here `one value`, there `nothing`",
        "T::A: here `nothing`, there `one value`",
    ),
    ("variant_value", "", "T::A: here `u8`, there `u16`"),
    ("variant_pair", "T::A: here `one value`, there `2 values`", "T::A: here `2 values`, there `one value`"),
    ("generic", "", "field `x` of G: here `x: u8`, there `x: u16`"),
    ("recursive_changed", "", "field `x` of T: here `x: u8`, there `x: u16`"),
    ("tree", "T::Node: here `2 values`, there `one value`", "T::Node: here `one value`, there `2 values`"),
    (
        "duration",
        "field `x` of T: here `x: u64`, there `x: Duration`",
        "field `x` of T: here `x: Duration`, there `x: u64`",
    ),
    (
        "opaque_version",
        "types compared by name: here `opaque seconds@2`, there `opaque seconds@1`",
        "types compared by name: here `opaque seconds@1`, there `opaque seconds@2`",
    ),
    ("result", "Result::Err: here `u8`, there `u16`", "Result::Ok: here `u8`, there `u16`"),
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

/// An argument: the server reads it, or refuses the value.
fn argument(case: &str, pair: &Pair<'_>, outcome: Outcome) {
    let Called { response, seen, .. } = pair.call(Place::Argument);
    match (response.status, outcome) {
        (ResponseStatus::Ok, Same) => {
            let (sent, seen) = (&pair.caller.value, seen.unwrap());
            assert!(agrees(sent, &seen), "{case}: {sent} arrived as {seen}");
        }
        (ResponseStatus::Failed(failure), Refused(said)) => {
            assert_eq!((failure.fate(), seen), (Fate::NotRun, None), "{case}");
            assert!(failure.to_string().contains(said), "{case}: {failure}");
        }
        (status, outcome) => panic!("{case}: {status:?}, not {outcome:?}"),
    }
}

/// An answer, an error or an item: the reader reads every value that the writer may write, or nothing runs. Returns the difference.
fn other(case: &str, pair: &Pair<'_>, place: Place) -> Option<String> {
    let Called { response, seen, runs } = pair.call(place);
    match (response.status, response.body) {
        (ResponseStatus::Ok, Body::Owned(body)) => {
            let (sent, read) = pair.values(case, place, &body, seen);
            assert!(agrees(sent, &read), "{case}, {place:?}: {sent} arrived as {read}");
            assert_eq!(runs, 1, "{case}");
            None
        }
        (ResponseStatus::Failed(failure), _) => Some(difference(case, &failure, runs)),
        (status, _) => panic!("{case}, {place:?}: {status:?}"),
    }
}

/// What a caller of `caller`'s version says of the answers of a server of `served`'s; `None` where it reads them, or where there
/// is no such server.
fn direction(
    case: &str,
    (served, caller): (&End, &End),
    outcome: Outcome,
    back: &mut Option<bool>,
) -> Option<String> {
    let pair = match (Pair::new(served, caller), outcome) {
        (Err(attribute), Unfit(said)) => {
            assert!(attribute.contains(said), "{case}: {attribute}");
            return None;
        }
        (Err(attribute), _) => panic!("{case}: unfit for {attribute}"),
        (Ok(pair), _) => pair,
    };
    argument(case, &pair, outcome);
    let answer = other(case, &pair, Place::Answer);
    for place in [Place::Error, Place::Down] {
        assert_eq!(other(case, &pair, place).is_some(), answer.is_some(), "{case}, {place:?}");
    }
    *back = Some(other(case, &pair, Place::Up).is_some());
    answer
}

pub(super) fn both<A: Case, B: Case>(case: &str, a: &A, b: &B) {
    let other = OTHERS.iter().find(|(name, ..)| *name == case);
    let (there, back) = other.map_or((Same, Same), |(_, there, back)| (*there, *back));
    let (a, b) = (End::new::<A, MessagePack>(a), End::new::<B, MessagePack>(b));
    let (mut a_reads, mut b_reads) = (None, None);
    let found = (
        direction(&format!("{case}, messagepack"), (&a, &b), there, &mut a_reads),
        direction(&format!("{case}, messagepack, back"), (&b, &a), back, &mut b_reads),
    );
    // A server reads items as a client of its version reads answers.
    if let (Some(a_reads), Some(b_reads)) = (a_reads, b_reads) {
        assert_eq!((found.1.is_some(), found.0.is_some()), (a_reads, b_reads), "{case}");
    }
    let unread = UNREAD.iter().find(|(name, ..)| *name == case);
    let (there, back) = unread.map_or(("", ""), |(_, there, back)| (*there, *back));
    for (found, said) in [(found.0, there), (found.1, back)] {
        let found = found.unwrap_or_default();
        assert_eq!(found.trim_start_matches("the answer: "), said, "{case}");
    }
}

#[test]
fn every_other_outcome_is_that_of_a_case() {
    for other in OTHERS.iter().map(|(other, ..)| other).chain(UNREAD.iter().map(|(other, ..)| other)) {
        assert!(CASES.iter().any(|(case, _)| case == other), "{other}");
    }
}

mod old {
    use super::*;

    v! {
        pub(crate) struct T { pub(crate) key: u16 }
        pub(crate) enum Kind { Put }
        pub(crate) enum Open { Put, #[serde(other)] Unknown }
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
        pub(crate) enum Open { Put, Delete }
        pub(crate) struct Strict { pub(crate) a: u8, pub(crate) b: Option<u8> }
    }
}

/// What a server reads whose type is that of `like`, or why it is refused.
fn arrives<A: Case, B: Case>(sent: &A, like: &B) -> Result<Value, String> {
    let (served, caller) = (End::new::<B, MessagePack>(like), End::new::<A, MessagePack>(sent));
    let called = Pair::new(&served, &caller).unwrap().call(Place::Argument);
    match called.response.status {
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
        async fn put(&self, cx: &Cx, order: old::T, blob: Vec<u8>) -> Result<Vec<u8>, old::Open>;
        async fn get(&self, cx: &Cx, key: u8) -> old::Strict;
        async fn delete(&self, cx: &Cx) -> Result<(), old::Kind>;
        async fn follow(&self, cx: &Cx, items: gimmal_rpc::Sink<old::Open>);
        async fn watch(&self, cx: &Cx, items: gimmal_rpc::Sink<old::Kind>);
        async fn feed(&self, cx: &Cx, items: gimmal_rpc::Stream<old::T>);
    }
}

#[gimmal_rpc::service(crate = gimmal_rpc, codec = MessagePack)]
trait Store {
    async fn put(&self, cx: &Cx, order: new::T, blob: Vec<u8>) -> Result<Vec<u8>, new::Open>;
    async fn get(&self, cx: &Cx, key: u8) -> new::Strict;
    async fn delete(&self, cx: &Cx) -> Result<(), new::Kind>;
    async fn follow(&self, cx: &Cx, items: gimmal_rpc::Sink<new::Open>);
    async fn watch(&self, cx: &Cx, items: gimmal_rpc::Sink<new::Kind>);
    async fn feed(&self, cx: &Cx, items: gimmal_rpc::Stream<new::T>);
}

/// It counts the calls of methods that an older caller does not fit.
#[derive(Clone, Default)]
struct Shelf(Arc<AtomicU32>);

impl Shelf {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Store for Shelf {
    async fn put(&self, _: &Cx, order: new::T, blob: Vec<u8>) -> Result<Vec<u8>, new::Open> {
        match order.id {
            0 => Err(new::Open::Put),
            1 => Err(new::Open::Delete),
            _ => Ok(blob),
        }
    }

    async fn get(&self, _: &Cx, key: u8) -> new::Strict {
        self.count();
        new::Strict { a: key, b: None }
    }

    async fn delete(&self, _: &Cx) -> Result<(), new::Kind> {
        self.count();
        Ok(())
    }

    async fn follow(&self, _: &Cx, mut items: gimmal_rpc::Sink<new::Open>) {
        items.send(&new::Open::Put).await.unwrap();
        items.send(&new::Open::Delete).await.unwrap();
    }

    async fn watch(&self, _: &Cx, _: gimmal_rpc::Sink<new::Kind>) {
        self.count();
    }

    async fn feed(&self, _: &Cx, _: gimmal_rpc::Stream<new::T>) {
        self.count();
    }
}

#[test]
fn answers_errors_and_items_of_another_version_are_read_or_the_call_does_not_run() {
    let shelf = Shelf::default();
    let server = Server::builder().service(serve_store(shelf.clone())).config(config());
    let server = server.listen("mem://shapes-store").unwrap();
    let client = Client::builder().config(config()).connect("mem://shapes-store").unwrap();
    let client = older::StoreClient::new(client);
    let put = |key, bytes| client.put(old::T { key }, vec![200; bytes]).wait();
    // The first call is one that a message does not hold.
    for bytes in [1 << 20, 2] {
        assert_eq!(put(2, bytes).unwrap(), vec![200; bytes]);
    }
    assert!(matches!(put(0, 1), Err(CallError::App(old::Open::Put))));
    assert!(matches!(put(1, 1), Err(CallError::App(old::Open::Unknown))));
    let error = put(300, 1).unwrap_err();
    assert_eq!(error.fate(), Fate::NotRun);
    let said = format!("{error:?}");
    assert!(said.contains("`key`: invalid value: integer `300`, expected u8"), "{said}");
    let (mut items, call) = client.follow();
    assert_eq!(items.blocking_next().unwrap().unwrap(), old::Open::Put);
    assert_eq!(items.blocking_next().unwrap().unwrap(), old::Open::Unknown);
    drop((items, call));

    for _ in 0..2 {
        let refused = [
            (
                client.get(1).wait().unwrap_err(),
                "the answer: field `b` of Strict: here `none`, there `b: Option<u8>`",
            ),
            (
                client.watch().1.wait().unwrap_err(),
                "the handler's items: a variant of Kind: here `none`, there `Delete`",
            ),
            (
                client.feed().1.wait().unwrap_err(),
                "the caller's items: field `id` of T: here `key: u16`, there `id: u8`",
            ),
        ];
        for (error, said) in refused {
            let CallError::Mismatch(mismatch) = &error else { panic!("{error:?}") };
            assert_eq!((&mismatch.difference[..], error.fate()), (said, Fate::NotRun));
        }
        let error = client.delete().wait().unwrap_err();
        let CallError::Mismatch(mismatch) = &error else { panic!("{error:?}") };
        assert_eq!(mismatch.difference, "the error: a variant of Kind: here `none`, there `Delete`");
    }
    assert_eq!(shelf.0.load(Ordering::Relaxed), 0, "a handler ran");
    drop(server);
}
