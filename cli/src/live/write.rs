//! JSON to the bytes of a codec, by type. What does not fit its type is named by its place.

use std::fmt;

use gimmal_rpc::shape::{Contents, Field, Schema, Type, TypeRef};
use serde_json::Value;

use super::wire::{Wire, zigzag};

/// Most levels of a value.
const NESTED_MAX: u32 = 128;

/// A value that does not fit its type.
#[derive(Debug)]
pub(super) struct Wrong {
    /// Where in the argument: `.entries[3].name`.
    at: String,
    what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at[..] {
            "" => f.write_str(&self.what),
            at => write!(f, "at {}: {}", at.trim_start_matches('.'), self.what),
        }
    }
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at: String::new(), what: what.into() })
}

/// Puts the place of a part before what is wrong with it.
fn within<T>(result: Result<T, Wrong>, place: impl FnOnce() -> String) -> Result<T, Wrong> {
    result.map_err(|Wrong { at, what }| Wrong { at: place() + &at, what })
}

/// What was given on the command line: JSON, or text without quotes where the type is text.
pub(super) fn parsed(schema: &Schema, at: TypeRef, given: &str) -> Result<Value, Wrong> {
    let is_text = |at: &TypeRef| matches!(schema.get(*at), Type::Text | Type::Bytes | Type::Char);
    let may_be_text = match schema.get(at) {
        Type::Option(inner) => is_text(inner),
        Type::Enum { .. } => true,
        _ => is_text(&at),
    };
    match serde_json::from_str(given) {
        Ok(Value::Number(_) | Value::Bool(_)) if is_text(&at) => Ok(Value::String(given.to_owned())),
        Ok(value) => Ok(value),
        Err(_) if may_be_text => Ok(Value::String(given.to_owned())),
        Err(error) => wrong(format!("'{given}' is no JSON: {error}")),
    }
}

/// Writes values of the types of a schema.
pub(super) struct Writer<'a> {
    pub(super) schema: &'a Schema,
    pub(super) wire: Wire,
    pub(super) out: Vec<u8>,
    levels: u32,
}

impl<'a> Writer<'a> {
    pub(super) const fn new(schema: &'a Schema, wire: Wire) -> Self {
        Self { schema, wire, out: Vec::new(), levels: 0 }
    }

    /// Writes what was given on the command line.
    pub(super) fn argument(&mut self, at: TypeRef, given: &str) -> Result<(), Wrong> {
        let value = parsed(self.schema, at, given)?;
        self.value(at, &value)
    }

    fn value(&mut self, at: TypeRef, value: &Value) -> Result<(), Wrong> {
        self.levels += 1;
        if self.levels > NESTED_MAX {
            return wrong(format!("nested deeper than {NESTED_MAX} levels"));
        }
        let written = self.typed(at, value);
        self.levels -= 1;
        written
    }

    fn typed(&mut self, at: TypeRef, value: &Value) -> Result<(), Wrong> {
        let schema = self.schema;
        let no = || Wrong { at: String::new(), what: format!("{value} is no {}", schema.spelled(at)) };
        match schema.get(at) {
            Type::Char => {
                let text = value.as_str().filter(|text| text.chars().count() == 1).ok_or_else(no)?;
                if self.wire == Wire::Postcard {
                    self.number(text.len() as u128);
                }
                self.out.extend_from_slice(text.as_bytes());
            }
            Type::Text => self.bytes(value.as_str().ok_or_else(no)?.as_bytes()),
            Type::Bytes => match value {
                Value::String(text) => self.bytes(text.as_bytes()),
                value => {
                    let byte = |item: &Value| item.as_u64().and_then(|it| u8::try_from(it).ok());
                    let bytes = value
                        .as_array()
                        .and_then(|items| items.iter().map(byte).collect::<Option<Vec<u8>>>());
                    self.bytes(&bytes.ok_or_else(no)?);
                }
            },
            Type::Unit if value.is_null() => {}
            Type::Unit => return Err(no()),
            Type::Option(inner) => {
                self.out.push((!value.is_null()).into());
                if !value.is_null() {
                    self.value(*inner, value)?;
                }
            }
            Type::List(inner) => {
                let items = value.as_array().ok_or_else(no)?;
                self.number(items.len() as u128);
                self.items(items.iter().map(|item| (*inner, item)))?;
            }
            Type::Array(inner, len) => {
                let items = value.as_array().filter(|items| items.len() as u64 == *len).ok_or_else(no)?;
                self.items(items.iter().map(|item| (*inner, item)))?;
            }
            Type::Tuple(types) => {
                self.tuple(types, value).map_err(|wrong| if wrong.what.is_empty() { no() } else { wrong })?
            }
            Type::Map(key, item) => self
                .map((*key, *item), value)
                .map_err(|wrong| if wrong.what.is_empty() { no() } else { wrong })?,
            Type::Struct { name, fields, .. } => self.fields(name, fields, value)?,
            Type::Enum { .. } => self.variant(at, value)?,
            Type::Opaque(_) => {
                return wrong(format!("a value of {} is known to its program alone", schema.spelled(at)));
            }
            Type::Unknown => return wrong("its type has no shape; only its program can write it"),
            ty => self.plain(ty, value).ok_or_else(no)?,
        }
        Ok(())
    }

