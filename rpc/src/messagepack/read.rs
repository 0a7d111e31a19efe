//! Reading values.

use rmp::Marker;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor, value::BorrowedStrDeserializer,
};

use super::write::{ABOVE_64_BITS, BELOW_64_BITS};
use crate::codec::DecodeError;

/// A value, or the head of one that holds others.
#[derive(Clone, Copy)]
enum Token<'de> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Above(u128),
    Below(i128),
    F32(f32),
    F64(f64),
    Text(&'de str),
    Bytes(&'de [u8]),
    Array(usize),
    Map(usize),
}

impl<'de> Token<'de> {
    fn unexpected(self) -> Unexpected<'de> {
        match self {
            Self::Nil => Unexpected::Unit,
            Self::Bool(flag) => Unexpected::Bool(flag),
            Self::Unsigned(number) => Unexpected::Unsigned(number),
            Self::Signed(number) => Unexpected::Signed(number),
            Self::Above(_) | Self::Below(_) => Unexpected::Other("integer of 128 bits"),
            Self::F32(number) => Unexpected::Float(number.into()),
            Self::F64(number) => Unexpected::Float(number),
            Self::Text(text) => Unexpected::Str(text),
            Self::Bytes(bytes) => Unexpected::Bytes(bytes),
            Self::Array(_) => Unexpected::Seq,
            Self::Map(_) => Unexpected::Map,
        }
    }

    /// The refusal of it where something else was expected.
    #[cold]
    fn is_not<T>(self, expected: &dyn Expected) -> Result<T, DecodeError> {
        Err(DecodeError::invalid_type(self.unexpected(), expected))
    }
}

/// Reads the values that bytes hold.
pub(super) struct Reader<'de> {
    bytes: &'de [u8],
    /// Read before the bytes.
    given: Option<Token<'de>>,
}

#[cold]
const fn too_few() -> DecodeError {
    DecodeError::of("the bytes end within a value")
}

impl<'de> Reader<'de> {
    pub(super) const fn new(bytes: &'de [u8]) -> Self {
        Self { bytes, given: None }
    }

    /// How many bytes are left.
    pub(super) const fn rest(&self) -> usize {
        self.bytes.len()
    }

