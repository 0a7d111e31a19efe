//! Writing values.

use std::fmt;

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::Nested;

impl<T: Serialize + ?Sized> Serialize for Nested<&T> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.inner.serialize(self.with(serializer))
    }
}

impl<S: Serializer> Nested<S> {
    /// What `open` makes of the serializer, at this level.
    #[inline]
    fn open<C>(self, open: impl FnOnce(S) -> Result<C, S::Error>) -> Result<Nested<C>, S::Error> {
        let (inner, nested) = self.swap(());
        Ok(nested.with(open(inner)?))
    }
}

/// What holds no other values.
macro_rules! plain {
    ($($name:ident($($arg:ident: $type:ty),*))*) => {$(
        #[inline]
        fn $name(self $(, $arg: $type)*) -> Result<S::Ok, S::Error> {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl<S: Serializer> Serializer for Nested<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Nested<S::SerializeSeq>;
    type SerializeTuple = Nested<S::SerializeTuple>;
    type SerializeTupleStruct = Nested<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Nested<S::SerializeTupleVariant>;
    type SerializeMap = Nested<S::SerializeMap>;
    type SerializeStruct = Nested<S::SerializeStruct>;
    type SerializeStructVariant = Nested<S::SerializeStructVariant>;

    plain! {
        serialize_bool(value: bool) serialize_i8(value: i8) serialize_i16(value: i16) serialize_i32(value: i32)
        serialize_i64(value: i64) serialize_i128(value: i128) serialize_u8(value: u8) serialize_u16(value: u16)
        serialize_u32(value: u32) serialize_u64(value: u64) serialize_u128(value: u128) serialize_f32(value: f32)
        serialize_f64(value: f64) serialize_char(value: char) serialize_str(value: &str)
        serialize_bytes(value: &[u8]) serialize_none() serialize_unit() serialize_unit_struct(name: &'static str)
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let (inner, value) = self.deeper(S::Error::custom)?.swap(value);
        inner.serialize_some(&value)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let (inner, value) = self.swap(value);
        inner.serialize_newtype_struct(name, &value)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let (inner, value) = self.deeper(S::Error::custom)?.swap(value);
        inner.serialize_newtype_variant(name, index, variant, &value)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.deeper(S::Error::custom)?.open(|inner| inner.serialize_seq(len))
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.open(|inner| inner.serialize_tuple(len))
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.open(|inner| inner.serialize_tuple_struct(name, len))
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        let deeper = self.deeper(S::Error::custom)?;
        deeper.open(|inner| inner.serialize_tuple_variant(name, index, variant, len))
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.deeper(S::Error::custom)?.open(|inner| inner.serialize_map(len))
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.open(|inner| inner.serialize_struct(name, len))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        let deeper = self.deeper(S::Error::custom)?;
        deeper.open(|inner| inner.serialize_struct_variant(name, index, variant, len))
    }

    #[inline]
    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// A value that holds others: each goes through `Nested` with the levels that are left here.
macro_rules! compound {
    ($($kind:ident: $each:ident($($key:ident: $type:ty)?))*) => {$(
        impl<C: $kind> $kind for Nested<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            #[inline]
            fn $each<T: Serialize + ?Sized>(&mut self, $($key: $type,)? value: &T) -> Result<(), C::Error> {
                let value = self.with(value);
                self.inner.$each($($key,)? &value)
            }

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        }
    )*};
}

compound! {
    SerializeSeq: serialize_element()
    SerializeTuple: serialize_element()
    SerializeTupleStruct: serialize_field()
    SerializeTupleVariant: serialize_field()
    SerializeStruct: serialize_field(key: &'static str)
    SerializeStructVariant: serialize_field(key: &'static str)
}

impl<M: SerializeMap> SerializeMap for Nested<M> {
    type Ok = M::Ok;
    type Error = M::Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), M::Error> {
        let key = self.with(key);
        self.inner.serialize_key(&key)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), M::Error> {
        let value = self.with(value);
        self.inner.serialize_value(&value)
    }

    #[inline]
    fn end(self) -> Result<M::Ok, M::Error> {
        self.inner.end()
    }
}
