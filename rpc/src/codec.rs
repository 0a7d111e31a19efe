//! How values become bytes. A codec is a marker type; what it can carry is said by its `Encode` and `Decode`.

use std::{borrow::Cow, fmt, marker::PhantomData};

use gimmal_engine::transport::copy;
use serde::{Deserialize, Serialize, de::DeserializeSeed as _};
use thiserror::Error;

use crate::{
    nested::{self, Nested},
    shape::{Describe, Form, Shape, Shapes, TypeRef},
};

/// A way to write values, which `#[codec(Type)]` chooses for a method. [`Encode`] and [`Decode`] say for which types it does.
pub trait Codec: 'static {
    /// Part of every signature: two sides with different codecs do not match.
    const NAME: &'static str;

    /// What it writes of structs and enums.
    const FORM: Form = Form::Positional;
}

/// A codec that can write a `T`.
pub trait Encode<T: ?Sized>: Codec {
    /// Writes `value` to the front of `out` and returns how many bytes that took.
    ///
    /// # Errors
    /// [`EncodeError::Full`] when `out` is too short: the value is written again to a longer one. [`EncodeError::Value`] when this
    /// codec cannot write it. What was written then is garbage.
    fn encode(value: &T, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// Returns how many bytes `value` takes, where that can be said without writing it: a large value is then written once. `None`,
    /// the default, is always right.
    fn encoded_bytes(value: &T) -> Option<usize> {
        let _ = value;
        None
    }
}

/// A codec that can read a `T`. `'a` is the life of the bytes, for values that borrow from them.
pub trait Decode<'a, T>: Codec {
    /// Reads a value from exactly `bytes`, which a peer wrote: it must not panic, and allocates at most in proportion to them.
    ///
    /// # Errors
    /// [`DecodeError`] for bytes that are no such value.
    fn decode(bytes: &'a [u8]) -> Result<T, DecodeError>;
}

/// Why a value was not written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer was too short.
    #[error("the buffer is too short")]
    Full,
    /// The value cannot be written by this codec.
    #[error("the value cannot be encoded: {0}")]
    Value(String),
    /// A subscriber has no room, and the thread is a worker, which must not wait for it: of
    /// [`Topic::blocking_publish`](crate::Topic::blocking_publish) alone.
    #[error("`blocking_publish` would block a worker's thread; use `publish`")]
    OwnWorker,
}

/// Why bytes are not the value that was expected, in words for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the bytes cannot be decoded: {0}")]
pub struct DecodeError(Cow<'static, str>);

impl DecodeError {
    /// Makes an error of its reason, for a codec of one's own.
    #[must_use]
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self(why.into())
    }

    /// Because of `why`.
    #[cfg(feature = "evolve")]
    pub(crate) const fn of(why: &'static str) -> Self {
        Self(Cow::Borrowed(why))
    }

    /// With the name of the field or variant that was read. A peer chose it: a long one is left out.
    #[cold]
    #[cfg(feature = "evolve")]
    pub(crate) fn within(self, name: &str) -> Self {
        if name.len() > 64 { self } else { Self(format!("`{name}`: {}", self.0).into()) }
    }
}

/// The default: [postcard](https://docs.rs/postcard), small and quick. Values travel without names, so attributes of serde that
/// need them, such as `untagged` or `skip_serializing_if`, are refused when the server starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Postcard;

impl Codec for Postcard {
    const NAME: &'static str = "postcard";
}

impl<T: Shape + ?Sized> Describe<T> for Postcard {
    fn describe(shapes: &mut Shapes) -> TypeRef {
        T::shape(shapes)
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    #[inline]
    fn encode(value: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
        postcard::serialize_with_flavor(&Nested::new(value), Place { out, len: 0 }).map_err(|error| {
            match error {
                postcard::Error::SerializeBufferFull => EncodeError::Full,
                error => not_encoded(&error),
            }
        })
    }

    fn encoded_bytes(value: &T) -> Option<usize> {
        postcard::experimental::serialized_size(&Nested::new(value)).map_err(nested::unsaid).ok()
    }
}

#[cold]
fn not_encoded(error: &postcard::Error) -> EncodeError {
    EncodeError::Value(nested::words(error))
}

/// Where postcard writes. Most of what it writes at a time is one byte, which is not worth a call of `memcpy`.
struct Place<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl postcard::ser_flavors::Flavor for Place<'_> {
    type Output = usize;

