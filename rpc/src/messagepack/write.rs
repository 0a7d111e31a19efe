//! Writing values.

use std::io::{self, Write as _};

use gimmal_engine::transport::copy;
use rmp::{Marker, encode};
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use crate::codec::EncodeError;

/// The type of an extension that holds a number above 64 bits.
pub(super) const ABOVE_64_BITS: u8 = 1;
/// The type of one that holds a negative number below 64 bits.
pub(super) const BELOW_64_BITS: u8 = 2;

/// Where a value is written, or counted.
pub(super) struct Writer<'a> {
    /// `None` where bytes are only counted.
    out: Option<&'a mut [u8]>,
    len: usize,
    /// Where the last nil begins.
    nil_at: Option<usize>,
}

impl io::Write for Writer<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.len + bytes.len();
        if let Some(out) = &mut self.out {
            copy(bytes, out.get_mut(self.len..end).ok_or(io::ErrorKind::WriteZero)?);
        }
        self.len = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Nothing but room can be missing.
fn roomy<T, E>(written: Result<T, E>) -> Result<(), EncodeError> {
    match written {
        Ok(_) => Ok(()),
        Err(_) => Err(EncodeError::Full),
    }
}

fn length(len: usize) -> Result<u32, EncodeError> {
    u32::try_from(len).map_err(|_| EncodeError::Value(format!("a length of {len}, above 32 bits")))
}

impl<'a> Writer<'a> {
    pub(super) const fn new(out: Option<&'a mut [u8]>) -> Self {
        Self { out, len: 0, nil_at: None }
    }

    /// How many bytes were written.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        roomy(self.write_all(bytes))
    }

    fn nil(&mut self) -> Result<(), EncodeError> {
        self.nil_at = Some(self.len);
        roomy(encode::write_nil(self))
    }

    fn text(&mut self, text: &str) -> Result<(), EncodeError> {
        let len = length(text.len())?;
        roomy(encode::write_str_len(self, len))?;
        self.put(text.as_bytes())
    }

    fn array(&mut self, len: usize) -> Result<(), EncodeError> {
        let len = length(len)?;
        roomy(encode::write_array_len(self, len))
    }

    fn map(&mut self, len: usize) -> Result<(), EncodeError> {
        let len = length(len)?;
        roomy(encode::write_map_len(self, len))
    }

    /// A number that needs more than 64 bits.
    fn wide(&mut self, kind: u8, bytes: [u8; 16]) -> Result<(), EncodeError> {
        self.put(&[Marker::FixExt16.to_u8(), kind])?;
        self.put(&bytes)
    }

    /// A variant with contents.
    fn variant(&mut self, name: &str) -> Result<(), EncodeError> {
        self.map(1)?;
        self.text(name)
    }

    const fn items(&mut self) -> Items<'_, 'a> {
        Items { writer: self, unknown: None }
    }

    /// A list or a map whose length is known at its end.
    fn counted(&mut self, marker: Marker) -> Result<Items<'_, 'a>, EncodeError> {
        self.put(&[marker.to_u8()])?;
        let at = self.len;
        self.put(&[0; 4])?;
        Ok(Items { writer: self, unknown: Some((at, 0)) })
    }
}

macro_rules! through {
    ($($name:ident($type:ty) => $wide:ident)*) => {$(
        #[inline]
        fn $name(self, number: $type) -> Result<(), EncodeError> {
            self.$wide(number.into())
        }
    )*};
}

impl<'w, 'a> Serializer for &'w mut Writer<'a> {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = Items<'w, 'a>;
    type SerializeTuple = Items<'w, 'a>;
    type SerializeTupleStruct = Items<'w, 'a>;
    type SerializeTupleVariant = Items<'w, 'a>;
    type SerializeMap = Items<'w, 'a>;
    type SerializeStruct = Items<'w, 'a>;
    type SerializeStructVariant = Items<'w, 'a>;

    through! {
        serialize_i8(i8) => serialize_i64 serialize_i16(i16) => serialize_i64 serialize_i32(i32) => serialize_i64
        serialize_u8(u8) => serialize_u64 serialize_u16(u16) => serialize_u64 serialize_u32(u32) => serialize_u64
    }

    fn serialize_i64(self, number: i64) -> Result<(), EncodeError> {
        roomy(encode::write_sint(self, number))
    }

    fn serialize_u64(self, number: u64) -> Result<(), EncodeError> {
        roomy(encode::write_uint(self, number))
    }

