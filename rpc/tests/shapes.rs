//! Two versions of a type at the two ends of a call: an equal value, or a refusal that names the difference and did not run.
//!
//! Each case has version `a` of a type and version `b`. A server of each is called by a client of the other, with each
//! codec. What arrives is compared by the names of its fields.

#![allow(clippy::unwrap_used, clippy::large_enum_variant, clippy::use_self, reason = "a test may fail")]

mod common;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use common::config;
#[cfg(feature = "bincode")]
use gimmal_rpc::Bincode;
use gimmal_rpc::{
    __macro::not_decoded,
    Bulk, CallError, CallOptions, Channel as _, Client, Cx, Fate, Instant, Method, MethodKind, Postcard,
    ResponseWriter, ServeError, Server, Service, Shape, Status,
    channel::{Beside, Ticket as _},
    codec::{Codec, Decode, DecodeError, Encode},
    response::{Body, Response, ResponseStatus},
    shape::{Describe, Describing},
    task::Seat,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Types with the derives of a user's types.
macro_rules! v {
    ($($item:item)*) => {$(
        #[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Shape)]
        #[shape(crate = gimmal_rpc)]
        #[allow(dead_code, non_camel_case_types, non_snake_case)]
        $item
    )*};
}

/// What a change comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// The two are the same on the wire.
    Same,
    /// The call is refused with words that contain these.
    Refused(&'static str),
    /// Version `b` cannot be served, with words that contain these.
    Unfit(&'static str),
}
use Outcome::{Refused, Same, Unfit};

/// Reads a value: its answer, and what it is.
type Read = fn(&[u8]) -> Result<(Vec<u8>, Value), DecodeError>;

/// Where a type is in a method: each place is a method of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Argument,
    Answer,
    Error,
    Down,
    Up,
}

impl Place {
    const ALL: [Self; 5] = [Self::Argument, Self::Answer, Self::Error, Self::Down, Self::Up];

    /// Whether the server reads what the caller wrote.
    fn is_read_there(self) -> bool {
        matches!(self, Self::Argument | Self::Up)
    }
}

/// What became of the calls of a server.
#[derive(Default)]
struct Record {
    seen: Mutex<Option<Value>>,
    runs: AtomicU32,
}

/// A version of a type in a service: it reads its argument, or returns a value.
struct Holder {
    methods: &'static [Method],
    read: Read,
    bytes: Vec<u8>,
    record: Arc<Record>,
}

impl Service for Holder {
    fn methods(&self) -> &'static [Method] {
        self.methods
    }

    fn call_raw(
        &self,
        index: usize,
        _: &Cx,
        request: &[u8],
        answer: &mut ResponseWriter<'_>,
    ) -> Result<(), Status> {
        self.record.runs.fetch_add(1, Ordering::Relaxed);
        if Place::ALL[index].is_read_there() {
            let (_, value) = (self.read)(request).map_err(|error| not_decoded(&error))?;
            *self.record.seen.lock().unwrap() = Some(value);
        } else {
            answer.write(&self.bytes);
        }
        Ok(())
    }

    fn start(&self, _: usize, _: Cx, _: &[u8], _: Option<Bulk>, _: &mut Seat) -> Result<(), Status> {
        unreachable!("a raw method")
    }
}

trait Case: Serialize + DeserializeOwned + Shape + Debug + PartialEq + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Shape + Debug + PartialEq + Send + Sync + 'static> Case for T {}

/// A codec that reads and writes a case's type.
trait Carries<T>: Codec + Describe<T> + Describe<()> + Encode<T> + for<'a> Decode<'a, T> {}
impl<T, C: Codec + Describe<T> + Describe<()> + Encode<T> + for<'a> Decode<'a, T>> Carries<T> for C {}

