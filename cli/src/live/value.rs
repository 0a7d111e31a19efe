//! Values of plain types between JSON and postcard, by the type's spelling in a method's signature.

use serde_json::{Value, json};

/// Most levels of a type: the signature is the server's, and reading it recurses.
const NESTED_MAX: u32 = 128;

/// A type that can be spoken without its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Bool,
    Unsigned {
        bytes: u32,
    },
    Signed {
        bytes: u32,
    },
    F32,
    F64,
    Text,
    List(Box<Self>),
    Option(Box<Self>),
    Tuple(Vec<Self>),
    /// The answer's type, and the error's if it is known.
    Result(Box<Self>, Option<Box<Self>>),
}

/// Splits at the commas that are in no bracket.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

/// `(A, B) -> C`: the arguments' types and the result's, as spelled.
pub(crate) fn signature(text: &str) -> Option<(Vec<&str>, &str)> {
    let open = text.find('(')?;
    let (arguments, result) = text[open + 1..].rsplit_once(") -> ")?;
    Some((split(arguments), result))
}

impl Type {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_within(text, NESTED_MAX)
    }

    /// Parses a type of at most so many levels.
    fn parse_within(text: &str, levels: u32) -> Result<Self, String> {
        let inner = |name: &str| text.strip_prefix(name)?.strip_prefix('<')?.strip_suffix('>');
        let parse = |inner: &str| match levels.checked_sub(1) {
            Some(levels) => Self::parse_within(inner, levels),
            None => Err(format!("a type of the method is nested deeper than {NESTED_MAX} levels")),
        };
        if let Some(inner) = inner("Vec") {
            return Ok(Self::List(Box::new(parse(inner)?)));
        }
        if let Some(inner) = inner("Option") {
            return Ok(Self::Option(Box::new(parse(inner)?)));
        }
        if let Some(inner) = inner("Result") {
            let parts = split(inner);
            let value = parse(parts.first().copied().unwrap_or_default())?;
            let error = parts.get(1).and_then(|error| parse(error).ok());
            return Ok(Self::Result(Box::new(value), error.map(Box::new)));
        }
        if let Some(inner) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
            return split(inner).into_iter().map(parse).collect::<Result<_, _>>().map(Self::Tuple);
        }
        Ok(match text {
            "bool" => Self::Bool,
            "u8" => Self::Unsigned { bytes: 1 },
            "u16" => Self::Unsigned { bytes: 2 },
            "u32" => Self::Unsigned { bytes: 4 },
            "u64" | "usize" => Self::Unsigned { bytes: 8 },
            "i8" => Self::Signed { bytes: 1 },
            "i16" => Self::Signed { bytes: 2 },
            "i32" => Self::Signed { bytes: 4 },
            "i64" | "isize" => Self::Signed { bytes: 8 },
            "f32" => Self::F32,
            "f64" => Self::F64,
            "String" => Self::Text,
            other => {
                return Err(format!(
                    "`{other}` is a program's own type: only numbers, bool, String, Vec, Option, tuples and Result of them \
                     can be given here"
                ));
            }
        })
    }

    /// Writes what was given on the command line.
    pub(crate) fn encode_argument(&self, given: &str, out: &mut Vec<u8>) -> Result<(), String> {
        let value = match serde_json::from_str(given) {
            Ok(value) if *self != Self::Text || matches!(value, Value::String(_)) => value,
            // Text needs no quotes.
            _ if *self == Self::Text => Value::String(given.to_owned()),
            Ok(value) => value,
            Err(error) => return Err(format!("'{given}': {error}")),
        };
        self.encode(&value, out)
    }

    fn encode(&self, value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        let wrong = || format!("{value} is no {self:?}");
        match self {
            Self::Bool => out.push(u8::from(value.as_bool().ok_or_else(wrong)?)),
            Self::Unsigned { bytes } => {
                let number = value.as_u64().filter(|number| fits(*number, *bytes)).ok_or_else(wrong)?;
                write_unsigned(number, *bytes, out);
            }
            Self::Signed { bytes } => {
                let number = value.as_i64().ok_or_else(wrong)?;
                let zigzag = ((number << 1) ^ (number >> 63)).cast_unsigned();
                if !fits(zigzag, *bytes) {
                    return Err(wrong());
                }
                match bytes {
                    1 => out.extend(i8::try_from(number).map_err(|_| wrong())?.to_le_bytes()),
                    _ => write_unsigned(zigzag, *bytes, out),
                }
            }
            #[expect(clippy::cast_possible_truncation, reason = "the nearest number there is")]
            Self::F32 => out.extend((value.as_f64().ok_or_else(wrong)? as f32).to_le_bytes()),
            Self::F64 => out.extend(value.as_f64().ok_or_else(wrong)?.to_le_bytes()),
            Self::Text => {
                let text = value.as_str().ok_or_else(wrong)?;
                write_unsigned(text.len() as u64, 8, out);
                out.extend_from_slice(text.as_bytes());
            }
            Self::List(inner) => {
                let items = value.as_array().ok_or_else(wrong)?;
                write_unsigned(items.len() as u64, 8, out);
                items.iter().try_for_each(|item| inner.encode(item, out))?;
            }
            Self::Option(inner) => {
                out.push(u8::from(!value.is_null()));
                if !value.is_null() {
                    inner.encode(value, out)?;
                }
            }
            Self::Tuple(types) => {
                let items = value.as_array().filter(|items| items.len() == types.len());
                let items = items.ok_or_else(wrong)?;
                types.iter().zip(items).try_for_each(|(ty, item)| ty.encode(item, out))?;
            }
            Self::Result(..) => return Err("a Result is no argument here".to_owned()),
        }
        Ok(())
    }

    /// Reads all of `bytes`.
    pub(crate) fn decode_all(&self, mut bytes: &[u8]) -> Option<Value> {
        let value = self.decode(&mut bytes)?;
        bytes.is_empty().then_some(value)
    }

    fn decode(&self, bytes: &mut &[u8]) -> Option<Value> {
        Some(match self {
            Self::Bool => json!(*take(bytes, 1)?.first()? == 1),
            Self::Unsigned { bytes: 1 } => json!(take(bytes, 1)?.first()?),
            Self::Unsigned { .. } => json!(read_unsigned(bytes)?),
            Self::Signed { bytes: 1 } => json!(take(bytes, 1)?.first()?.cast_signed()),
            Self::Signed { .. } => {
                let zigzag = read_unsigned(bytes)?;
                json!((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
            }
            Self::F32 => json!(f32::from_le_bytes(take(bytes, 4)?.try_into().ok()?)),
            Self::F64 => json!(f64::from_le_bytes(take(bytes, 8)?.try_into().ok()?)),
            Self::Text => {
                let len = usize::try_from(read_unsigned(bytes)?).ok()?;
                json!(std::str::from_utf8(take(bytes, len)?).ok()?)
            }
            Self::List(inner) => {
                let len = read_unsigned(bytes)?;
                // An item may have no bytes: the count is believed as far as there could be some.
                let items = (0..len.min(1 << 20)).map(|_| inner.decode(bytes)).collect::<Option<_>>()?;
                Value::Array(items)
            }
            Self::Option(inner) => match take(bytes, 1)?.first()? {
                0 => Value::Null,
                _ => inner.decode(bytes)?,
            },
            Self::Tuple(types) => {
                Value::Array(types.iter().map(|ty| ty.decode(bytes)).collect::<Option<_>>()?)
            }
            Self::Result(value, _) => value.decode(bytes)?,
        })
    }
}

fn fits(number: u64, bytes: u32) -> bool {
    bytes == 8 || number < 1 << (8 * bytes)
}

fn write_unsigned(mut number: u64, bytes: u32, out: &mut Vec<u8>) {
    if bytes == 1 {
        return out.extend(&number.to_le_bytes()[..1]);
    }
    while number >= 0x80 {
        out.push(0x80 | number.to_le_bytes()[0]);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn read_unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(bytes, 1)?.first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail")]

    use super::*;

    /// Against the codec itself.
    #[test]
    fn values_are_as_postcard_writes_them() {
        type Sample = (u8, u32, i16, i64, bool, f64, String, Vec<(String, u64)>, Option<u16>);
        let sample: Sample =
            (200, 70_000, -300, i64::MIN, true, 1.5, "ä".to_owned(), vec![("x".to_owned(), 9)], None);
        let spelled = "(u8, u32, i16, i64, bool, f64, String, Vec<(String, u64)>, Option<u16>)";
        let json = json!([200, 70_000, -300, i64::MIN, true, 1.5, "ä", [["x", 9]], null]);
        let ty = Type::parse(spelled).unwrap();
        let mut bytes = Vec::new();
        ty.encode(&json, &mut bytes).unwrap();
        assert_eq!(bytes, postcard::to_stdvec(&sample).unwrap());
        assert_eq!(ty.decode_all(&bytes).unwrap(), json);
        for len in 0..bytes.len() {
            assert_eq!(ty.decode_all(&bytes[..len]), None, "{len} bytes of it");
        }
    }

    #[test]
    fn a_servers_type_that_nests_too_deep_is_refused() {
        let nest = |levels: usize| format!("{}u8{}", "Vec<".repeat(levels), ">".repeat(levels));
        assert!(Type::parse(&nest(128)).is_ok());
        for levels in [129, 20_000, 1_000_000] {
            assert!(Type::parse(&nest(levels)).unwrap_err().contains("nested deeper than 128"), "{levels}");
        }
    }

    #[test]
    fn signatures_come_apart_and_own_types_are_named() {
        let (arguments, result) = signature("one-way (String, Vec<(u8, u8)>) -> Result<u32, Error>").unwrap();
        assert_eq!((&arguments[..], result), (&["String", "Vec<(u8, u8)>"][..], "Result<u32, Error>"));
        assert!(matches!(Type::parse(result), Ok(Type::Result(_, None))));
        assert!(Type::parse("Error").unwrap_err().contains("`Error` is a program's own type"));
        assert_eq!(signature("() -> ()").unwrap(), (vec![], "()"));
        let mut out = Vec::new();
        Type::Text.encode_argument("no quotes", &mut out).unwrap();
        assert_eq!(out, b"\x09no quotes");
        assert!(Type::Unsigned { bytes: 1 }.encode_argument("256", &mut out).is_err());
    }
}