    fn serialize_i128(self, number: i128) -> Result<(), EncodeError> {
        match (i64::try_from(number), u128::try_from(number)) {
            (Ok(number), _) => self.serialize_i64(number),
            (_, Ok(number)) => self.serialize_u128(number),
            _ => self.wide(BELOW_64_BITS, number.to_be_bytes()),
        }
    }

    fn serialize_u128(self, number: u128) -> Result<(), EncodeError> {
        match u64::try_from(number) {
            Ok(number) => self.serialize_u64(number),
            Err(_) => self.wide(ABOVE_64_BITS, number.to_be_bytes()),
        }
    }

    fn serialize_bool(self, flag: bool) -> Result<(), EncodeError> {
        roomy(encode::write_bool(self, flag))
    }

    fn serialize_f32(self, number: f32) -> Result<(), EncodeError> {
        roomy(encode::write_f32(self, number))
    }

    fn serialize_f64(self, number: f64) -> Result<(), EncodeError> {
        roomy(encode::write_f64(self, number))
    }

    fn serialize_char(self, letter: char) -> Result<(), EncodeError> {
        self.text(letter.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<(), EncodeError> {
        self.text(text)
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), EncodeError> {
        let len = length(bytes.len())?;
        roomy(encode::write_bin_len(self, len))?;
        self.put(bytes)
    }

    fn serialize_none(self) -> Result<(), EncodeError> {
        self.nil()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        let at = self.len;
        value.serialize(&mut *self)?;
        if self.nil_at == Some(at) {
            let why = "`Some` of what is nil on the wire, as `None` is; put it in a struct";
            return Err(EncodeError::Value(why.to_owned()));
        }
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), EncodeError> {
        self.nil()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), EncodeError> {
        self.nil()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<(), EncodeError> {
        self.text(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.variant(name)?;
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Items<'w, 'a>, EncodeError> {
        let Some(len) = len else { return self.counted(Marker::Array32) };
        self.array(len)?;
        Ok(self.items())
    }

    fn serialize_tuple(self, len: usize) -> Result<Items<'w, 'a>, EncodeError> {
        self.array(len)?;
        Ok(self.items())
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Items<'w, 'a>, EncodeError> {
        self.serialize_tuple(len)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Items<'w, 'a>, EncodeError> {
        self.variant(name)?;
        self.serialize_tuple(len)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Items<'w, 'a>, EncodeError> {
        let Some(len) = len else { return self.counted(Marker::Map32) };
        self.map(len)?;
        Ok(self.items())
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Items<'w, 'a>, EncodeError> {
        self.map(len)?;
        Ok(self.items())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Items<'w, 'a>, EncodeError> {
        self.variant(name)?;
        self.serialize_struct(name, len)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// What a value holds, one after the other.
pub(super) struct Items<'w, 'a> {
    writer: &'w mut Writer<'a>,
    /// Where the length stands that is not known yet, and the items so far.
    unknown: Option<(usize, u32)>,
}

impl Items<'_, '_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        if let Some((_, count)) = &mut self.unknown {
            *count = count.saturating_add(1);
        }
        value.serialize(&mut *self.writer)
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), EncodeError> {
        self.writer.text(name)?;
        value.serialize(&mut *self.writer)
    }

    fn done(self) -> Result<(), EncodeError> {
        if let (Some((at, count)), Some(out)) = (self.unknown, &mut self.writer.out)
            && let Some(place) = out.get_mut(at..at + 4)
        {
            place.copy_from_slice(&count.to_be_bytes());
        }
        Ok(())
    }
}

macro_rules! unnamed {
    ($($kind:ident: $each:ident)*) => {$(
        impl $kind for Items<'_, '_> {
            type Ok = ();
            type Error = EncodeError;

            #[inline]
            fn $each<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
                self.item(value)
            }

            fn end(self) -> Result<(), EncodeError> {
                self.done()
            }
        }
    )*};
}

unnamed! {
    SerializeSeq: serialize_element
    SerializeTuple: serialize_element
    SerializeTupleStruct: serialize_field
    SerializeTupleVariant: serialize_field
}

macro_rules! named {
    ($($kind:ident)*) => {$(
        impl $kind for Items<'_, '_> {
            type Ok = ();
            type Error = EncodeError;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), EncodeError> {
                self.field(name, value)
            }

            fn end(self) -> Result<(), EncodeError> {
                self.done()
            }
        }
    )*};
}

named! { SerializeStruct SerializeStructVariant }

impl SerializeMap for Items<'_, '_> {
    type Ok = ();
    type Error = EncodeError;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        self.item(key)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.done()
    }
}