/// A method for each place.
fn methods<T, C: Codec + Describe<T> + Describe<()>>() -> &'static [Method] {
    let methods = Place::ALL.map(|place| {
        let plain = Describing::<C>::default();
        let (name, schema) = match place {
            Place::Argument => ("argument", plain.argument::<T>("value").answer::<()>()),
            Place::Answer => ("answer", plain.answer::<T>()),
            Place::Error => ("error", plain.answer::<()>().error::<T>()),
            Place::Down => ("down", plain.answer::<()>().down::<T>()),
            Place::Up => ("up", plain.answer::<()>().up::<T>()),
        };
        Method::new("Case", name, "T", C::NAME, MethodKind::Raw).with_schema(C::FORM, schema.done())
    });
    Box::leak(Box::new(methods))
}

fn written<T, C: Encode<T>>(value: &T) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let bytes = C::encode(value, &mut out).unwrap();
    out.truncate(bytes);
    out
}

/// A version of a type with a codec: how it is served, and a value as a client has it.
struct End {
    methods: &'static [Method],
    read: Read,
    bytes: Vec<u8>,
    value: Value,
}

impl End {
    fn new<T: Case, C: Carries<T>>(value: &T) -> Self {
        let read: Read = |bytes| {
            let value: T = C::decode(bytes)?;
            Ok((written::<T, C>(&value), serde_json::to_value(&value).unwrap()))
        };
        let value_there = serde_json::to_value(value).unwrap();
        Self { methods: methods::<T, C>(), read, bytes: written::<T, C>(value), value: value_there }
    }
}

/// What became of a call from one end to the other.
struct Called {
    response: Response,
    /// What the method was given.
    seen: Option<Value>,
    /// How often it was called.
    runs: u32,
}

/// A server of one end, and a client of the other.
struct Pair<'a> {
    served: &'a End,
    caller: &'a End,
    client: Client,
    record: Arc<Record>,
    _server: Server,
}

impl<'a> Pair<'a> {
    /// Or why the server does not start.
    fn new(served: &'a End, caller: &'a End) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let record = Arc::new(Record::default());
        let (methods, read, bytes) = (served.methods, served.read, served.bytes.clone());
        let holder = Holder { methods, read, bytes, record: Arc::clone(&record) };
        let url = format!("mem://shapes-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let server =
            match Server::builder().service(holder).config(config()).without_reflection().listen(&url) {
                Err(ServeError::Unfit { attribute, .. }) => return Err(attribute),
                server => server.unwrap(),
            };
        let client = Client::builder().config(config()).connect(&url).unwrap();
        Ok(Self { served, caller, client, record, _server: server })
    }

    /// Calls the method that has the type at `place`.
    fn call(&self, place: Place) -> Called {
        let method = &self.caller.methods[place as usize];
        let arguments = if place.is_read_there() { &self.caller.bytes[..] } else { &[] };
        let before = self.record.runs.load(Ordering::Relaxed);
        let mut call = self.client.start(method, &CallOptions::default(), Beside::default(), arguments);
        let response = call.wait();
        let seen = self.record.seen.lock().unwrap().take();
        Called { response, seen, runs: self.record.runs.load(Ordering::Relaxed) - before }
    }

    /// The value that was sent, and the one that was read, of a call that ended well.
    fn values(&self, case: &str, place: Place, body: &[u8], seen: Option<Value>) -> (&Value, Value) {
        if place.is_read_there() {
            return (&self.caller.value, seen.unwrap());
        }
        match (self.caller.read)(body) {
            Ok((_, value)) => (&self.served.value, value),
            Err(error) => panic!("{case}: it ran, and its {place:?} was not read: {error}"),
        }
    }
}

/// The difference that a refusal names; the method did not run.
fn difference(case: &str, failure: &CallError, runs: u32) -> String {
    let CallError::Mismatch(mismatch) = failure else { panic!("{case}: {failure:?}") };
    assert_eq!((failure.fate(), runs), (Fate::NotRun, 0), "{case}");
    assert!(!mismatch.difference.is_empty(), "{case}: no difference is named");
    mismatch.difference.clone()
}

