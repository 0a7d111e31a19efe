//! Where nesting ends in both codecs, for every kind of level; and the bytes that they write are those of their libraries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};

#[cfg(feature = "bincode")]
use gimmal_rpc::Bincode;
use gimmal_rpc::{
    Postcard,
    codec::{Decode, DecodeError, Encode, EncodeError},
};

const MOST: usize = 128;

#[derive(Serialize, Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum Tree {
    Leaf,
    Node(Box<Self>),
}

#[derive(Serialize, Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum Fields {
    Leaf,
    Node { inside: Box<Self> },
}

#[derive(Serialize, Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum Pairs {
    Leaf,
    Node(Box<Self>, ()),
}

#[derive(Serialize, Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct List {
    next: Option<Box<Self>>,
}

#[derive(Serialize, Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Heap(Vec<Self>);

#[derive(Serialize, Deserialize, Debug, PartialEq, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Folder {
    entries: BTreeMap<u8, Self>,
}

/// Wraps `leaf` so many times.
fn nest<T>(levels: usize, leaf: T, wrap: impl Fn(T) -> T) -> T {
    (0..levels).fold(leaf, |inside, _| wrap(inside))
}

fn is_refused<C: for<'a> Decode<'a, T>, T>(bytes: &[u8]) -> bool {
    let words = |error: DecodeError| error.to_string().contains("nested deeper than 128");
    <C as Decode<'_, T>>::decode(bytes).map_or_else(words, |_| false)
}

/// `level` are the bytes that open one, 0 ends a value. `own`: levels of the innermost value itself.
fn ends_at_the_limit<C, T>(level: &[u8], own: usize, leaf: fn() -> T, wrap: fn(T) -> T)
where
    C: Encode<T> + for<'a> Decode<'a, T>,
    T: Serialize + DeserializeOwned + std::fmt::Debug + PartialEq,
{
    let forged = |levels: usize| [&level.repeat(levels)[..], &[0]].concat();
    let most = MOST - own;
    let value = nest(most, leaf(), wrap);
    let mut out = vec![0; 1000];
    let bytes = C::encode(&value, &mut out).unwrap();
    assert_eq!(out[..bytes], forged(most));
    assert_eq!(C::encoded_bytes(&value), Some(bytes));
    assert_eq!(C::decode(&out[..bytes]).unwrap(), value);
    for levels in [most + 1, 20_000, 60_000, 1_000_000] {
        assert!(is_refused::<C, T>(&forged(levels)), "{levels} levels");
    }
    let value = wrap(value);
    let refused = C::encode(&value, &mut out);
    assert!(
        matches!(&refused, Err(EncodeError::Value(why)) if why.contains("nested deeper than 128")),
        "{refused:?}"
    );
    assert_eq!(C::encoded_bytes(&value), None);
}

/// What nests without an end where it is written.
struct Endless(u8);

impl Serialize for Endless {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => serializer.serialize_some(self),
            1 => serializer.serialize_newtype_variant("", 0, "", self),
            2 => serializer.collect_seq([self]),
            _ => serializer.collect_map([((), self)]),
        }
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
enum Kind {
    Unit,
    Newtype(u64),
    Tuple(i8, i16),
    Struct { a: i32, b: i64 },
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Unit;

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Newtype(f32);

/// Everything that serde knows, but for a pair of (borrowed) texts.
#[derive(Serialize, Deserialize, Debug, PartialEq, Clone, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Everything {
    numbers: (u8, u16, u32, u64, u128, i128, f64, bool, char),
    kinds: Vec<Kind>,
    units: (Unit, (), Newtype),
    some: Option<Option<String>>,
    none: Option<u8>,
    map: BTreeMap<String, [i64; 3]>,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

fn everything() -> Everything {
    let kinds = [
        Kind::Unit,
        Kind::Newtype(u64::MAX),
        Kind::Tuple(-1, -300),
        Kind::Struct { a: -70_000, b: i64::MIN },
    ];
    Everything {
        numbers: (1, 300, 70_000, u64::MAX, u128::MAX, i128::MIN, -0.5, true, 'é'),
        kinds: kinds.into(),
        units: (Unit, (), Newtype(1.5)),
        some: Some(Some("text".to_owned())),
        none: None,
        map: [("one".to_owned(), [-1, 0, 1])].into(),
        bytes: vec![7; 300],
    }
}

/// The cases of one codec; `native` is what its library writes by itself.
fn holds<C>(native: &[u8])
where
    C: Encode<Tree> + Encode<Fields> + Encode<Pairs> + Encode<List> + Encode<Heap> + Encode<Folder>,
    C: Encode<Everything> + Encode<Endless>,
    C: for<'a> Decode<'a, Tree>
        + for<'a> Decode<'a, Fields>
        + for<'a> Decode<'a, Pairs>
        + for<'a> Decode<'a, List>,
    C: for<'a> Decode<'a, Heap> + for<'a> Decode<'a, Folder> + for<'a> Decode<'a, Everything>,
    C: for<'a> Decode<'a, Vec<u64>>,
{
    ends_at_the_limit::<C, _>(&[1], 0, || Tree::Leaf, |inside| Tree::Node(Box::new(inside)));
    ends_at_the_limit::<C, _>(&[1], 0, || Fields::Leaf, |inside| Fields::Node { inside: Box::new(inside) });
    ends_at_the_limit::<C, _>(&[1], 0, || Pairs::Leaf, |inside| Pairs::Node(Box::new(inside), ()));
    ends_at_the_limit::<C, _>(
        &[1],
        0,
        || List { next: None },
        |inside| List { next: Some(Box::new(inside)) },
    );
    // An empty sequence is a level too.
    ends_at_the_limit::<C, _>(&[1], 1, || Heap(Vec::new()), |inside| Heap(vec![inside]));
    let empty = || Folder { entries: BTreeMap::new() };
    ends_at_the_limit::<C, _>(&[1, 9], 1, empty, |inside| Folder { entries: [(9, inside)].into() });
    for way in 0..4 {
        let refused = <C as Encode<Endless>>::encode(&Endless(way), &mut [0; 1000]);
        assert!(matches!(refused, Err(EncodeError::Value(_))), "{way}: {refused:?}");
        assert_eq!(<C as Encode<Endless>>::encoded_bytes(&Endless(way)), None);
    }
    // Beside each other is not inside each other.
    let (value, mut out) = (everything(), vec![0; 2000]);
    let bytes = <C as Encode<Everything>>::encode(&value, &mut out).unwrap();
    assert_eq!(&out[..bytes], native);
    assert_eq!(<C as Decode<'_, Everything>>::decode(native).unwrap(), value);
    assert!(!is_refused::<C, Vec<u64>>(&[200, 1]), "other bytes have other words");
}

#[test]
fn postcard_ends_at_128_levels() {
    holds::<Postcard>(&postcard::to_stdvec(&everything()).unwrap());
}

#[cfg(feature = "bincode")]
#[test]
fn bincode_ends_at_128_levels() {
    holds::<Bincode>(&bincode::serde::encode_to_vec(everything(), bincode::config::standard()).unwrap());
}