    /// A number or a truth. `None` if `value` is none, or does not fit.
    fn plain(&mut self, ty: &Type, value: &Value) -> Option<()> {
        match ty {
            Type::Bool => self.out.push(value.as_bool()?.into()),
            Type::U8 => self.out.push(unsigned(value).and_then(|it| u8::try_from(it).ok())?),
            Type::I8 => {
                let number = signed(value).and_then(|it| i8::try_from(it).ok())?;
                self.out.extend(number.to_le_bytes());
            }
            Type::U16 => self.number(unsigned(value).filter(|it| *it <= u16::MAX.into())?),
            Type::U32 => self.number(unsigned(value).filter(|it| *it <= u32::MAX.into())?),
            Type::U64 => self.number(unsigned(value).filter(|it| *it <= u64::MAX.into())?),
            Type::U128 => self.number(unsigned(value)?),
            Type::I16 => self.number(zigzag(signed(value).filter(|it| i16::try_from(*it).is_ok())?)),
            Type::I32 => self.number(zigzag(signed(value).filter(|it| i32::try_from(*it).is_ok())?)),
            Type::I64 => self.number(zigzag(signed(value).filter(|it| i64::try_from(*it).is_ok())?)),
            Type::I128 => self.number(zigzag(signed(value)?)),
            #[expect(clippy::cast_possible_truncation, reason = "the nearest number there is")]
            Type::F32 => self.out.extend((real(value)? as f32).to_le_bytes()),
            Type::F64 => self.out.extend(real(value)?.to_le_bytes()),
            _ => return None,
        }
        Some(())
    }

    fn number(&mut self, number: u128) {
        self.wire.write(number, &mut self.out);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u128);
        self.out.extend_from_slice(bytes);
    }

    fn items<'v>(&mut self, items: impl Iterator<Item = (TypeRef, &'v Value)>) -> Result<(), Wrong> {
        for (at, (ty, item)) in items.enumerate() {
            within(self.value(ty, item), || format!("[{at}]"))?;
        }
        Ok(())
    }

    fn tuple(&mut self, types: &[TypeRef], value: &Value) -> Result<(), Wrong> {
        match value.as_array().filter(|items| items.len() == types.len()) {
            Some(items) => self.items(types.iter().copied().zip(items)),
            None => wrong(""),
        }
    }

    /// An object, or pairs where keys are no text.
    fn map(&mut self, (key, item): (TypeRef, TypeRef), value: &Value) -> Result<(), Wrong> {
        if let Some(pairs) = value.as_array() {
            self.number(pairs.len() as u128);
            for (at, pair) in pairs.iter().enumerate() {
                within(self.tuple(&[key, item], pair), || format!("[{at}]"))?;
            }
            return Ok(());
        }
        let Some(object) = value.as_object() else { return wrong("") };
        self.number(object.len() as u128);
        for (name, value) in object {
            within(self.argument(key, name), || format!("[{name:?}]"))?;
            within(self.value(item, value), || format!(".{name}"))?;
        }
        Ok(())
    }

    fn fields(&mut self, owner: &str, fields: &[Field], value: &Value) -> Result<(), Wrong> {
        let Some(object) = value.as_object() else {
            let names: Vec<&str> = fields.iter().map(|field| &field.name[..]).collect();
            return wrong(format!("{value} is no {owner}, an object with {}", names.join(", ")));
        };
        if let Some(unknown) = object.keys().find(|name| fields.iter().all(|field| field.name != **name)) {
            let names: Vec<&str> = fields.iter().map(|field| &field.name[..]).collect();
            return wrong(format!("{owner} has no field {unknown}; it has {}", names.join(", ")));
        }
        for field in fields {
            match (object.get(&field.name), self.schema.get(field.ty)) {
                (Some(value), _) => within(self.value(field.ty, value), || format!(".{}", field.name))?,
                (None, Type::Option(_)) => self.out.push(0),
                (None, _) if field.is_optional && self.wire == Wire::MessagePack => {}
                (None, _) => {
                    let ty = self.schema.spelled(field.ty);
                    return wrong(format!("{owner} needs the field {}: {ty}", field.name));
                }
            }
        }
        Ok(())
    }

    /// `"Name"`, or `{"Name": contents}`.
    fn variant(&mut self, at: TypeRef, value: &Value) -> Result<(), Wrong> {
        let schema = self.schema;
        let Type::Enum { name, variants, .. } = schema.get(at) else { return wrong("no enum") };
        let given = match value {
            Value::String(name) => Some((&name[..], &Value::Null)),
            Value::Object(object) if object.len() == 1 => {
                object.iter().next().map(|(name, value)| (&name[..], value))
            }
            _ => None,
        };
        let found = given.and_then(|(name, value)| {
            let found = (0u32..).zip(variants).find(|(_, variant)| variant.name == name);
            found.map(|(index, variant)| (index, variant, value))
        });
        let Some((index, variant, contents)) = found else {
            let names: Vec<&str> = variants.iter().map(|variant| &variant.name[..]).collect();
            return wrong(format!("{value} is no {name}, one of {}", names.join(", ")));
        };
        self.number(index.into());
        let written = match &variant.contents {
            Contents::Unit if contents.is_null() => Ok(()),
            Contents::Unit => wrong("it holds nothing"),
            Contents::Newtype(inner) => self.value(*inner, contents),
            Contents::Tuple(types) => self.tuple(types, contents).map_err(|wrong| match &wrong.what[..] {
                "" => Wrong { at: wrong.at, what: format!("it holds an array of {} values", types.len()) },
                _ => wrong,
            }),
            Contents::Struct(fields) => self.fields(&variant.name, fields, contents),
        };
        within(written, || format!(".{}", variant.name))
    }
}

/// A whole number; one that JSON's numbers do not hold is written as text.
pub(super) fn unsigned(value: &Value) -> Option<u128> {
    value.as_u64().map(u128::from).or_else(|| value.as_str()?.parse().ok())
}

pub(super) fn signed(value: &Value) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_str()?.parse().ok())
}

/// A number, or "NaN", "inf" and "-inf", which JSON does not have.
pub(super) fn real(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}