    #[inline(always)]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        *self.out.get_mut(self.len).ok_or(postcard::Error::SerializeBufferFull)? = byte;
        self.len += 1;
        Ok(())
    }

    #[inline(always)]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if let [byte] = bytes {
            return self.try_push(*byte);
        }
        let end = self.len + bytes.len();
        let place = self.out.get_mut(self.len..end).ok_or(postcard::Error::SerializeBufferFull)?;
        copy(bytes, place);
        self.len = end;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.len)
    }
}

impl<'a, T: Deserialize<'a>> Decode<'a, T> for Postcard {
    #[inline]
    fn decode(bytes: &'a [u8]) -> Result<T, DecodeError> {
        // Not `take_from_bytes`, whose pair of value and rest moves the value once more.
        let mut from = postcard::Deserializer::from_bytes(bytes);
        let decoded = Nested::new(PhantomData::<T>).deserialize(&mut from);
        let rest = from.finalize();
        match decoded {
            Ok(value) if matches!(rest, Ok([])) => Ok(value),
            decoded => Err(not_decoded(decoded.and(rest).map(<[u8]>::len))),
        }
    }
}

#[cold]
fn not_decoded(outcome: postcard::Result<usize>) -> DecodeError {
    DecodeError::new(match outcome {
        Ok(rest) => format!("{rest} bytes too many"),
        Err(error) => nested::words(&error),
    })
}

/// Bytes as they are, copied and not looked at: for [`Vec<u8>`] and `[u8]`. Raw methods have it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    const NAME: &'static str = "raw";
    const FORM: Form = Form::Bytes;
}

impl<T: ?Sized> Describe<T> for Raw {
    fn describe(shapes: &mut Shapes) -> TypeRef {
        <[u8]>::shape(shapes)
    }
}

impl<T: AsRef<[u8]> + ?Sized> Encode<T> for Raw {
    #[inline]
    fn encode(value: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
        let value = value.as_ref();
        copy(value, out.get_mut(..value.len()).ok_or(EncodeError::Full)?);
        Ok(value.len())
    }

    fn encoded_bytes(value: &T) -> Option<usize> {
        Some(value.as_ref().len())
    }
}

impl<'a, T: From<&'a [u8]>> Decode<'a, T> for Raw {
    #[inline]
    fn decode(bytes: &'a [u8]) -> Result<T, DecodeError> {
        Ok(T::from(bytes))
    }
}

/// [bincode](https://docs.rs/bincode) 2 in its standard configuration, for values of at most 64 MiB (feature `bincode`). Values
/// travel without names, as postcard's do.
#[cfg(feature = "bincode")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Bincode;

#[cfg(feature = "bincode")]
mod bincode_codec {
    use std::marker::PhantomData;

    use serde::{Deserialize, Serialize};

    use super::{Bincode, Codec, Decode, DecodeError, Describe, Encode, EncodeError, Shape, Shapes, TypeRef};
    use crate::nested::{self, Nested};

    /// Most bytes that a value may claim to hold; a length prefix beyond it is refused before it is allocated.
    const LIMIT: usize = 64 << 20;

    const fn config() -> impl bincode::config::Config {
        bincode::config::standard().with_limit::<LIMIT>()
    }

    impl Codec for Bincode {
        const NAME: &'static str = "bincode";
    }

    impl<T: Shape + ?Sized> Describe<T> for Bincode {
        fn describe(shapes: &mut Shapes) -> TypeRef {
            T::shape(shapes)
        }
    }

    impl<T: Serialize + ?Sized> Encode<T> for Bincode {
        fn encode(value: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
            bincode::serde::encode_into_slice(Nested::new(value), out, config()).map_err(
                |error| match error {
                    bincode::error::EncodeError::UnexpectedEnd => EncodeError::Full,
                    error => EncodeError::Value(nested::words(&error)),
                },
            )
        }

        fn encoded_bytes(value: &T) -> Option<usize> {
            let mut bytes = 0;
            bincode::serde::encode_into_writer(Nested::new(value), Count(&mut bytes), config())
                .map_err(nested::unsaid)
                .ok()?;
            Some(bytes)
        }
    }

    struct Count<'a>(&'a mut usize);

    impl bincode::enc::write::Writer for Count<'_> {
        fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
            *self.0 += bytes.len();
            Ok(())
        }
    }

    impl<'a, T: Deserialize<'a>> Decode<'a, T> for Bincode {
        fn decode(bytes: &'a [u8]) -> Result<T, DecodeError> {
            let seed = Nested::new(PhantomData::<T>);
            let (value, used) = bincode::serde::seed_decode_from_slice(seed, bytes, config())
                .map_err(|error| DecodeError::new(nested::words(&error)))?;
            match bytes.len() - used {
                0 => Ok(value),
                rest => Err(DecodeError::new(format!("{rest} bytes too many"))),
            }
        }
    }
}