    fn take(&mut self, len: usize) -> Result<&'de [u8], DecodeError> {
        let (front, rest) = self.bytes.split_at_checked(len).ok_or_else(too_few)?;
        self.bytes = rest;
        Ok(front)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (front, rest) = self.bytes.split_first_chunk().ok_or_else(too_few)?;
        self.bytes = rest;
        Ok(*front)
    }

    fn number<const N: usize>(&mut self) -> Result<u64, DecodeError> {
        let mut bytes = [0; 8];
        bytes[8 - N..].copy_from_slice(&self.chunk::<N>()?);
        Ok(u64::from_be_bytes(bytes))
    }

    fn text(&mut self, len: u64) -> Result<Token<'de>, DecodeError> {
        let text = std::str::from_utf8(self.lengthy(len)?);
        text.map(Token::Text).map_err(|_| DecodeError::of("a text that is not UTF-8"))
    }

    fn lengthy(&mut self, len: u64) -> Result<&'de [u8], DecodeError> {
        self.take(usize::try_from(len).map_err(|_| too_few())?)
    }

    /// A claim of so many values is true only if there is a byte for each.
    fn claimed(&self, len: u64, each: usize) -> Result<usize, DecodeError> {
        let len = usize::try_from(len).map_err(|_| too_few())?;
        if len.saturating_mul(each) <= self.bytes.len() { Ok(len) } else { Err(too_few()) }
    }

    fn array(&self, len: u64) -> Result<Token<'de>, DecodeError> {
        self.claimed(len, 1).map(Token::Array)
    }

    fn map(&self, len: u64) -> Result<Token<'de>, DecodeError> {
        self.claimed(len, 2).map(Token::Map)
    }

    fn token(&mut self) -> Result<Token<'de>, DecodeError> {
        if let Some(token) = self.given.take() {
            return Ok(token);
        }
        let [marker] = self.chunk()?;
        Ok(match Marker::from_u8(marker) {
            Marker::Null => Token::Nil,
            Marker::True => Token::Bool(true),
            Marker::False => Token::Bool(false),
            Marker::FixPos(number) => Token::Unsigned(number.into()),
            Marker::FixNeg(number) => Token::Signed(number.into()),
            Marker::U8 => Token::Unsigned(self.number::<1>()?),
            Marker::U16 => Token::Unsigned(self.number::<2>()?),
            Marker::U32 => Token::Unsigned(self.number::<4>()?),
            Marker::U64 => Token::Unsigned(self.number::<8>()?),
            Marker::I8 => Token::Signed(i8::from_be_bytes(self.chunk()?).into()),
            Marker::I16 => Token::Signed(i16::from_be_bytes(self.chunk()?).into()),
            Marker::I32 => Token::Signed(i32::from_be_bytes(self.chunk()?).into()),
            Marker::I64 => Token::Signed(i64::from_be_bytes(self.chunk()?)),
            Marker::F32 => Token::F32(f32::from_be_bytes(self.chunk()?)),
            Marker::F64 => Token::F64(f64::from_be_bytes(self.chunk()?)),
            Marker::FixStr(len) => self.text(len.into())?,
            Marker::Str8 => self.number::<1>().and_then(|len| self.text(len))?,
            Marker::Str16 => self.number::<2>().and_then(|len| self.text(len))?,
            Marker::Str32 => self.number::<4>().and_then(|len| self.text(len))?,
            Marker::Bin8 => self.number::<1>().and_then(|len| self.lengthy(len)).map(Token::Bytes)?,
            Marker::Bin16 => self.number::<2>().and_then(|len| self.lengthy(len)).map(Token::Bytes)?,
            Marker::Bin32 => self.number::<4>().and_then(|len| self.lengthy(len)).map(Token::Bytes)?,
            Marker::FixArray(len) => self.array(len.into())?,
            Marker::Array16 => self.number::<2>().and_then(|len| self.array(len))?,
            Marker::Array32 => self.number::<4>().and_then(|len| self.array(len))?,
            Marker::FixMap(len) => self.map(len.into())?,
            Marker::Map16 => self.number::<2>().and_then(|len| self.map(len))?,
            Marker::Map32 => self.number::<4>().and_then(|len| self.map(len))?,
            Marker::FixExt16 => match self.chunk()? {
                [ABOVE_64_BITS] => Token::Above(u128::from_be_bytes(self.chunk()?)),
                [BELOW_64_BITS] => Token::Below(i128::from_be_bytes(self.chunk()?)),
                [kind] => return Err(DecodeError::new(format!("an extension of type {kind}"))),
            },
            marker => return Err(DecodeError::new(format!("a value of the kind {marker:?}"))),
        })
    }

    /// Skips a value. No recursion, so it may nest as deep as it likes.
    fn skip(&mut self) -> Result<(), DecodeError> {
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            match self.token()? {
                Token::Array(len) => left = left.saturating_add(len),
                Token::Map(len) => left = left.saturating_add(2 * len),
                _ => {}
            }
        }
        Ok(())
    }

    fn whole<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Unsigned(number) => visitor.visit_u64(number),
            Token::Signed(number) => visitor.visit_i64(number),
            Token::Above(number) => visitor.visit_u128(number),
            Token::Below(number) => visitor.visit_i128(number),
            token => token.is_not(&visitor),
        }
    }

    fn string<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Text(text) => visitor.visit_borrowed_str(text),
            token => token.is_not(&visitor),
        }
    }

    fn list<V: Visitor<'de>>(&mut self, visitor: V, token: Token<'de>) -> Result<V::Value, DecodeError> {
        let (value, left) = match token {
            Token::Array(left) => {
                let mut items = Items { reader: self, left };
                (visitor.visit_seq(&mut items)?, items.left)
            }
            Token::Bytes(bytes) => {
                let mut octets = Octets(bytes);
                (visitor.visit_seq(&mut octets)?, octets.0.len())
            }
            token => return token.is_not(&visitor),
        };
        all(value, left)
    }

    fn entries<V: Visitor<'de>>(&mut self, visitor: V, token: Token<'de>) -> Result<V::Value, DecodeError> {
        let Token::Map(left) = token else { return token.is_not(&visitor) };
        let mut entries = Entries { key: self.bytes, reader: self, left };
        let value = visitor.visit_map(&mut entries)?;
        all(value, entries.left)
    }
}

/// A value whose reader took all that it holds.
fn all<T>(value: T, left: usize) -> Result<T, DecodeError> {
    match left {
        0 => Ok(value),
        left => Err(DecodeError::new(format!("{left} items too many"))),
    }
}

