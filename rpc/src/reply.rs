//! Answers that are read where they are, instead of being taken apart into memory of their own.

use std::{fmt, future::poll_fn, marker::PhantomData, mem};

use crate::{
    channel::{Call, Channel, Received, Ticket as _, body_of},
    codec::{Codec, Decode, DecodeError},
    error::CallError,
    response::{Body, Response},
    task::{Fallible, Plain},
};

/// What a value is when it borrows from the bytes that it was written as. For a type of your own: the type with borrowed
/// fields that is written alike.
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
    /// The same, borrowed.
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

/// Results whose value can be lent.
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

/// An answer as it came, and what it says when it is asked: a borrowed value, for which nothing is allocated or copied.
/// One above a message's size is read where the server has it in shared memory, or where RDMA READ brought it. Dropping
/// the reply gives its memory back.
pub struct Reply<C: Channel, D, T> {
    ticket: C::Ticket,
    body: Body,
    value: PhantomData<fn() -> (D, T)>,
}

impl<C: Channel, D, T> fmt::Debug for Reply<C, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} bytes)", self.bytes().len())
    }
}

impl<C: Channel, D, T> Reply<C, D, T> {
    /// The answer, borrowed.
    ///
    /// # Errors
    /// [`DecodeError`] for bytes that are no such value: a server that breaks its word.
    #[inline]
    pub fn get<'a>(&'a self) -> Result<T::Lent<'a>, DecodeError>
    where
        T: Lend,
        D: Decode<'a, T::Lent<'a>>,
    {
        D::decode(self.bytes())
    }

    /// The answer as another type that is written alike.
    ///
    /// # Errors
    /// [`DecodeError`] for bytes that are no such value.
    #[inline]
    pub fn get_as<'a, V>(&'a self) -> Result<V, DecodeError>
    where
        D: Decode<'a, V>,
    {
        D::decode(self.bytes())
    }

    /// The answer as it travelled.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.body.bytes()
    }
}

impl<C: Channel, D, T> Drop for Reply<C, D, T> {
    fn drop(&mut self) {
        if let Body::Owned(bytes) = &mut self.body {
            self.ticket.recycle(mem::take(bytes));
        }
    }
}

impl<C: Channel, D: Codec, O: Lends<D>, S> Call<C, D, O, S> {
    /// As [`wait`](Call::wait), for an answer that is read where it is.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait_reply(mut self) -> Result<Reply<C, D, O::Owned>, CallError<O::Error>> {
        let response = self.ticket.wait();
        self.replied(response)
    }

    /// Ends as the call itself does, with an answer that is read where it is.
    ///
    /// Dropping the future cancels the call. Polled by reference it is cancel safe: no answer is lost.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn reply(mut self) -> Result<Reply<C, D, O::Owned>, CallError<O::Error>> {
        let response = poll_fn(|context| self.ticket.poll(context)).await;
        self.replied(response)
    }

    fn replied(self, response: Response) -> Result<Reply<C, D, O::Owned>, CallError<O::Error>> {
        Ok(Reply { body: body_of::<D, O>(response)?, ticket: self.ticket, value: PhantomData })
    }
}
