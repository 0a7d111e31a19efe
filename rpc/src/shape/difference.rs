//! The first difference between two schemas of one method, in words.
//!
//! A peer may have written one of them: what is too deep, or too much, to be compared counts as different.

use std::collections::HashSet;

use super::{
    schema::{Contents, Field, Schema, Type, TypeRef},
    shapes::Form,
};

/// A walk over two schemas at once.
struct Walk<'a> {
    ours: &'a Schema,
    theirs: &'a Schema,
    /// Whether the contents of structs and enums may differ.
    is_open: bool,
    /// Pairs that were met: they are the same, or are being compared.
    met: HashSet<(TypeRef, TypeRef)>,
    /// How many types are around the current ones.
    depth: u32,
}

/// Most types that are compared within each other.
pub(super) const DEPTH_MAX: u32 = 256;
/// Most pairs of types that are compared.
pub(super) const PAIRS_MAX: usize = 8192;

impl Schema {
    /// Names the first difference to the schema of the other side: "field 2 of Order: here `cents: u64`, there `id: u64`".
    /// With named fields, a difference that is no hindrance is told only where there is no other.
    #[must_use]
    pub fn difference(&self, server: &Self, form: Form) -> Option<String> {
        let hindrance = if form == Form::Named { self.hindrance(server) } else { None };
        hindrance
            .or_else(|| self.first_difference(server, false))
            .or_else(|| self.attributes_difference(server))
    }

    /// Names the first difference; `is_open`: of what is not in structs and enums.
    pub(super) fn first_difference(&self, theirs: &Self, is_open: bool) -> Option<String> {
        let mut walk = Walk { ours: self, theirs, is_open, met: HashSet::new(), depth: 0 };
        let arguments = walk.fields("argument", "", &self.arguments, &theirs.arguments);
        let roots = [
            ("the answer", self.answer, theirs.answer),
            ("the error", self.error, theirs.error),
            ("the caller's items", self.up, theirs.up),
            ("the handler's items", self.down, theirs.down),
        ];
        let rest = || {
            roots.into_iter().find_map(|(what, here, there)| match (here, there) {
                (Some(here), Some(there)) => walk.types(what, here, there),
                (None, None) => None,
                (here, there) => {
                    let here = here.map_or_else(|| "none".to_owned(), |here| walk.ours.spelled(here));
                    let there = there.map_or_else(|| "none".to_owned(), |there| walk.theirs.spelled(there));
                    Some(said(what, &here, &there))
                }
            })
        };
        let bulk = |schema: &Self| match (schema.takes_bulk, schema.gives_bulk) {
            (false, false) => "none",
            (true, false) => "with the request",
            (false, true) => "with the answer",
            (true, true) => "with both",
        };
        let (here, there) = (bulk(self), bulk(theirs));
        let bulk = || (here != there).then(|| said("bulk", here, there));
        arguments.or_else(rest).or_else(bulk)
    }

    /// Names the attributes of serde that only codecs with names carry, where they differ.
    pub(super) fn attributes_difference(&self, theirs: &Self) -> Option<String> {
        let all = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let (here, there) = (all(&self.needs_names), all(&theirs.needs_names));
        (here != there).then(|| said("attributes of serde", &here, &there))
    }
}

pub(super) fn said(what: &str, here: &str, there: &str) -> String {
    format!("{what}: here `{here}`, there `{there}`")
}

impl Contents {
    /// What a variant holds, in words.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Unit => "nothing".to_owned(),
            Self::Newtype(_) => "one value".to_owned(),
            Self::Tuple(types) => format!("{} values", types.len()),
            Self::Struct(_) => "named fields".to_owned(),
        }
    }
}

/// `of Order`, or nothing.
fn owner(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" of {name}") }
}