/// Calls with a codec that writes no names, with the type at every place.
fn direction(case: &str, served: &End, caller: &End, outcome: Outcome) {
    let pair = match (Pair::new(served, caller), outcome) {
        (Err(attribute), Unfit(said)) => {
            assert!(attribute.contains(said), "{case}: {attribute}");
            return;
        }
        (Err(attribute), _) => panic!("{case}: unfit for {attribute}"),
        (Ok(pair), _) => pair,
    };
    for place in Place::ALL {
        let Called { response, seen, runs } = pair.call(place);
        match (response.status, response.body, outcome) {
            (ResponseStatus::Ok, Body::Owned(body), Same) => {
                let (sent, read) = pair.values(case, place, &body, seen);
                assert_eq!((sent, runs), (&read, 1), "{case}: another value arrived at {place:?}");
            }
            // `Unfit`: version `a`, which can be served, called with version `b`, which cannot.
            (ResponseStatus::Failed(failure), _, Refused(_) | Unfit(_)) => {
                let found = difference(case, &failure, runs);
                if let Refused(said) = outcome {
                    let root = said.starts_with("argument ") && place != Place::Argument;
                    assert!(found.contains(if root { "here `" } else { said }), "{case}, {place:?}: {found}");
                }
            }
            (status, _, outcome) => panic!("{case}, {place:?}: {status:?}, not {outcome:?}"),
        }
    }
}

#[cfg(feature = "evolve")]
#[path = "shapes/named.rs"]
mod named;

/// Both directions with every codec.
fn both<A: Case, B: Case>(case: &str, (a, b): (&A, &B), there: Outcome, back: Outcome) {
    ends(&format!("{case}, postcard"), &End::new::<A, Postcard>(a), &End::new::<B, Postcard>(b), there, back);
    #[cfg(feature = "bincode")]
    ends(&format!("{case}, bincode"), &End::new::<A, Bincode>(a), &End::new::<B, Bincode>(b), there, back);
    #[cfg(feature = "evolve")]
    named::both(case, a, b);
}

fn ends(case: &str, a: &End, b: &End, there: Outcome, back: Outcome) {
    direction(case, a, b, there);
    direction(&format!("{case}, back"), b, a, back);
}

/// The words of the other direction: here and there change places.
fn turned(said: &'static str) -> String {
    match said.split_once(": here `").and_then(|(what, rest)| Some((what, rest.split_once("`, there `")?))) {
        Some((what, (here, there))) => {
            format!("{what}: here `{}`, there `{here}`", there.trim_end_matches('`'))
        }
        None => said.to_owned(),
    }
}

/// `name: version a = value => version b = value, outcome`. The words of a refusal are those of a client of `b` at a server of `a`.
macro_rules! cases {
    ($($case:ident: { $($a:item)* } $va:expr => { $($b:item)* } $vb:expr, $outcome:expr;)*) => {
        $(mod $case {
            pub(super) mod a {
                #[allow(unused_imports)]
                use super::super::*;
                v! { $($a)* }
                pub(crate) fn value() -> impl Case { let value: T = $va; value }
            }
            pub(super) mod b {
                #[allow(unused_imports)]
                use super::super::*;
                v! { $($b)* }
                pub(crate) fn value() -> impl Case { let value: T = $vb; value }
            }
        })*

        /// How many cases there are, and each of them.
        const CASES: &[(&str, fn())] = &[$((stringify!($case), || {
            let outcome: Outcome = $outcome;
            let back = match outcome {
                Refused(said) => Refused(Box::leak(turned(said).into_boxed_str())),
                other => other,
            };
            both(stringify!($case), (&$case::a::value(), &$case::b::value()), outcome, back);
        })),*];
    };
}

