//! The bytes of a codec to JSON, by type.

use gimmal_rpc::shape::{Contents, Field, Schema, Type, TypeRef};
use serde_json::{Map, Value, json};

use super::wire::{Wire, take, zagzig};

/// Most levels of a value: the server wrote it, and reading it recurses.
const NESTED_MAX: u32 = 128;
/// Most items of a value that take no bytes.
const EMPTY_MAX: u32 = 1 << 16;

/// Reads values of the types of a schema.
pub(super) struct Reader<'a> {
    schema: &'a Schema,
    wire: Wire,
    bytes: &'a [u8],
    levels: u32,
    /// Items that took no bytes.
    empty: u32,
}

/// Reads all of `bytes` as the type at `at`.
pub(super) fn read(schema: &Schema, wire: Wire, at: TypeRef, bytes: &[u8]) -> Option<Value> {
    let mut reader = Reader { schema, wire, bytes, levels: 0, empty: 0 };
    let value = reader.value(at)?;
    reader.bytes.is_empty().then_some(value)
}

impl Reader<'_> {
    fn value(&mut self, at: TypeRef) -> Option<Value> {
        self.levels += 1;
        if self.levels > NESTED_MAX {
            return None;
        }
        let value = self.typed(at);
        self.levels -= 1;
        value
    }

    fn number(&mut self) -> Option<u128> {
        self.wire.read(&mut self.bytes)
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        take(&mut self.bytes, count)
    }

    fn text(&mut self) -> Option<Value> {
        let len = usize::try_from(self.number()?).ok()?;
        Some(json!(std::str::from_utf8(self.take(len)?).ok()?))
    }

    fn typed(&mut self, at: TypeRef) -> Option<Value> {
        let schema = self.schema;
        Some(match schema.get(at) {
            Type::Bool => json!(*self.take(1)?.first()? == 1),
            Type::U8 => json!(self.take(1)?.first()?),
            Type::I8 => json!(self.take(1)?.first()?.cast_signed()),
            Type::U16 | Type::U32 | Type::U64 | Type::U128 => {
                let number = self.number()?;
                u64::try_from(number).map_or_else(|_| json!(number.to_string()), |number| json!(number))
            }
            Type::I16 | Type::I32 | Type::I64 | Type::I128 => {
                let number = zagzig(self.number()?);
                i64::try_from(number).map_or_else(|_| json!(number.to_string()), |number| json!(number))
            }
            Type::F32 => float(f32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            Type::F64 => float(f64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            Type::Char if self.wire == Wire::Postcard => self.text()?,
            Type::Char => {
                let len = match self.bytes.first()? {
                    0..=0x7f => 1,
                    0x80..=0xdf => 2,
                    0xe0..=0xef => 3,
                    _ => 4,
                };
                json!(std::str::from_utf8(self.take(len)?).ok()?)
            }
            Type::Text => self.text()?,
            Type::Bytes => {
                let len = usize::try_from(self.number()?).ok()?;
                bytes(self.take(len)?)
            }
            Type::Unit => Value::Null,
            Type::Option(inner) => match self.take(1)?.first()? {
                0 => Value::Null,
                _ => self.value(*inner)?,
            },
            Type::List(inner) => {
                let len = self.number()?;
                self.items(*inner, len)?
            }
            Type::Array(inner, len) => self.items(*inner, (*len).into())?,
            Type::Tuple(types) => types.iter().map(|ty| self.value(*ty)).collect::<Option<Vec<_>>>()?.into(),
            Type::Map(key, item) => self.map(*key, *item)?,
            Type::Struct { fields, .. } => self.fields(fields)?,
            Type::Enum { variants, .. } => {
                let index = usize::try_from(self.number()?).ok()?;
                let variant = variants.get(index)?;
                let contents = match &variant.contents {
                    Contents::Unit => return Some(json!(variant.name)),
                    Contents::Newtype(inner) => self.value(*inner)?,
                    Contents::Tuple(types) => {
                        types.iter().map(|ty| self.value(*ty)).collect::<Option<Vec<_>>>()?.into()
                    }
                    Contents::Struct(fields) => self.fields(fields)?,
                };
                json!({ &variant.name[..]: contents })
            }
            _ => return None,
        })
    }

    fn items(&mut self, inner: TypeRef, len: u128) -> Option<Value> {
        let mut items = Vec::new();
        for _ in 0..len {
            let before = self.bytes.len();
            items.push(self.value(inner)?);
            self.count(before)?;
        }
        Some(items.into())
    }

    /// An item was read, where `before` bytes were left.
    fn count(&mut self, before: usize) -> Option<()> {
        self.empty += u32::from(self.bytes.len() == before);
        (self.empty <= EMPTY_MAX).then_some(())
    }

    fn map(&mut self, key: TypeRef, item: TypeRef) -> Option<Value> {
        let len = self.number()?;
        let mut pairs = Vec::new();
        for _ in 0..len {
            let before = self.bytes.len();
            pairs.push((self.value(key)?, self.value(item)?));
            self.count(before)?;
        }
        Some(keyed(pairs))
    }

    fn fields(&mut self, fields: &[Field]) -> Option<Value> {
        let mut object = Map::new();
        for field in fields {
            object.insert(field.name.clone(), self.value(field.ty)?);
        }
        Some(object.into())
    }
}

/// An object, or pairs where keys are neither text nor numbers.
pub(super) fn keyed(pairs: Vec<(Value, Value)>) -> Value {
    let name = |key: &Value| match key {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let object: Option<Map<String, Value>> =
        pairs.iter().map(|(key, value)| Some((name(key)?, value.clone()))).collect();
    match object {
        Some(object) if object.len() == pairs.len() => object.into(),
        _ => pairs.into_iter().map(|(key, value)| json!([key, value])).collect::<Vec<_>>().into(),
    }
}

/// JSON has no numbers for these.
pub(super) fn float(number: f64) -> Value {
    if number.is_finite() { json!(number) } else { json!(number.to_string()) }
}

/// Bytes as text where they are text, else as numbers.
pub(super) fn bytes(bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains(|letter: char| letter.is_control() && !letter.is_whitespace()));
    text.map_or_else(|| json!(bytes), |text| json!(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail")]

    use std::collections::BTreeMap;

    use gimmal_rpc::{
        MessagePack, Postcard, Shape,
        codec::{Decode, Encode as _},
        shape::Describing,
    };
    use serde::{Deserialize, Serialize};

    use super::{super::write::Writer, *};

    type Sample = (u8, u32, i16, i64, bool, f64, String, Vec<(String, u64)>, Option<u16>, More);

    #[derive(Serialize, Deserialize, Shape, Clone, PartialEq, Debug)]
    #[shape(crate = gimmal_rpc)]
    struct More {
        wide: u128,
        signed: i128,
        letter: char,
        map: BTreeMap<u16, i8>,
        bytes: Vec<u8>,
        kinds: [Kind; 4],
        unit: (),
    }

    #[derive(Serialize, Deserialize, Shape, Clone, PartialEq, Debug)]
    #[shape(crate = gimmal_rpc)]
    enum Kind {
        Unit,
        Newtype(f32),
        Tuple(i32, u64),
        Struct { a: Option<Box<Self>> },
    }

    fn sample() -> Sample {
        let kinds = [
            Kind::Unit,
            Kind::Newtype(-1.5),
            Kind::Tuple(-70_000, u64::MAX),
            Kind::Struct { a: Some(Box::new(Kind::Unit)) },
        ];
        let more = More {
            wide: u128::MAX,
            signed: i128::MIN,
            letter: 'ä',
            map: BTreeMap::from([(250, 1), (251, -1), (700, 0)]),
            bytes: vec![0, 255],
            kinds,
            unit: (),
        };
        (200, 70_000, -300, i64::MIN, true, 1.5, "ä".to_owned(), vec![("x".to_owned(), 9)], None, more)
    }

    /// Against the codecs themselves.
    #[test]
    fn values_are_as_the_codecs_write_them() {
        let schema = Describing::<Postcard>::default().answer::<Sample>().done();
        let ty = schema.answer.unwrap();
        let bincode = bincode::serde::encode_to_vec(sample(), bincode::config::standard()).unwrap();
        for (wire, bytes) in
            [(Wire::Postcard, postcard::to_stdvec(&sample()).unwrap()), (Wire::Bincode, bincode)]
        {
            let json = read(schema, wire, ty, &bytes).unwrap();
            assert_eq!(json[9]["kinds"][3], json!({ "Struct": { "a": "Unit" } }), "{json}");
            let mut writer = Writer::new(schema, wire);
            writer.argument(ty, &json.to_string()).unwrap();
            assert_eq!(writer.out, bytes, "{wire:?}: {json}");
            for len in 0..bytes.len() {
                assert_eq!(read(schema, wire, ty, &bytes[..len]), None, "{len} bytes of it");
            }
        }
    }

    #[test]
    fn values_are_as_messagepack_writes_them() {
        let schema = Describing::<Postcard>::default().answer::<Sample>().done();
        let ty = schema.answer.unwrap();
        let mut out = vec![0; 1000];
        let bytes = MessagePack::encode(&sample(), &mut out).unwrap();
        let json = crate::live::named::read(schema, ty, &out[..bytes]).unwrap();
        let same = read(schema, Wire::Postcard, ty, &postcard::to_stdvec(&sample()).unwrap()).unwrap();
        assert_eq!(json, same);
        let written = crate::live::named::written(schema, [(ty, &json.to_string()[..])].into_iter()).unwrap();
        assert_eq!(<MessagePack as Decode<'_, Sample>>::decode(&written), Ok(sample()));
        for len in 0..bytes {
            assert_eq!(crate::live::named::read(schema, ty, &out[..len]), None, "{len} bytes of it");
        }
    }

    #[test]
    fn a_servers_value_that_nests_too_deep_is_refused() {
        let schema = Describing::<Postcard>::default().answer::<Kind>().done();
        for levels in [200, 1_000_000] {
            // `Struct { a: Some(..) }` as often.
            let bytes: Vec<u8> = [3, 1].into_iter().cycle().take(2 * levels).chain([0]).collect();
            assert_eq!(read(schema, Wire::Postcard, schema.answer.unwrap(), &bytes), None, "{levels}");
        }
    }

    #[test]
    fn a_list_of_nothing_has_a_limit() {
        let schema = Describing::<Postcard>::default().answer::<Vec<()>>().done();
        let bytes = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(read(schema, Wire::Postcard, schema.answer.unwrap(), &bytes), None);
        // As many in all lists of a value together.
        let schema = Describing::<Postcard>::default().answer::<Vec<Vec<()>>>().done();
        let lists = |count: u8| [count].into_iter().chain([0x80, 0x80, 2].repeat(count.into()));
        for (count, is_read) in [(2, true), (3, false), (100, false)] {
            let bytes: Vec<u8> = lists(count).collect();
            let value = read(schema, Wire::Postcard, schema.answer.unwrap(), &bytes);
            assert_eq!(value.is_some(), is_read, "{count} lists of 32,768");
        }
    }
}
