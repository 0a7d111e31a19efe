//! Bytes as one piece.
//!
//! To serde a `Vec<u8>` is a sequence of numbers, which a codec writes and reads one by one. The macro spells `Vec<u8>` and
//! `&[u8]`, where they are an argument, an answer or an item of a stream, so that they are copied at once. On the wire they
//! are the same with postcard and bincode: a length and the bytes. With MessagePack each is read as the other. In a struct of
//! your own, `serde_bytes` does it.

use std::{convert::Infallible, marker::PhantomData};

use gimmal_engine::transport::Bulk;
use serde::{Deserialize, Serialize};

use crate::{
    channel::{Received, no_error},
    codec::{Codec, Decode, DecodeError, Encode, EncodeError},
    lend::Lends,
    shape::Form,
};

/// A `Vec<u8>` or a `&[u8]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    transparent,
    bound(serialize = "T: serde_bytes::Serialize", deserialize = "T: serde_bytes::Deserialize<'de>")
)]
pub struct Bytes<T>(#[serde(with = "serde_bytes")] pub T);

/// A method's answer that is bytes: the caller sees them plain.
#[derive(Debug)]
pub struct PlainBytes;

impl<D: for<'a> Decode<'a, Bytes<Vec<u8>>>> Received<D> for PlainBytes {
    type Value = Vec<u8>;
    type Error = Infallible;

    #[inline]
    fn value(body: &[u8], _: Option<Bulk>) -> Result<Vec<u8>, DecodeError> {
        D::decode(body).map(|Bytes(bytes)| bytes)
    }

    fn error(_: &[u8]) -> Result<Infallible, DecodeError> {
        no_error()
    }
}

impl<D: for<'a> Decode<'a, Bytes<Vec<u8>>>> Lends<D> for PlainBytes {
    type Owned = Vec<u8>;
}

/// The codec `C`, for items of a stream that are bytes.
#[derive(Debug)]
pub struct InOnePiece<C>(PhantomData<C>);

impl<C: Codec> Codec for InOnePiece<C> {
    const NAME: &'static str = C::NAME;
    const FORM: Form = C::FORM;
}

impl<C: for<'a> Encode<Bytes<&'a [u8]>>> Encode<Vec<u8>> for InOnePiece<C> {
    #[inline]
    fn encode(value: &Vec<u8>, out: &mut [u8]) -> Result<usize, EncodeError> {
        C::encode(&Bytes(value), out)
    }

    fn encoded_bytes(value: &Vec<u8>) -> Option<usize> {
        C::encoded_bytes(&Bytes(value))
    }
}

impl<'a, C: Decode<'a, Bytes<Vec<u8>>>> Decode<'a, Vec<u8>> for InOnePiece<C> {
    #[inline]
    fn decode(bytes: &'a [u8]) -> Result<Vec<u8>, DecodeError> {
        C::decode(bytes).map(|Bytes(bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Postcard;

    /// Checks that the wrapper does not change the bytes.
    fn travels_alike<C>()
    where
        C: Encode<(u32, Vec<u8>)>
            + for<'a> Encode<(u32, Bytes<&'a [u8]>)>
            + for<'a> Decode<'a, (u32, Bytes<Vec<u8>>)>
            + for<'a> Decode<'a, (u32, Bytes<&'a [u8]>)>
            + Encode<Vec<u8>>
            + for<'a> Encode<Bytes<&'a [u8]>>
            + for<'a> Decode<'a, Bytes<Vec<u8>>>,
    {
        for bytes in [vec![], vec![255; 127], (0..=255).cycle().take(70_000).collect::<Vec<u8>>()] {
            let (mut one_by_one, mut at_once) = (vec![0; 80_000], vec![0; 80_000]);
            let plain = C::encode(&(7u32, bytes.clone()), &mut one_by_one).unwrap();
            let wrapped = C::encode(&(7u32, Bytes(&*bytes)), &mut at_once).unwrap();
            assert_eq!(one_by_one[..plain], at_once[..wrapped]);
            assert_eq!(C::encoded_bytes(&(7u32, Bytes(&*bytes))), Some(wrapped));
            let (_, Bytes(owned)): (u32, Bytes<Vec<u8>>) = C::decode(&at_once[..wrapped]).unwrap();
            let (_, Bytes(lent)): (u32, Bytes<&[u8]>) = C::decode(&at_once[..wrapped]).unwrap();
            assert_eq!((&*owned, lent), (&*bytes, &*bytes));
            let refused: Result<(u32, Bytes<Vec<u8>>), _> = C::decode(&at_once[..wrapped - 1]);
            assert!(refused.is_err());
            let item = InOnePiece::<C>::encode(&bytes, &mut at_once).unwrap();
            assert_eq!(C::encode(&bytes, &mut one_by_one), Ok(item));
            assert_eq!(one_by_one[..item], at_once[..item]);
            assert_eq!(InOnePiece::<C>::decode(&at_once[..item]), Ok(bytes));
        }
    }

    #[test]
    fn bytes_travel_as_sequences_of_numbers_do() {
        travels_alike::<Postcard>();
        #[cfg(feature = "bincode")]
        travels_alike::<crate::codec::Bincode>();
    }

    #[test]
    fn a_hostile_length_allocates_nothing() {
        let hostile = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(<Postcard as Decode<'_, Bytes<Vec<u8>>>>::decode(&hostile).is_err());
        #[cfg(feature = "bincode")]
        {
            // 2^60 bytes, they say.
            let mut hostile = vec![253u8];
            hostile.extend_from_slice(&(1u64 << 60).to_le_bytes());
            assert!(<crate::codec::Bincode as Decode<'_, Bytes<Vec<u8>>>>::decode(&hostile).is_err());
        }
    }
}