cases! {
    // Fields.
    same: { struct T { id: u64, cents: u64 } } T { id: 1, cents: 999 } =>
        { struct T { id: u64, cents: u64 } } T { id: 1, cents: 999 }, Same;
    swapped: { struct T { id: u64, cents: u64 } } T { id: 1, cents: 999 } =>
        { struct T { cents: u64, id: u64 } } T { id: 1, cents: 999 },
        Refused("field 1 of T: here `cents: u64`, there `id: u64`");
    added_last: { struct T { id: u64 } } T { id: 1 } => { struct T { id: u64, more: u8 } } T { id: 1, more: 2 },
        Refused("field 2 of T: here `more: u8`, there `none`");
    added_option: { struct T { id: u64 } } T { id: 1 } =>
        { struct T { id: u64, more: Option<u8> } } T { id: 1, more: None },
        Refused("field 2 of T: here `more: Option<u8>`, there `none`");
    added_first: { struct T { id: u64 } } T { id: 1 } => { struct T { new: u64, id: u64 } } T { new: 2, id: 1 },
        Refused("field 1 of T: here `new: u64`, there `id: u64`");
    removed: { struct T { id: u64, old: u8 } } T { id: 1, old: 2 } => { struct T { id: u64 } } T { id: 1 },
        Refused("field 2 of T: here `none`, there `old: u8`");
    renamed: { struct T { id: u64 } } T { id: 1 } => { struct T { key: u64 } } T { key: 1 },
        Refused("field 1 of T: here `key: u64`, there `id: u64`");
    renamed_type: { struct Inner { id: u64 } struct T { inner: Inner } } T { inner: Inner { id: 1 } } =>
        { struct Other { id: u64 } struct T { inner: Other } } T { inner: Other { id: 1 } }, Same;
    wider: { struct T { id: u32 } } T { id: 1 } => { struct T { id: u64 } } T { id: 1 },
        Refused("field 1 of T: here `id: u64`, there `id: u32`");
    byte: { struct T { id: u8 } } T { id: 1 } => { struct T { id: u16 } } T { id: 1 },
        Refused("field 1 of T: here `id: u16`, there `id: u8`");
    signed: { struct T { id: u64 } } T { id: 1 } => { struct T { id: i64 } } T { id: 1 },
        Refused("field 1 of T: here `id: i64`, there `id: u64`");
    usize_is_u64: { struct T { id: usize } } T { id: 1 } => { struct T { id: u64 } } T { id: 1 }, Same;
    float: { struct T { x: f32 } } T { x: 1.0 } => { struct T { x: f64 } } T { x: 1.0 },
        Refused("field 1 of T: here `x: f64`, there `x: f32`");
    float_of_int: { struct T { x: u32 } } T { x: 1 } => { struct T { x: f32 } } T { x: 1.0 },
        Refused("field 1 of T: here `x: f32`, there `x: u32`");
    bool_of_byte: { struct T { x: u8 } } T { x: 1 } => { struct T { x: bool } } T { x: true },
        Refused("field 1 of T: here `x: bool`, there `x: u8`");
    letter: { struct T { x: char } } T { x: 'x' } => { struct T { x: String } } T { x: "x".into() },
        Refused("field 1 of T: here `x: String`, there `x: char`");
    text_of_bytes: { struct T { x: Vec<u8> } } T { x: vec![120] } => { struct T { x: String } } T { x: "x".into() },
        Refused("field 1 of T: here `x: String`, there `x: Vec<u8>`");
    wide_integer: { struct T { x: u128 } } T { x: 1 } => { struct T { x: i128 } } T { x: 1 },
        Refused("field 1 of T: here `x: i128`, there `x: u128`");
    // Options and lists.
    option: { struct T { x: u8 } } T { x: 1 } => { struct T { x: Option<u8> } } T { x: Some(1) },
        Refused("field 1 of T: here `x: Option<u8>`, there `x: u8`");
    option_twice: { struct T { x: Option<u8> } } T { x: Some(1) } =>
        { struct T { x: Option<Option<u8>> } } T { x: Some(Some(1)) },
        Refused("field 1 of T: here `x: Option<Option<u8>>`, there `x: Option<u8>`");
    list_of_option: { struct T { x: Option<u32> } } T { x: None } => { struct T { x: Vec<u32> } } T { x: vec![] },
        Refused("field 1 of T: here `x: Vec<u32>`, there `x: Option<u32>`");
    items: { struct T { x: Vec<u16> } } T { x: vec![1] } => { struct T { x: Vec<u32> } } T { x: vec![1] },
        Refused("field 1 of T: here `x: Vec<u32>`, there `x: Vec<u16>`");
    map_of_pairs: { struct T { x: BTreeMap<u8, u8> } } T { x: BTreeMap::from([(1, 2)]) } =>
        { struct T { x: Vec<(u8, u8)> } } T { x: vec![(1, 2)] },
        Refused("field 1 of T: here `x: Vec<(u8, u8)>`, there `x: BTreeMap<u8, u8>`");
    hash_map: { struct T { x: BTreeMap<u8, u8> } } T { x: BTreeMap::from([(1, 2)]) } =>
        { struct T { x: HashMap<u8, u8> } } T { x: HashMap::from([(1, 2)]) }, Same;
    map_values: { struct T { x: BTreeMap<u8, u8> } } T { x: BTreeMap::new() } =>
        { struct T { x: BTreeMap<u8, u16> } } T { x: BTreeMap::new() },
        Refused("field 1 of T: here `x: BTreeMap<u8, u16>`, there `x: BTreeMap<u8, u8>`");
    longer_array: { struct T { x: [u8; 3] } } T { x: [1; 3] } => { struct T { x: [u8; 4] } } T { x: [1; 4] },
        Refused("field 1 of T: here `x: [u8; 4]`, there `x: [u8; 3]`");
    array_of_list: { struct T { x: Vec<u8> } } T { x: vec![1] } => { struct T { x: [u8; 1] } } T { x: [1] },
        Refused("field 1 of T: here `x: [u8; 1]`, there `x: Vec<u8>`");
    tuple_swapped: { struct T(u8, u16); } T(1, 2) => { struct T(u16, u8); } T(2, 1), Refused("argument 1: here `value: ");
    tuple_longer: { struct T(u8, u16); } T(1, 2) => { struct T(u8, u16, u8); } T(1, 2, 3), Refused("argument 1: here");
    // Wrappers that are not on the wire.
    boxed: { struct T { x: u32 } } T { x: 1 } => { struct T { x: Box<u32> } } T { x: Box::new(1) }, Same;
    newtype: { struct T { x: u32 } } T { x: 1 } => { struct Id(u32); struct T { x: Id } } T { x: Id(1) }, Same;
    transparent: { struct T { x: u32 } } T { x: 1 } =>
        { #[serde(transparent)] struct Id { id: u32 } struct T { x: Id } } T { x: Id { id: 1 } }, Same;
    converted: { struct T { x: String } } T { x: "1".into() } =>
        { #[serde(from = "String", into = "String")] pub(crate) struct Id { pub(crate) id: String } struct T { x: Id } }
        T { x: Id { id: "1".into() } }, Same;
    marker: { struct T { x: u32 } } T { x: 1 } =>
        { struct T { x: u32, #[serde(skip)] y: u8 } } T { x: 1, y: 0 }, Same;
    // Names.
    serde_rename: { struct T { id: u64 } } T { id: 1 } => { struct T { #[serde(rename = "id")] key: u64 } } T { key: 1 }, Same;
    serde_rename_all: { struct T { orderId: u64 } } T { orderId: 1 } =>
        { #[serde(rename_all = "camelCase")] struct T { order_id: u64 } } T { order_id: 1 }, Same;
    serde_rename_swapped: { struct T { a: u64, b: u64 } } T { a: 1, b: 2 } =>
        { struct T { #[serde(rename = "b")] a: u64, #[serde(rename = "a")] b: u64 } } T { a: 2, b: 1 },
        Refused("field 1 of T: here `b: u64`, there `a: u64`");
    serde_alias: { struct T { id: u64 } } T { id: 1 } =>
        { struct T { #[serde(alias = "key")] id: u64 } } T { id: 1 }, Same;
    serde_default: { struct T { id: u64 } } T { id: 1 } => { struct T { #[serde(default)] id: u64 } } T { id: 1 }, Same;
    raw_name: { struct T { r#type: u8 } } T { r#type: 1 } =>
        { struct T { #[serde(rename = "type")] kind: u8 } } T { kind: 1 }, Same;
    // Attributes that need names on the wire.
    skip_if: { struct T { a: u8, b: Option<u8>, c: u8 } } T { a: 1, b: None, c: 0 } =>
        { struct T { a: u8, #[serde(skip_serializing_if = "Option::is_none", default)] b: Option<u8>, c: u8 } }
        T { a: 1, b: None, c: 0 }, Unfit("`#[serde(skip_serializing_if)]` on T.b");
    skip_writing: { struct T { a: u8, h: u8, c: u8 } } T { a: 1, h: 7, c: 5 } =>
        { struct T { a: u8, #[serde(skip_serializing, default)] h: u8, c: u8 } } T { a: 1, h: 7, c: 5 },
        Unfit("`#[serde(skip_serializing)]` on T.h");
    skip_reading: { struct T { a: u8, h: u8 } } T { a: 1, h: 7 } =>
        { struct T { a: u8, #[serde(skip_deserializing)] h: u8 } } T { a: 1, h: 7 },
        Unfit("`#[serde(skip_deserializing)]` on T.h");
    untagged: { enum T { A(u8), B(u16) } } T::A(1) => { #[serde(untagged)] enum T { A(u8), B(u16) } } T::A(1),
        Unfit("`#[serde(untagged)]` on T");
    tagged: { enum T { A { x: u8 } } } T::A { x: 1 } => { #[serde(tag = "t")] enum T { A { x: u8 } } } T::A { x: 1 },
        Unfit("`#[serde(tag = \"t\")]` on T");
    tagged_beside: { enum T { A(u8) } } T::A(1) => { #[serde(tag = "t", content = "c")] enum T { A(u8) } } T::A(1),
        Unfit("`#[serde(tag = \"t\")]` on T");
    tag_of_a_struct: { struct T { x: u8 } } T { x: 1 } => { #[serde(tag = "t")] struct T { x: u8 } } T { x: 1 },
        Unfit("`#[serde(tag = \"t\")]` on T");
    skip_in_a_variant: { enum T { A { x: Option<u8>, y: u8 } } } T::A { x: None, y: 1 } =>
        { enum T { A { #[serde(skip_serializing_if = "Option::is_none")] x: Option<u8>, y: u8 } } }
        T::A { x: None, y: 1 }, Unfit("`#[serde(skip_serializing_if)]` on T::A.x");
    deep_inside: { struct In { x: u8 } struct T { x: Vec<In> } } T { x: vec![In { x: 1 }] } =>
        { #[serde(untagged)] enum In { A { x: u8 } } struct T { x: Vec<In> } } T { x: vec![In::A { x: 1 }] },
        Unfit("`#[serde(untagged)]` on In");
    skipped_variant: { enum T { Get, Internal, Put, Delete } } T::Put =>
        { enum T { Get, #[serde(skip)] Internal, Put, Delete } } T::Put,
        Unfit("`#[serde(skip)]` on T::Internal, with other variants behind it");
    // Variants.
    variants_swapped: { enum T { Put, Delete } } T::Put => { enum T { Delete, Put } } T::Put,
        Refused("variant 1 of T: here `Delete`, there `Put`");
    variant_added: { enum T { Put } } T::Put => { enum T { Put, Delete } } T::Put,
        Refused("variant 2 of T: here `Delete`, there `none`");
    variant_before: { enum T { Put } } T::Put => { enum T { Get, Put } } T::Put,
        Refused("variant 1 of T: here `Get`, there `Put`");
    variant_removed: { enum T { Put, Delete } } T::Put => { enum T { Put } } T::Put,
        Refused("variant 2 of T: here `none`, there `Delete`");
    variant_renamed: { enum T { Put } } T::Put => { enum T { Store } } T::Store,
        Refused("variant 1 of T: here `Store`, there `Put`");
    variant_by_rename: { enum T { Put } } T::Put => { enum T { #[serde(rename = "Put")] Store } } T::Store, Same;
    variants_by_rule: { enum T { put_it } } T::put_it => { #[serde(rename_all = "snake_case")] enum T { PutIt } } T::PutIt, Same;
    variant_fields_by_rule: { enum T { A { x_y: u8 } } } T::A { x_y: 1 } =>
        { #[serde(rename_all_fields = "camelCase")] enum T { A { x_y: u8 } } } T::A { x_y: 1 },
        Refused("field 1 of T::A: here `xY: u8`, there `x_y: u8`");
    skipped_last: { enum T { Put } } T::Put => { enum T { Put, #[serde(skip)] Internal } } T::Put, Same;
    variant_contents: { enum T { A } } T::A => { enum T { A(u8) } } T::A(1), Refused("T::A: here `one value`, there `nothing`");
    variant_value: { enum T { A(u8) } } T::A(1) => { enum T { A(u16) } } T::A(1), Refused("T::A: here `u16`, there `u8`");
    variant_fields: { enum T { A { x: u8, y: u8 } } } T::A { x: 1, y: 2 } =>
        { enum T { A { y: u8, x: u8 } } } T::A { x: 1, y: 2 }, Refused("field 1 of T::A: here `y: u8`, there `x: u8`");
    variant_pair: { enum T { A(u8, u16) } } T::A(1, 2) => { enum T { A((u8, u16)) } } T::A((1, 2)),
        Refused("T::A: here `one value`, there `2 values`");
    // Depth, generics, recursion, foreign types.
    nested: { struct In { a: u8, b: u8 } struct T { x: Vec<Option<In>> } } T { x: vec![Some(In { a: 1, b: 2 })] } =>
        { struct In { b: u8, a: u8 } struct T { x: Vec<Option<In>> } } T { x: vec![Some(In { a: 1, b: 2 })] },
        Refused("field 1 of In: here `b: u8`, there `a: u8`");
    generic: { struct G<X> { x: X } struct T { g: G<u8> } } T { g: G { x: 1 } } =>
        { struct G<X> { x: X } struct T { g: G<u16> } } T { g: G { x: 1 } },
        Refused("field 1 of G: here `x: u16`, there `x: u8`");
    recursive: { struct T { x: u8, next: Option<Box<T>> } } T { x: 1, next: Some(Box::new(T { x: 2, next: None })) } =>
        { struct T { x: u8, next: Option<Box<T>> } } T { x: 1, next: Some(Box::new(T { x: 2, next: None })) }, Same;
    recursive_changed: { struct T { x: u8, next: Option<Box<T>> } } T { x: 1, next: None } =>
        { struct T { x: u16, next: Option<Box<T>> } } T { x: 1, next: None },
        Refused("field 1 of T: here `x: u16`, there `x: u8`");
    tree: { enum T { Leaf, Node(Vec<T>) } } T::Node(vec![T::Leaf]) =>
        { enum T { Leaf, Node(Box<T>, Box<T>) } } T::Node(Box::new(T::Leaf), Box::new(T::Leaf)),
        Refused("T::Node: here `2 values`, there `one value`");
    duration: { struct T { x: Duration } } T { x: Duration::from_secs(1) } => { struct T { x: u64 } } T { x: 1 },
        Refused("field 1 of T: here `x: u64`, there `x: Duration`");
    opaque: { struct T { #[shape(opaque = "seconds@1")] x: u64 } } T { x: 1 } =>
        { struct T { #[shape(opaque = "seconds@1")] x: u64 } } T { x: 1 }, Same;
    opaque_version: { struct T { #[shape(opaque = "seconds@1")] x: u64 } } T { x: 1 } =>
        { struct T { #[shape(opaque = "seconds@2")] x: u64 } } T { x: 1 },
        Refused("field 1 of T: here `x: opaque seconds@2`, there `x: opaque seconds@1`");
    bytes_in_one_piece: { struct T { x: Vec<u8> } } T { x: vec![1] } =>
        { struct T { #[serde(with = "serde_bytes")] x: Vec<u8> } } T { x: vec![1] }, Same;
    unit: { struct T { x: () } } T { x: () } => { struct U; struct T { x: U } } T { x: U }, Same;
    result: { struct T { x: Result<u8, u16> } } T { x: Ok(1) } => { struct T { x: Result<u16, u8> } } T { x: Ok(1) },
        Refused("Result::Ok: here `u16`, there `u8`");
}

mod conversions {
    use super::converted::b::Id;

    impl From<String> for Id {
        fn from(id: String) -> Self {
            Self { id }
        }
    }

    impl From<Id> for String {
        fn from(id: Id) -> Self {
            id.id
        }
    }
}

#[test]
fn every_change_is_an_equal_value_or_a_refusal_that_names_it() {
    assert!(CASES.len() >= 60, "{} cases", CASES.len());
    for (_, case) in CASES {
        case();
    }
}

#[test]
fn a_hundred_methods_are_described_within_a_millisecond() {
    fn methods_of<T: Case>(_: &T) -> &'static [Method] {
        methods::<T, Postcard>()
    }
    let began = Instant::now();
    let value = nested::a::value();
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let began = Instant::now();
        for _ in 0..100 / Place::ALL.len() {
            std::hint::black_box(methods_of(&value));
        }
        best = best.min(began.elapsed());
    }
    // Without optimizations it takes several times as long.
    let limit_us = if cfg!(debug_assertions) { 10_000 } else { 1_000 };
    assert!(best < Duration::from_micros(limit_us), "{best:?}, {:?} in all", began.elapsed());
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Shop {
    async fn pay(&self, cx: &Cx, id: u64, cents: u64) -> Result<(), String>;
    async fn follow(&self, cx: &Cx, items: gimmal_rpc::Sink<u64>);
    async fn gone(&self, cx: &Cx);
}

/// Another version of it.
mod newer {
    use super::Cx;

    #[gimmal_rpc::service(crate = gimmal_rpc)]
    pub(super) trait Shop {
        async fn pay(&self, cx: &Cx, cents: u64, id: u64) -> Result<(), u32>;
        async fn follow(&self, cx: &Cx, items: gimmal_rpc::Sink<i64>);
        async fn newer(&self, cx: &Cx);
    }
}

struct Till;

impl Shop for Till {
    async fn pay(&self, _: &Cx, _: u64, _: u64) -> Result<(), String> {
        Ok(())
    }

    async fn follow(&self, _: &Cx, _: gimmal_rpc::Sink<u64>) {}

    async fn gone(&self, _: &Cx) {}
}

#[test]
fn arguments_errors_and_items_are_compared_and_a_missing_method_is_named() {
    let server =
        Server::builder().service(serve_shop(Till)).config(config()).listen("mem://shapes-shop").unwrap();
    let client =
        newer::ShopClient::new(Client::builder().config(config()).connect("mem://shapes-shop").unwrap());
    let said = client.pay(1, 2).wait().unwrap_err().to_string();
    assert!(said.contains("argument 1: here `cents: u64`, there `id: u64`"), "{said}");
    let (_, call) = client.follow();
    let said = call.wait().unwrap_err().to_string();
    assert!(said.contains("the handler's items: here `i64`, there `u64`"), "{said}");
    let error = client.newer().wait().unwrap_err();
    assert_eq!(error.fate(), Fate::NotRun);
    assert!(error.to_string().contains("the server has no method Shop.newer"), "{error}");
    drop(server);
}