macro_rules! alike {
    ($($as:ident: $($name:ident)*;)*) => {$($(
        #[inline]
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.$as(visitor)
        }
    )*)*};
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = DecodeError;

    alike! {
        whole: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128;
        string: deserialize_char deserialize_str deserialize_string deserialize_identifier;
        deserialize_bytes: deserialize_byte_buf;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Nil => visitor.visit_unit(),
            Token::Bool(flag) => visitor.visit_bool(flag),
            Token::Unsigned(number) => visitor.visit_u64(number),
            Token::Signed(number) => visitor.visit_i64(number),
            Token::Above(number) => visitor.visit_u128(number),
            Token::Below(number) => visitor.visit_i128(number),
            Token::F32(number) => visitor.visit_f32(number),
            Token::F64(number) => visitor.visit_f64(number),
            Token::Text(text) => visitor.visit_borrowed_str(text),
            Token::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            token @ Token::Array(_) => self.list(visitor, token),
            token @ Token::Map(_) => self.entries(visitor, token),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Bool(flag) => visitor.visit_bool(flag),
            token => token.is_not(&visitor),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::F32(number) => visitor.visit_f32(number),
            Token::F64(number) => {
                #[expect(clippy::cast_possible_truncation, reason = "compared with what it was")]
                let short = number as f32;
                if f64::from(short) != number && !number.is_nan() {
                    return Err(DecodeError::invalid_value(
                        Unexpected::Float(number),
                        &"a number of 32 bits",
                    ));
                }
                visitor.visit_f32(short)
            }
            token => token.is_not(&visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::F32(number) => visitor.visit_f64(number.into()),
            Token::F64(number) => visitor.visit_f64(number),
            token => token.is_not(&visitor),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            token => self.list(visitor, token),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Nil => visitor.visit_none(),
            token => {
                self.given = Some(token);
                visitor.visit_some(self)
            }
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Nil => visitor.visit_unit(),
            token => token.is_not(&visitor),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let token = self.token()?;
        self.list(visitor, token)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let token = self.token()?;
        self.entries(visitor, token)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.token()? {
            Token::Text(name) => visitor.visit_enum(BorrowedStrDeserializer::new(name)),
            Token::Map(1) => match self.token()? {
                Token::Text(name) => visitor.visit_enum(Contents { reader: self, name }),
                token => token.is_not(&"the name of a variant"),
            },
            token => token.is_not(&visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The items of a list.
struct Items<'r, 'de> {
    reader: &'r mut Reader<'de>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Bytes in one piece as the numbers of a list.
struct Octets<'de>(&'de [u8]);

impl<'de> SeqAccess<'de> for Octets<'de> {
    type Error = DecodeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        let Some((first, rest)) = self.0.split_first() else { return Ok(None) };
        self.0 = rest;
        let given = Some(Token::Unsigned((*first).into()));
        seed.deserialize(&mut Reader { bytes: &[], given }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The entries of a map.
struct Entries<'r, 'de> {
    reader: &'r mut Reader<'de>,
    left: usize,
    /// Where the key begins that was read last.
    key: &'de [u8],
}

impl<'de> Entries<'_, 'de> {
    /// An error, with the name of its field.
    #[cold]
    fn named(key: &'de [u8], error: DecodeError) -> DecodeError {
        match Reader::new(key).token() {
            Ok(Token::Text(name)) => error.within(name),
            _ => error,
        }
    }
}

impl<'de> MapAccess<'de> for Entries<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.key = self.reader.bytes;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, DecodeError> {
        let key = self.key;
        seed.deserialize(&mut *self.reader).map_err(|error| Self::named(key, error))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// What a variant holds.
struct Contents<'r, 'de> {
    reader: &'r mut Reader<'de>,
    name: &'de str,
}

impl<'de> EnumAccess<'de> for Contents<'_, 'de> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), DecodeError> {
        let variant = seed.deserialize(BorrowedStrDeserializer::<DecodeError>::new(self.name))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Contents<'_, 'de> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        let unexpected = Unexpected::Other("a variant with contents");
        Err(DecodeError::invalid_type(unexpected, &"a unit variant").within(self.name))
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, DecodeError> {
        seed.deserialize(self.reader).map_err(|error| error.within(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.reader.deserialize_tuple(len, visitor).map_err(|error| error.within(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.reader.deserialize_map(visitor).map_err(|error| error.within(self.name))
    }
}
