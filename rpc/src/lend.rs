//! What a value is while it is borrowed from the bytes that it was written as.

use crate::{
    channel::Received,
    codec::Decode,
    output::{Fallible, Plain},
};

/// What a value is while it is borrowed from the bytes that it was written as: `&str` for a `String`, `&[u8]` for a `Vec<u8>`. For a
/// type of your own, name the type with borrowed fields that is written alike.
///
/// ```
/// # use gimmal_rpc::Lend;
/// # use serde::Deserialize;
/// #[derive(Deserialize)]
/// struct Entry { key: String, value: Vec<u8> }
///
/// #[derive(Deserialize)]
/// struct EntryRef<'a> { key: &'a str, value: &'a [u8] }
///
/// impl Lend for Entry { type Lent<'a> = EntryRef<'a>; }
/// ```
pub trait Lend {
    /// The borrowed form.
    type Lent<'a>;
}

impl Lend for String {
    type Lent<'a> = &'a str;
}

impl Lend for Vec<u8> {
    type Lent<'a> = &'a [u8];
}

impl<T: Lend> Lend for Vec<T> {
    type Lent<'a> = Vec<T::Lent<'a>>;
}

impl<T: Lend> Lend for Option<T> {
    type Lent<'a> = Option<T::Lent<'a>>;
}

impl<A: Lend, B: Lend> Lend for (A, B) {
    type Lent<'a> = (A::Lent<'a>, B::Lent<'a>);
}

impl<A: Lend, B: Lend, C: Lend> Lend for (A, B, C) {
    type Lent<'a> = (A::Lent<'a>, B::Lent<'a>, C::Lent<'a>);
}

macro_rules! lent_as_they_are {
    // No u8: a vector of those is lent as a slice.
    ($($type:ty),*) => {$(
        impl Lend for $type {
            type Lent<'a> = $type;
        }
    )*};
}

lent_as_they_are!(bool, char, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

/// Results whose value can be borrowed. Only the code of the macro names their types.
#[doc(hidden)]
pub trait Lends<D>: Received<D> {
    /// The value.
    type Owned;
}

impl<T, D: for<'a> Decode<'a, T>> Lends<D> for Plain<T> {
    type Owned = T;
}

impl<O: Lends<D>, E, D: for<'a> Decode<'a, E>> Lends<D> for Fallible<O, E> {
    type Owned = O::Owned;
}
