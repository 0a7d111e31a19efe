//! The codec of values that lie in memory as they travel.

use std::{fmt, ops::Deref};

use zerocopy::{
    Immutable, IntoBytes, KnownLayout, TryFromBytes,
    byteorder::{self, ByteOrder},
};

use crate::{
    codec::{Codec, Decode, DecodeError, Encode, EncodeError, Raw},
    shape::{Describe, Shape, Shapes, TypeRef},
};

/// Values as they lie in memory, by the traits of [zerocopy](https://docs.rs/zerocopy) (feature `zerocopy`): writing one is
/// a copy, reading one is a check of its length and of its bits, and [`InPlace`] reads it where it landed.
///
/// A method with this `#[codec]` has one argument. Both sides must lay its types out alike: `#[repr(C)]`, and for peers of another
/// byte order zerocopy's own numbers, such as `zerocopy::little_endian::U64`. A layout that differs in length is
/// refused by name; one that differs in nothing but meaning is not seen, since a signature has the names of types only.
///
/// ```
/// use gimmal_rpc::{Cx, InPlace, Zerocopy};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, gimmal_rpc::Shape)]
/// #[shape(crate = gimmal_rpc)]
/// #[repr(C)]
/// struct Quote { price: u64, volume: u64 }
///
/// #[gimmal_rpc::service(crate = gimmal_rpc)]
/// trait Quotes {
///     #[codec(Zerocopy)]
///     #[inline]
///     fn doubled(&self, cx: &Cx, quote: InPlace<'_, Quote>) -> Quote;
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Zerocopy;

impl Codec for Zerocopy {
    const NAME: &'static str = "zerocopy";
}

impl<T: Shape + ?Sized> Describe<T> for Zerocopy {
    fn describe(shapes: &mut Shapes) -> TypeRef {
        T::shape(shapes)
    }
}

impl<T: Shape> Shape for InPlace<'_, T> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        T::shape(shapes)
    }
}

/// zerocopy's numbers of a fixed byte order, which the name of the order tells apart.
macro_rules! ordered {
    ($($name:ident)*) => {$(
        impl<O: ByteOrder + 'static> Shape for byteorder::$name<O> {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                let order = std::any::type_name::<O>().rsplit("::").next().unwrap_or_default();
                shapes.opaque(&format!("zerocopy::{}<{order}>@1", stringify!($name)))
            }
        }
    )*};
}

ordered! { U16 U32 U64 U128 I16 I32 I64 I128 F32 F64 }

impl<T: IntoBytes + Immutable + ?Sized> Encode<T> for Zerocopy {
    #[inline]
    fn encode(value: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
        Raw::encode(value.as_bytes(), out)
    }

    fn encoded_bytes(value: &T) -> Option<usize> {
        Some(size_of_val(value))
    }
}

impl<'a, T: TryFromBytes> Decode<'a, T> for Zerocopy {
    #[inline]
    fn decode(bytes: &'a [u8]) -> Result<T, DecodeError> {
        T::try_read_from_bytes(bytes).map_err(|_| not_flat::<T>(bytes.len()))
    }
}

#[cold]
fn not_flat<T>(bytes: usize) -> DecodeError {
    let wanted = size_of::<T>();
    DecodeError::new(if bytes == wanted {
        "bits that no such value has".to_owned()
    } else {
        format!("{bytes} bytes, and such a value has {wanted}")
    })
}

/// An argument that [`Zerocopy`] reads where it landed: it derefs to the value. What did not land on a multiple of the value's
/// alignment is copied; where bytes are read in a ring, that is a multiple of 16, in a message of several calls of 8. Callers make
/// one of a reference.
pub struct InPlace<'a, T>(Place<'a, T>);

/// Two words: who reads in place does not move a value about.
enum Place<'a, T> {
    Landed(&'a T),
    Copied(Box<T>),
}

impl<T> InPlace<'_, T> {
    /// Returns whether it had to be copied, because it did not land on a multiple of its alignment.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        matches!(self.0, Place::Copied(_))
    }
}

impl<T> Deref for InPlace<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0 {
            Place::Landed(value) => value,
            Place::Copied(value) => value,
        }
    }
}

impl<'a, T> From<&'a T> for InPlace<'a, T> {
    #[inline]
    fn from(value: &'a T) -> Self {
        Self(Place::Landed(value))
    }
}

