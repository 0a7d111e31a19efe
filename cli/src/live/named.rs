//! MessagePack to JSON and back. Its bytes say what they are: the types are asked for what JSON does not have.

use std::fmt;

use gimmal_rpc::{
    MessagePack,
    codec::{Decode, Encode},
    shape::{Contents, Field, Schema, Type, TypeRef},
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, SeqAccess, Visitor},
    ser::{Error as _, SerializeMap as _},
};
use serde_json::{Map, Value, json};

use super::{
    read::{bytes, float, keyed},
    write::{parsed, real, signed, unsigned},
};

/// A value as its bytes tell it.
enum Any {
    Nil,
    Bool(bool),
    Unsigned(u128),
    Signed(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Any, E> {
        Ok(Any::Nil)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Any, E> {
        Ok(Any::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Any, E> {
        Ok(Any::Unsigned(number.into()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Any, E> {
        Ok(Any::Unsigned(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Any, E> {
        Ok(Any::Signed(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Any, E> {
        Ok(Any::Signed(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Any, E> {
        Ok(Any::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Any, E> {
        Ok(Any::Text(text.to_owned()))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Any, E> {
        Ok(Any::Bytes(bytes.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Any, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Any::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Any, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Any::Map(map))
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor)
    }
}

/// What no field or variant of ours is: shown as it is.
const UNKNOWN: TypeRef = TypeRef(u32::MAX);

/// Reads all of `read` as the type at `at`.
pub(super) fn read(schema: &Schema, at: TypeRef, read: &[u8]) -> Option<Value> {
    let any = <MessagePack as Decode<'_, Any>>::decode(read).ok()?;
    Some(shown(schema, at, any))
}

fn shown(schema: &Schema, at: TypeRef, any: Any) -> Value {
    let items = |items: Vec<Any>, at: TypeRef| -> Value {
        items.into_iter().map(|item| shown(schema, at, item)).collect::<Vec<_>>().into()
    };
    match (schema.get(at), any) {
        (_, Any::Nil) => Value::Null,
        (Type::Option(inner), any) => shown(schema, *inner, any),
        (Type::Bytes, Any::List(list)) => {
            let byte = |item: &Any| match item {
                Any::Unsigned(byte) => u8::try_from(*byte).ok(),
                _ => None,
            };
            let all: Option<Vec<u8>> = list.iter().map(byte).collect();
            all.map_or_else(|| items(list, UNKNOWN), |all| bytes(&all))
        }
        (Type::Tuple(types), Any::List(list)) => tuple(schema, types, list),
        (Type::List(inner) | Type::Array(inner, _), Any::List(list)) => items(list, *inner),
        (_, Any::List(list)) => items(list, UNKNOWN),
        (Type::Struct { fields, .. }, Any::Map(map)) => object(schema, fields, map),
        (Type::Enum { variants, .. }, Any::Map(map)) => {
            let entries = map.into_iter().map(|(name, contents)| {
                let name = shown(schema, UNKNOWN, name);
                let variant = variants.iter().find(|variant| Some(&variant.name[..]) == name.as_str());
                let contents = match (variant.map(|variant| &variant.contents), contents) {
                    (Some(Contents::Newtype(inner)), contents) => shown(schema, *inner, contents),
                    (Some(Contents::Tuple(types)), Any::List(list)) => tuple(schema, types, list),
                    (Some(Contents::Struct(fields)), Any::Map(map)) => object(schema, fields, map),
                    (_, contents) => shown(schema, UNKNOWN, contents),
                };
                (name, contents)
            });
            keyed(entries.collect())
        }
        (ty, Any::Map(map)) => {
            let (key, item) = if let Type::Map(key, item) = ty { (*key, *item) } else { (UNKNOWN, UNKNOWN) };
            let entry = |(name, value)| (shown(schema, key, name), shown(schema, item, value));
            keyed(map.into_iter().map(entry).collect())
        }
        (_, Any::Bool(flag)) => flag.into(),
        (_, Any::Unsigned(number)) => {
            u64::try_from(number).map_or_else(|_| json!(number.to_string()), |number| json!(number))
        }
        (_, Any::Signed(number)) => {
            i64::try_from(number).map_or_else(|_| json!(number.to_string()), |number| json!(number))
        }
        (_, Any::Float(number)) => float(number),
        (_, Any::Text(text)) => text.into(),
        (_, Any::Bytes(all)) => bytes(&all),
    }
}

fn tuple(schema: &Schema, types: &[TypeRef], list: Vec<Any>) -> Value {
    let types = types.iter().copied().chain(std::iter::repeat(UNKNOWN));
    list.into_iter().zip(types).map(|(item, ty)| shown(schema, ty, item)).collect::<Vec<_>>().into()
}

/// Fields by name; one that this schema does not have is shown too.
fn object(schema: &Schema, fields: &[Field], map: Vec<(Any, Any)>) -> Value {
    let entries = map.into_iter().map(|(name, value)| {
        let name = shown(schema, UNKNOWN, name);
        let field = fields.iter().find(|field| Some(&field.name[..]) == name.as_str());
        (name, shown(schema, field.map_or(UNKNOWN, |field| field.ty), value))
    });
    keyed(entries.collect())
}

/// JSON that was found to fit a type.
struct Typed<'a> {
    schema: &'a Schema,
    at: TypeRef,
    value: &'a Value,
}

impl<'a> Typed<'a> {
    const fn of(&self, at: TypeRef, value: &'a Value) -> Self {
        Self { schema: self.schema, at, value }
    }

    fn items(&self, value: &'a Value, types: impl Iterator<Item = TypeRef>) -> Option<Vec<Self>> {
        Some(value.as_array()?.iter().zip(types).map(|(item, at)| self.of(at, item)).collect())
    }

    fn fields<S: Serializer>(
        &self,
        fields: &[Field],
        object: &'a Map<String, Value>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let given = fields.iter().filter_map(|field| Some((field, object.get(&field.name)?)));
        serializer.collect_map(given.map(|(field, value)| (&field.name, self.of(field.ty, value))))
    }
}

/// The contents of a variant with named fields.
struct Named<'a>(&'a Typed<'a>, &'a [Field], &'a Map<String, Value>);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.fields(self.1, self.2, serializer)
    }
}

impl Serialize for Typed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { schema, at, value } = *self;
        let no = || S::Error::custom(format!("{value} is no {}", schema.spelled(at)));
        match schema.get(at) {
            Type::Bool => serializer.serialize_bool(value.as_bool().ok_or_else(no)?),
            Type::U8 | Type::U16 | Type::U32 | Type::U64 | Type::U128 => {
                serializer.serialize_u128(unsigned(value).ok_or_else(no)?)
            }
            Type::I8 | Type::I16 | Type::I32 | Type::I64 | Type::I128 => {
                serializer.serialize_i128(signed(value).ok_or_else(no)?)
            }
            #[expect(clippy::cast_possible_truncation, reason = "the nearest number there is")]
            Type::F32 => serializer.serialize_f32(real(value).ok_or_else(no)? as f32),
            Type::F64 => serializer.serialize_f64(real(value).ok_or_else(no)?),
            Type::Char | Type::Text => serializer.serialize_str(value.as_str().ok_or_else(no)?),
            Type::Bytes if value.is_string() => {
                serializer.serialize_bytes(value.as_str().unwrap_or_default().as_bytes())
            }
            Type::Bytes => value.serialize(serializer),
            Type::Unit => serializer.serialize_unit(),
            Type::Option(_) if value.is_null() => serializer.serialize_none(),
            Type::Option(inner) => serializer.serialize_some(&self.of(*inner, value)),
            Type::List(inner) | Type::Array(inner, _) => {
                self.items(value, std::iter::repeat(*inner)).ok_or_else(no)?.serialize(serializer)
            }
            Type::Tuple(types) => {
                self.items(value, types.iter().copied()).ok_or_else(no)?.serialize(serializer)
            }
            Type::Map(key, item) => {
                let mut keys = Vec::new();
                if let Some(object) = value.as_object() {
                    for (name, value) in object {
                        keys.push((parsed(schema, *key, name).map_err(S::Error::custom)?, value));
                    }
                } else {
                    for pair in value.as_array().ok_or_else(no)? {
                        keys.push((pair[0].clone(), &pair[1]));
                    }
                }
                serializer.collect_map(
                    keys.iter().map(|(name, value)| (self.of(*key, name), self.of(*item, value))),
                )
            }
            Type::Struct { fields, .. } => self.fields(fields, value.as_object().ok_or_else(no)?, serializer),
            Type::Enum { variants, .. } => {
                if let Some(name) = value.as_str() {
                    return serializer.serialize_str(name);
                }
                let (name, contents) =
                    value.as_object().and_then(|object| object.iter().next()).ok_or_else(no)?;
                let variant = variants.iter().find(|variant| variant.name == *name).ok_or_else(no)?;
                let mut map = serializer.serialize_map(Some(1))?;
                match &variant.contents {
                    Contents::Unit => return Err(no()),
                    Contents::Newtype(inner) => map.serialize_entry(name, &self.of(*inner, contents))?,
                    Contents::Tuple(types) => {
                        let items = self.items(contents, types.iter().copied());
                        map.serialize_entry(name, &items.ok_or_else(no)?)?;
                    }
                    Contents::Struct(fields) => {
                        let object = contents.as_object().ok_or_else(no)?;
                        map.serialize_entry(name, &Named(self, fields, object))?;
                    }
                }
                map.end()
            }
            _ => Err(no()),
        }
    }
}

/// Writes values that were found to fit their types, as the one value that the codec writes of them.
pub(super) fn written<'a>(
    schema: &Schema,
    given: impl Iterator<Item = (TypeRef, &'a str)>,
) -> Result<Vec<u8>, String> {
    let value = |(at, given)| match parsed(schema, at, given) {
        Ok(value) => Ok((at, value)),
        Err(wrong) => Err(wrong.to_string()),
    };
    let values = given.map(value).collect::<Result<Vec<(TypeRef, Value)>, String>>()?;
    let typed: Vec<Typed<'_>> = values.iter().map(|(at, value)| Typed { schema, at: *at, value }).collect();
    match &typed[..] {
        [] => encoded(&()),
        [one] => encoded(one),
        all => encoded(all),
    }
}

fn encoded<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, String> {
    let mut out = vec![0; MessagePack::encoded_bytes(value).unwrap_or_default()];
    MessagePack::encode(value, &mut out).map_err(|error| error.to_string())?;
    Ok(out)
}