impl Walk<'_> {
    /// Compares two types; `what` says where they are.
    fn types(&mut self, what: &str, here: TypeRef, there: TypeRef) -> Option<String> {
        if !self.met.insert((here, there)) {
            return None;
        }
        if self.depth == DEPTH_MAX || self.met.len() > PAIRS_MAX {
            return Some(format!("{what}: too deep, or too many types, to be compared"));
        }
        self.depth += 1;
        let found = self.kinds(what, here, there);
        self.depth -= 1;
        found
    }

    fn kinds(&mut self, what: &str, here: TypeRef, there: TypeRef) -> Option<String> {
        let (ours, theirs) = (self.ours, self.theirs);
        let spelled = || said(what, &ours.spelled(here), &theirs.spelled(there));
        match (ours.get(here), theirs.get(there)) {
            (Type::Option(a), Type::Option(b)) | (Type::List(a), Type::List(b)) => {
                self.inner(what, *a, *b, &spelled)
            }
            (Type::Array(a, len), Type::Array(b, other)) if len == other => {
                self.inner(what, *a, *b, &spelled)
            }
            (Type::Map(a, c), Type::Map(b, d)) => {
                self.inner(what, *a, *b, &spelled).or_else(|| self.inner(what, *c, *d, &spelled))
            }
            (Type::Tuple(here), Type::Tuple(there)) if here.len() == there.len() => {
                here.iter().zip(there).find_map(|(a, b)| self.inner(what, *a, *b, &spelled))
            }
            (Type::Struct { .. }, Type::Struct { .. }) | (Type::Enum { .. }, Type::Enum { .. })
                if self.is_open =>
            {
                None
            }
            (Type::Struct { name, fields, .. }, Type::Struct { fields: other, .. }) => {
                self.fields("field", name, fields, other)
            }
            (Type::Enum { name, variants, .. }, Type::Enum { variants: other, .. }) => {
                let len = variants.len().max(other.len());
                (0..len).find_map(|at| {
                    let what = format!("variant {} of {name}", at + 1);
                    match (variants.get(at), other.get(at)) {
                        (Some(here), Some(there)) if here.name == there.name => {
                            let what = format!("{name}::{}", here.name);
                            self.contents(&what, &here.contents, &there.contents)
                        }
                        (here, there) => {
                            let name = |variant: Option<&super::schema::Variant>| {
                                variant.map_or_else(|| "none".to_owned(), |variant| variant.name.clone())
                            };
                            Some(said(&what, &name(here), &name(there)))
                        }
                    }
                })
            }
            (here, there) => (here != there).then(spelled),
        }
    }

    /// What two types hold. Where it is spelled on the outside, the outside is what is told.
    fn inner(
        &mut self,
        what: &str,
        here: TypeRef,
        there: TypeRef,
        outside: &dyn Fn() -> String,
    ) -> Option<String> {
        let is_named = |ty: &Type| matches!(ty, Type::Struct { .. } | Type::Enum { .. });
        let both = is_named(self.ours.get(here)) && is_named(self.theirs.get(there));
        let found = self.types(what, here, there)?;
        Some(if both || found.contains(" of ") { found } else { outside() })
    }

    fn contents(&mut self, what: &str, here: &Contents, there: &Contents) -> Option<String> {
        match (here, there) {
            (Contents::Unit, Contents::Unit) => None,
            (Contents::Newtype(here), Contents::Newtype(there)) => self.types(what, *here, *there),
            (Contents::Tuple(here), Contents::Tuple(there)) if here.len() == there.len() => {
                here.iter().zip(there).find_map(|(here, there)| self.types(what, *here, *there))
            }
            (Contents::Struct(here), Contents::Struct(there)) => self.fields("field", what, here, there),
            (here, there) => Some(said(what, &here.kind(), &there.kind())),
        }
    }

    fn fields(&mut self, kind: &str, name: &str, here: &[Field], there: &[Field]) -> Option<String> {
        let len = here.len().max(there.len());
        (0..len).find_map(|at| {
            let what = format!("{kind} {}{}", at + 1, owner(name));
            match (here.get(at), there.get(at)) {
                (Some(a), Some(b)) if a.name == b.name => {
                    let found = self.types(&what, a.ty, b.ty)?;
                    let is_here = found.starts_with(&what);
                    let (a, b) = (self.ours.spelled_field(a), self.theirs.spelled_field(b));
                    Some(if is_here { said(&what, &a, &b) } else { found })
                }
                (a, b) => {
                    let a = a.map_or_else(|| "none".to_owned(), |a| self.ours.spelled_field(a));
                    let b = b.map_or_else(|| "none".to_owned(), |b| self.theirs.spelled_field(b));
                    Some(said(&what, &a, &b))
                }
            }
        })
    }
}