impl<T: fmt::Debug> fmt::Debug for InPlace<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: IntoBytes + Immutable> Encode<InPlace<'_, T>> for Zerocopy {
    #[inline]
    fn encode(value: &InPlace<'_, T>, out: &mut [u8]) -> Result<usize, EncodeError> {
        Self::encode(&**value, out)
    }

    fn encoded_bytes(value: &InPlace<'_, T>) -> Option<usize> {
        Self::encoded_bytes(&**value)
    }
}

impl<'a, T: TryFromBytes + KnownLayout + Immutable> Decode<'a, InPlace<'a, T>> for Zerocopy {
    #[inline]
    fn decode(bytes: &'a [u8]) -> Result<InPlace<'a, T>, DecodeError> {
        match T::try_ref_from_bytes(bytes) {
            Ok(value) => Ok(InPlace(Place::Landed(value))),
            Err(_) => copied(bytes),
        }
    }
}

#[cold]
fn copied<'a, T: TryFromBytes>(bytes: &[u8]) -> Result<InPlace<'a, T>, DecodeError> {
    let value = T::try_read_from_bytes(bytes).map_err(|_| not_flat::<T>(bytes.len()))?;
    Ok(InPlace(Place::Copied(Box::new(value))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct Quote {
        price: u64,
        volume: u32,
        venue: [u8; 4],
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(u8)]
    enum Side {
        Buy = 1,
        Sell = 2,
    }

    const QUOTE: Quote = Quote { price: 7, volume: 3, venue: *b"abcd" };

    fn refusal<T>(decoded: Result<T, DecodeError>) -> Option<String> {
        decoded.err().map(|error| error.to_string())
    }

    #[test]
    fn a_value_is_its_bytes() {
        let mut out = [0; 20];
        assert_eq!(Zerocopy::encode(&QUOTE, &mut out), Ok(16));
        assert_eq!(Zerocopy::encoded_bytes(&QUOTE), Some(16));
        assert_eq!(Zerocopy::encode(&QUOTE, &mut out[..15]), Err(EncodeError::Full));
        assert_eq!(Zerocopy::decode(&out[..16]), Ok(QUOTE));
        let long: Result<Quote, _> = Zerocopy::decode(&out);
        let why = "the bytes cannot be decoded: 20 bytes, and such a value has 16";
        assert_eq!(refusal(long).as_deref(), Some(why));
        assert_eq!(Zerocopy::encode(&(), &mut []), Ok(0));
        assert_eq!(Zerocopy::decode(&[]), Ok(()));
    }

    #[test]
    fn bits_that_are_no_value_are_refused() {
        assert_eq!(Zerocopy::decode(&[2]), Ok(Side::Sell));
        assert_eq!(Zerocopy::encode(&Side::Buy, &mut [0; 1]), Ok(1));
        let none: Result<Side, _> = Zerocopy::decode(&[3]);
        assert_eq!(
            refusal(none).as_deref(),
            Some("the bytes cannot be decoded: bits that no such value has")
        );
        let none: Result<InPlace<'_, Side>, _> = Zerocopy::decode(&[3]);
        assert!(none.is_err());
    }

    #[test]
    fn an_aligned_value_is_read_where_it_is_and_any_other_is_copied() {
        let words = [QUOTE, QUOTE];
        let bytes = words.as_bytes();
        let landed: InPlace<'_, Quote> = Zerocopy::decode(&bytes[16..]).unwrap();
        assert!(std::ptr::eq(&raw const *landed, &raw const words[1]) && !landed.is_copied());
        let mut shifted = [0u64; 3];
        shifted.as_mut_bytes()[4..20].copy_from_slice(QUOTE.as_bytes());
        let copied: InPlace<'_, Quote> = Zerocopy::decode(&shifted.as_bytes()[4..20]).unwrap();
        assert!(copied.is_copied());
        assert_eq!((*copied, *landed), (QUOTE, QUOTE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
            let quote: Result<Quote, _> = Zerocopy::decode(&bytes);
            prop_assert_eq!(quote.is_ok(), bytes.len() == 16);
            let side: Result<InPlace<'_, Side>, _> = Zerocopy::decode(&bytes);
            prop_assert_eq!(side.is_ok(), bytes == [1] || bytes == [2]);
        }
    }
}