/// Something that can be written where it leaves from; may be asked again when there was too little room.
pub trait Compose {
    /// Metadata stands before it.
    #[doc(hidden)]
    const IS_NOTED: bool = false;

    /// As [`Encode::encode`].
    ///
    /// # Errors
    /// As [`Encode::encode`].
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// As [`Encode::encoded_bytes`].
    fn composed_bytes(&self) -> Option<usize> {
        None
    }
}

/// A value by its codec.
pub struct Encoded<'a, C, T: ?Sized> {
    value: &'a T,
    codec: PhantomData<C>,
}

impl<'a, C: Encode<T>, T: ?Sized> Encoded<'a, C, T> {
    /// `value` as `C` writes it.
    #[inline]
    pub fn new(value: &'a T) -> Self {
        Self { value, codec: PhantomData }
    }
}

impl<C, T: ?Sized> fmt::Debug for Encoded<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").finish_non_exhaustive()
    }
}

impl<C: Encode<T>, T: ?Sized> Compose for Encoded<'_, C, T> {
    #[inline]
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        C::encode(self.value, out)
    }

    fn composed_bytes(&self) -> Option<usize> {
        C::encoded_bytes(self.value)
    }
}

/// Bytes as they are.
impl Compose for [u8] {
    #[inline]
    fn compose(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        Raw::encode(self, out)
    }

    fn composed_bytes(&self) -> Option<usize> {
        Some(self.len())
    }
}

/// Composes into `out`, growing it up to `limit`; the buffer's memory is used again.
pub(crate) fn compose_into(
    out: &mut Vec<u8>,
    limit: usize,
    value: &(impl Compose + ?Sized),
) -> Result<(), EncodeError> {
    compose_into_with(out, limit, |place| value.compose(place))
}

/// Composes with the given writer.
pub(crate) fn compose_into_with(
    out: &mut Vec<u8>,
    limit: usize,
    compose: impl Fn(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), EncodeError> {
    let mut len = limit.min(512);
    loop {
        out.clear();
        out.resize(len, 0);
        match compose(out) {
            Ok(bytes) => {
                out.truncate(bytes);
                return Ok(());
            }
            Err(EncodeError::Full) if len < limit => len = (len * 4).min(limit),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<C>()
    where
        C: Encode<(u32, String, Vec<u8>)> + for<'a> Decode<'a, (u32, String, Vec<u8>)>,
    {
        let value = (7u32, "text".to_owned(), vec![1u8, 2, 3]);
        let mut out = [0; 64];
        let bytes = C::encode(&value, &mut out).unwrap();
        assert_eq!(C::decode(&out[..bytes]).unwrap(), value);
        assert_eq!(C::encoded_bytes(&value), Some(bytes));
        assert_eq!(C::encode(&value, &mut [0; 5]), Err(EncodeError::Full));
        assert!(C::decode(&out[..bytes - 1]).is_err());
        assert!(C::decode(&out[..=bytes]).is_err(), "trailing bytes are refused");
    }

    #[test]
    fn postcard_round_trips() {
        round_trip::<Postcard>();
    }

    #[cfg(feature = "bincode")]
    #[test]
    fn bincode_round_trips_and_bounds_what_a_length_may_claim() {
        round_trip::<Bincode>();
        // A vector of 2^60 bytes, they say.
        let mut hostile = vec![253u8];
        hostile.extend_from_slice(&(1u64 << 60).to_le_bytes());
        assert!(<Bincode as Decode<'_, Vec<u8>>>::decode(&hostile).is_err());
    }

    #[test]
    fn a_hostile_length_allocates_nothing() {
        let hostile = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(<Postcard as Decode<'_, Vec<u64>>>::decode(&hostile).is_err());
    }

    #[test]
    fn composing_grows_up_to_the_limit() {
        let mut out = Vec::new();
        compose_into(&mut out, 10_000, &[7u8; 5000][..]).unwrap();
        assert_eq!(out, vec![7; 5000]);
        assert_eq!(compose_into(&mut out, 4999, &[7u8; 5000][..]), Err(EncodeError::Full));
    }
}
