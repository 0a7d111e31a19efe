//! Bounds how deep values nest, for any codec of serde, when they are written and when they are read.
//!
//! serde recurses with the value. A type that contains itself would let the bytes of a peer decide how much of a thread's
//! stack is used, and a stack that overflows ends the process.
//!
//! ```text
//!  Nested(value) ─ serialize ─► Nested(serializer) ─ field, element, variant ─► Nested(value), one level fewer ─► ...
//!  Nested(seed) ─ deserialize ─► Nested(deserializer) ─► Nested(visitor) ─► Nested(access) ─► Nested(seed) ─► ...
//! ```
//! The levels that are left go down by value, as an argument: nothing is counted on the way back, and for a type that does not
//! nest the compiler knows them. A level is whatever the bytes decide: `Some`, a sequence, a map, a variant with contents.
//! Structs, tuples and newtypes are none: how they nest is fixed by the type, and a type that contains itself through them alone
//! has no values.

use std::cell::Cell;

mod de;
mod ser;

/// Most levels of a value.
const NESTED_MAX: u8 = 128;
const _: () = assert!(NESTED_MAX == 128, "the refusal says so");
const REFUSAL: &str = "nested deeper than 128 levels; send it flat, as a list with indices";

/// Whatever serde hands around for a value that may nest so many levels deeper. Of a deserializer it is two words, which pass in
/// registers.
#[derive(Clone, Copy)]
pub(crate) struct Nested<T> {
    inner: T,
    left: u8,
}

impl<T> Nested<T> {
    /// A value, or the seed of one, with all its levels.
    #[inline]
    pub(crate) const fn new(inner: T) -> Self {
        Self { inner, left: NESTED_MAX }
    }

    /// `other` at the level of this.
    #[inline]
    const fn with<U>(&self, other: U) -> Nested<U> {
        Nested { inner: other, left: self.left }
    }

    /// What is inside, and `other` at its level.
    #[inline]
    fn swap<U>(self, other: U) -> (T, Nested<U>) {
        let other = self.with(other);
        (self.inner, other)
    }

    /// One level deeper.
    #[inline]
    fn deeper<E>(self, error: impl FnOnce(String) -> E) -> Result<Self, E> {
        match self.left.checked_sub(1) {
            Some(left) => Ok(Self { left, ..self }),
            None => Err(refuse(error)),
        }
    }
}

thread_local! {
    /// Whether this thread refused a value and nobody was told: postcard's errors do not say why.
    static IS_REFUSED: Cell<bool> = const { Cell::new(false) };
}

#[cold]
#[inline(never)]
fn refuse<E>(error: impl FnOnce(String) -> E) -> E {
    IS_REFUSED.set(true);
    error(REFUSAL.to_owned())
}

/// The words for an error of a codec: `theirs`, if it was not this module that refused.
#[cold]
pub(crate) fn words(theirs: &impl ToString) -> String {
    if IS_REFUSED.take() { REFUSAL.to_owned() } else { theirs.to_string() }
}

/// An error of a codec that nobody is told.
#[cold]
pub(crate) fn unsaid<E>(_: E) {
    IS_REFUSED.set(false);
}
