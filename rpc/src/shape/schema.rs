//! The types of a method as data: a table, in which types name each other by their places.

use gimmal_macros::Shape;
use serde::{Deserialize, Serialize};

/// The place of a type in its [`Schema`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct TypeRef(pub u32);

/// A type as a codec of serde sees it. Wrappers that serde does not write, such as `Box`, are not there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the kinds of serde's data model")]
pub enum Type {
    Bool,
    U8,
    U16,
    U32,
    U64,
    U128,
    I8,
    I16,
    I32,
    I64,
    I128,
    F32,
    F64,
    Char,
    Text,
    /// A list of `u8`, or bytes as one piece.
    Bytes,
    Unit,
    Option(TypeRef),
    List(TypeRef),
    Map(TypeRef, TypeRef),
    Tuple(Vec<TypeRef>),
    Array(TypeRef, u64),
    Struct {
        name: String,
        fields: Vec<Field>,
        /// `#[serde(deny_unknown_fields)]`.
        denies_unknown: bool,
    },
    Enum {
        name: String,
        variants: Vec<Variant>,
        /// `#[serde(deny_unknown_fields)]`, of the fields of variants.
        denies_unknown: bool,
    },
    /// A type whose contents nobody here knows: compared by this name, which has a version.
    Opaque(String),
    /// What a codec without a description writes: nothing is compared.
    Unknown,
}

/// A named field, or a named argument.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct Field {
    /// Its name on the wire.
    pub name: String,
    /// Its type.
    pub ty: TypeRef,
    /// Whether a reader of named fields does without it.
    pub is_optional: bool,
    /// Whether a writer of named fields may leave it out.
    pub may_be_absent: bool,
    /// Other names by which it is read.
    pub aliases: Vec<String>,
}

impl Field {
    /// A field that is always written and has to be there.
    pub(crate) fn plain(name: &str, ty: TypeRef) -> Self {
        Self { name: name.to_owned(), ty, is_optional: false, may_be_absent: false, aliases: Vec::new() }
    }

    /// Whether a reader takes what was written by `name` for this field.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// A variant of an enum.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct Variant {
    /// Its name on the wire.
    pub name: String,
    /// What it holds.
    pub contents: Contents,
    /// Other names by which it is read.
    pub aliases: Vec<String>,
    /// Whether a reader takes variants for it that it does not know: `#[serde(other)]`.
    pub is_other: bool,
}

impl Variant {
    /// Whether a reader takes what was written by `name` for this variant.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// What a variant holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
#[expect(missing_docs, reason = "the kinds of serde's data model")]
pub enum Contents {
    Unit,
    Newtype(TypeRef),
    Tuple(Vec<TypeRef>),
    Struct(Vec<Field>),
}

/// Every type of a method: its arguments, its answer, its error and the items of its streams.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, Shape)]
#[shape(crate = crate)]
pub struct Schema {
    /// The table of types.
    pub types: Vec<Type>,
    /// The arguments that the codec writes, in order.
    pub arguments: Vec<Field>,
    /// The answer, or `T` of `Result<T, E>`.
    pub answer: Option<TypeRef>,
    /// `E` of `Result<T, E>`.
    pub error: Option<TypeRef>,
    /// The items that the caller streams.
    pub up: Option<TypeRef>,
    /// The items that the handler streams.
    pub down: Option<TypeRef>,
    /// Whether bulk goes with the request.
    pub takes_bulk: bool,
    /// Whether bulk may go with the answer.
    pub gives_bulk: bool,
    /// Attributes of serde that only codecs with named fields can carry, each with its type.
    pub needs_names: Vec<String>,
}

/// Most types of a schema that a peer wrote. Reading one recurses at most once for each.
const TYPES_MAX: usize = 2048;

impl Schema {
    /// Returns the type at `at`; [`Type::Unknown`] where there is none.
    #[must_use]
    pub fn get(&self, at: TypeRef) -> &Type {
        let at = usize::try_from(at.0).unwrap_or(usize::MAX);
        self.types.get(at).unwrap_or(&Type::Unknown)
    }

    /// Returns whether a schema that a peer wrote has few enough types to be walked by recursion: 2048.
    #[must_use]
    pub const fn is_walkable(&self) -> bool {
        self.types.len() <= TYPES_MAX
    }

    /// The schema as it goes ahead of a request. `None` if it takes more than `limit` bytes.
    pub(crate) fn to_bytes(&self, limit: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; limit];
        let len = postcard::to_slice(self, &mut bytes).ok()?.len();
        bytes.truncate(len);
        Some(bytes)
    }

    /// Reads [`Schema::to_bytes`] of a peer.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok().filter(Self::is_walkable)
    }

    /// The schema as it goes with a refusal: bytes as the characters of Latin-1. `None` if it takes more than `limit` bytes.
    pub(crate) fn to_text(&self, limit: usize) -> Option<String> {
        let text: String = self.to_bytes(limit)?.into_iter().map(char::from).collect();
        (text.len() <= limit).then_some(text)
    }

    /// Reads [`Schema::to_text`] of a peer.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let bytes: Vec<u8> = text.chars().map(|letter| u8::try_from(letter).ok()).collect::<Option<_>>()?;
        Self::from_bytes(&bytes)
    }
}
