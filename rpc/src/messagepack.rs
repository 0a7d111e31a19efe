//! A codec that writes the names of fields and variants, so that types may change: MessagePack.
//!
//! ```text
//!  struct, fields of a variant ─► map by name      variant ─► its name, or a map of its name to what it holds
//!  list, tuple, array ─► array                     unit, `None` ─► nil      `Some` ─► what it holds
//!  number ─► as short as it is                     128 bits, where 64 are too few ─► extension
//! ```
//! Reading is strict about kinds: no number becomes a float, no list a struct, no map a unit variant. So a value of another
//! version is read as an equal one, or not at all.

use std::{fmt::Display, marker::PhantomData};

use serde::{Deserialize, Serialize, de::DeserializeSeed as _};

use crate::{
    codec::{Codec, Decode, DecodeError, Encode, EncodeError},
    nested::{self, Nested},
    shape::{Describe, Form, Shape, Shapes, TypeRef},
};
use read::Reader;
use write::Writer;

mod read;
mod write;

/// [MessagePack](https://msgpack.org) with names of fields and variants, for services that live long (feature `evolve`).
///
/// Versions of a type read each other: unknown fields are skipped, and absent ones have their default, or are refused. Fields may
/// be added, removed, moved and widened, and variants added: `docs/changing.md` in the repository has each case.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessagePack;

impl Codec for MessagePack {
    const NAME: &'static str = "messagepack";
    const FORM: Form = Form::Named;
}

impl<T: Shape + ?Sized> Describe<T> for MessagePack {
    fn describe(shapes: &mut Shapes) -> TypeRef {
        T::shape(shapes)
    }
}

/// Writes `value`, and returns how many bytes that takes.
fn written<T: Serialize + ?Sized>(value: &T, mut writer: Writer<'_>) -> Result<usize, EncodeError> {
    match Nested::new(value).serialize(&mut writer) {
        Ok(()) => Ok(writer.len()),
        Err(error) => {
            nested::unsaid(());
            Err(error)
        }
    }
}

impl<T: Serialize + ?Sized> Encode<T> for MessagePack {
    fn encode(value: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
        written(value, Writer::new(Some(out)))
    }

    fn encoded_bytes(value: &T) -> Option<usize> {
        written(value, Writer::new(None)).ok()
    }
}

impl<'a, T: Deserialize<'a>> Decode<'a, T> for MessagePack {
    fn decode(bytes: &'a [u8]) -> Result<T, DecodeError> {
        let mut reader = Reader::new(bytes);
        match (Nested::new(PhantomData::<T>).deserialize(&mut reader), reader.rest()) {
            (Ok(value), 0) => Ok(value),
            (Ok(_), rest) => Err(DecodeError::new(format!("{rest} bytes too many"))),
            (Err(error), _) => {
                nested::unsaid(());
                Err(error)
            }
        }
    }
}

impl serde::ser::Error for EncodeError {
    fn custom<M: Display>(why: M) -> Self {
        Self::Value(why.to_string())
    }
}

impl serde::de::Error for DecodeError {
    fn custom<M: Display>(why: M) -> Self {
        Self::new(why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Debug};

    use serde::de::{DeserializeOwned, IgnoredAny};

    use super::*;
    use crate::bytes::Bytes;

    fn encoded<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
        let mut out = vec![0; 4096];
        let bytes = MessagePack::encode(value, &mut out).unwrap();
        assert_eq!(MessagePack::encoded_bytes(value), Some(bytes));
        out.truncate(bytes);
        out
    }

    fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
        MessagePack::decode(bytes).map_err(|error| error.to_string())
    }

    /// What one type writes is read as another.
    #[track_caller]
    fn becomes<T: Serialize, U: DeserializeOwned + PartialEq + Debug>(value: T, other: U) {
        assert_eq!(decoded::<U>(&encoded(&value)), Ok(other));
    }

    /// What one type writes is refused by another.
    #[track_caller]
    fn is_refused<T: Serialize, U: DeserializeOwned + Debug>(value: T, words: &str) {
        let error = decoded::<U>(&encoded(&value)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    enum Kind {
        Unit,
        Newtype(Option<f32>),
        Tuple(i32, u64),
        Struct { a: Option<Box<Self>> },
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Everything {
        kinds: Vec<Kind>,
        wide: (u128, i128, i128),
        map: BTreeMap<u8, i8>,
        letter: char,
        unit: (),
        floats: [f64; 2],
        flag: bool,
    }

    fn everything() -> Everything {
        let kinds = vec![
            Kind::Unit,
            Kind::Newtype(None),
            Kind::Newtype(Some(-1.5)),
            Kind::Tuple(-70_000, u64::MAX),
            Kind::Struct { a: Some(Box::new(Kind::Unit)) },
        ];
        let wide = (u128::MAX, i128::MIN, -1);
        let map = BTreeMap::from([(250, 1), (251, -1)]);
        Everything { kinds, wide, map, letter: 'ä', unit: (), floats: [0.1, f64::MAX], flag: true }
    }

    #[test]
    fn every_kind_of_value_comes_back_and_too_few_bytes_are_refused() {
        let bytes = encoded(&everything());
        assert_eq!(decoded(&bytes), Ok(everything()));
        for len in 0..bytes.len() {
            assert!(decoded::<Everything>(&bytes[..len]).is_err(), "{len} bytes of it");
            assert_eq!(MessagePack::encode(&everything(), &mut vec![0; len]), Err(EncodeError::Full));
        }
        assert!(
            decoded::<Everything>(&[&bytes[..], &[0]].concat()).unwrap_err().contains("1 bytes too many")
        );
    }

    #[test]
    fn the_bytes_are_those_of_messagepack() {
        #[derive(Serialize)]
        struct Order {
            id: u16,
            paid: Option<bool>,
        }
        assert_eq!(encoded(&Order { id: 300, paid: Some(true) }), b"\x82\xa2id\xcd\x01\x2c\xa4paid\xc3");
        assert_eq!(encoded(&Kind::Tuple(-1, 1)), b"\x81\xa5Tuple\x92\xff\x01");
        assert_eq!(encoded(&(Kind::Unit, -33i64, 1.5f32)), b"\x93\xa4Unit\xd0\xdf\xca\x3f\xc0\x00\x00");
    }

    #[test]
    fn numbers_keep_their_value_or_are_refused() {
        becomes(1u8, 1i128);
        becomes(1u128, 1u8);
        becomes(-1i128, -1i8);
        becomes(u64::MAX, u128::from(u64::MAX));
        becomes(0.5f64, 0.5f32);
        becomes(0.1f32, f64::from(0.1f32));
        is_refused::<_, u8>(300u16, "integer `300`, expected u8");
        is_refused::<_, u128>(-1i64, "expected u128");
        is_refused::<_, u128>(i128::MIN, "expected u128");
        is_refused::<_, i128>(u128::MAX, "expected i128");
        is_refused::<_, u64>(u128::MAX, "expected u64");
        is_refused::<_, f32>(0.1f64, "expected a number of 32 bits");
        is_refused::<_, f64>(1u8, "integer `1`, expected f64");
        is_refused::<_, u8>(1.0f32, "expected u8");
        is_refused::<_, bool>(1u8, "expected a boolean");
    }

    #[test]
    fn kinds_stay_apart() {
        #[derive(Serialize, Deserialize, Debug, PartialEq)]
        struct Pair {
            a: u8,
            b: u8,
        }
        #[derive(Serialize, Deserialize, Debug, PartialEq)]
        enum Other {
            Unit,
            Newtype,
            Tuple { x: i32, y: u64 },
        }
        is_refused::<_, Pair>((1u8, 2u8), "expected struct Pair");
        is_refused::<_, Pair>(BTreeMap::from([(0u8, 1u8), (1, 2)]), "integer `0`, expected field identifier");
        is_refused::<_, (u8, u8)>(Pair { a: 1, b: 2 }, "expected a tuple");
        is_refused::<_, Other>(0u8, "expected enum Other");
        is_refused::<_, Other>(Kind::Newtype(None), "`Newtype`: invalid type: a variant with contents");
        is_refused::<_, Other>(Kind::Tuple(1, 2), "`Tuple`: invalid type: sequence");
        is_refused::<_, Kind>(Other::Newtype, "expected newtype variant");
        is_refused::<_, Other>(Kind::Struct { a: None }, "unknown variant `Struct`");
        is_refused::<_, String>(Bytes(vec![120u8]), "expected a string");
        becomes(Bytes(vec![1u8, 200]), vec![1u8, 200]);
        let Bytes(bytes): Bytes<Vec<u8>> = MessagePack::decode(&encoded(&vec![1u8, 200])).unwrap();
        assert_eq!(bytes, [1, 200]);
        is_refused::<_, Vec<f32>>(Bytes(vec![1u8]), "integer `1`, expected f32");
    }

    #[test]
    fn some_of_nothing_is_not_written_as_none() {
        let mut out = [0; 16];
        for refused in [
            MessagePack::encode(&Some(None::<u8>), &mut out),
            MessagePack::encode(&Some(()), &mut out),
            MessagePack::encode(&(1u8, Some(None::<u8>)), &mut out),
        ] {
            assert!(matches!(refused, Err(EncodeError::Value(_))), "{refused:?}");
        }
        becomes(Some(Some(1u8)), Some(1u8));
        becomes((None::<u8>, Some(vec![(), ()])), (None::<u8>, Some(vec![(), ()])));
    }

    #[test]
    fn what_serde_reads_from_a_buffer_comes_back() {
        #[derive(Serialize, Deserialize, Debug, PartialEq)]
        #[serde(untagged)]
        enum Untagged {
            Number(u8),
            Text(String),
            List(Vec<Self>),
        }
        #[derive(Serialize, Deserialize, Debug, PartialEq)]
        #[serde(tag = "kind")]
        enum Tagged {
            A { x: f32, y: Option<bool> },
        }
        #[derive(Serialize, Deserialize, Debug, PartialEq)]
        struct Flat {
            id: i8,
            #[serde(flatten)]
            tagged: Tagged,
        }
        let text = || Untagged::Text("x".to_owned());
        let list = || Untagged::List(vec![Untagged::Number(200), text(), Untagged::List(vec![text()])]);
        becomes(list(), list());
        let flat = || Flat { id: -1, tagged: Tagged::A { x: 0.1, y: None } };
        becomes(flat(), flat());
    }

    #[test]
    fn a_refusal_names_the_field() {
        #[derive(Serialize, Deserialize, Debug)]
        struct Outer<T> {
            inner: Inner<T>,
        }
        #[derive(Serialize, Deserialize, Debug)]
        struct Inner<T> {
            id: T,
        }
        is_refused::<_, Outer<u8>>(
            Outer { inner: Inner { id: 300u16 } },
            "`inner`: `id`: invalid value: integer `300`, expected u8",
        );
    }

    #[test]
    fn lists_and_maps_of_unknown_length_have_one() {
        struct Unknown;
        impl Serialize for Unknown {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::{SerializeMap as _, SerializeSeq as _};
                struct List;
                impl Serialize for List {
                    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                        let mut list = serializer.serialize_seq(None)?;
                        (0..3u8).try_for_each(|item| list.serialize_element(&item))?;
                        list.end()
                    }
                }
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("x", &List)?;
                map.serialize_entry("y", &List)?;
                map.end()
            }
        }
        let list = vec![0u8, 1, 2];
        let map = [("x".to_owned(), list.clone()), ("y".to_owned(), list)];
        becomes(Unknown, BTreeMap::from(map));
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct List(Vec<Self>);

    #[test]
    fn messagepack_ends_at_128_levels() {
        let nested = |levels: usize| (1..levels).fold(List(Vec::new()), |inside, _| List(vec![inside]));
        becomes(nested(128), nested(128));
        let mut out = vec![0; 1000];
        let refused = MessagePack::encode(&nested(129), &mut out).unwrap_err().to_string();
        assert!(refused.contains("nested deeper than 128"), "{refused}");
        let bytes = [vec![0x91; 128], vec![0x90]].concat();
        assert!(decoded::<List>(&bytes).unwrap_err().contains("nested deeper than 128"));
        assert!(decoded::<Vec<u64>>(&[0x91, 0xc0]).unwrap_err().contains("unit value"), "other words");
        #[derive(Deserialize, Debug)]
        #[serde(untagged)]
        #[allow(dead_code, reason = "it is never read")]
        enum Untagged {
            List(Vec<Self>),
        }
        let bytes = [vec![0x91; 1_000_000], vec![0x90]].concat();
        assert!(decoded::<Untagged>(&bytes).is_err());
    }

    #[test]
    fn what_is_skipped_may_nest_as_deep_as_it_likes() {
        let bytes = [vec![0x91; 1_000_000], vec![0x90]].concat();
        assert!(decoded::<IgnoredAny>(&bytes).is_ok());
        assert!(decoded::<IgnoredAny>(&bytes[..1_000_000]).is_err());
    }

    #[test]
    fn a_hostile_length_allocates_nothing() {
        for marker in [0xdc, 0xdd, 0xde, 0xdf, 0xda, 0xdb, 0xc5, 0xc6] {
            let hostile = [marker, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
            let allocated = allocation_counter::measure(|| {
                assert!(decoded::<Vec<[u64; 32]>>(&hostile).is_err());
                assert!(decoded::<BTreeMap<u8, u8>>(&hostile).is_err());
                assert!(decoded::<String>(&hostile).is_err());
                assert!(decoded::<Bytes<Vec<u8>>>(&hostile).is_err());
            });
            assert!(allocated.bytes_max < 4096, "{marker:#x}: {} bytes", allocated.bytes_max);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let valid = encoded(&everything());
        for at in 0..valid.len() {
            for byte in 0..=255 {
                let mut bytes = valid.clone();
                bytes[at] = byte;
                if let Ok(value) = decoded::<Everything>(&bytes) {
                    let again = decoded::<Everything>(&encoded(&value)).unwrap();
                    assert_eq!(format!("{again:?}"), format!("{value:?}"));
                }
            }
        }
    }
}
