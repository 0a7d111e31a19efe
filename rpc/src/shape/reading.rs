//! Whether a caller and a server whose named types differ read each other: every value that one of them may write.
//!
//! Arguments are left out: the server reads those before the handler runs, and refuses a value that it cannot read. An
//! answer, an error or an item is written when the handler has begun, so here it is the types that are judged.

use std::collections::HashSet;

use super::{
    difference::{DEPTH_MAX, PAIRS_MAX, said},
    schema::{Contents, Field, Schema, Type, TypeRef, Variant},
    shapes::Form,
};

/// Most comparisons of names in one judgement.
const NAMES_MAX: usize = 1 << 18;

/// What cannot be read.
enum Unread {
    /// The type itself: what holds it names it.
    This,
    /// Something in it.
    Within(String),
}

/// A walk over the schemas of a writer and of a reader.
struct Reading<'a> {
    writer: &'a Schema,
    reader: &'a Schema,
    /// Whether the reader is the caller, who says `here` for its own.
    is_caller: bool,
    /// Pairs that were met: they can be read, or are being compared.
    met: HashSet<(TypeRef, TypeRef)>,
    depth: u32,
    names: usize,
}

impl Schema {
    /// Why a caller with these types must not call a server with those, both with named fields.
    pub(crate) fn hindrance(&self, server: &Self) -> Option<String> {
        let is_closed = self.must_be_same() || server.must_be_same() || self.unfit(Form::Named).is_some();
        let closed = || {
            self.attributes_difference(server)
                .or_else(|| self.first_difference(server, false))
                .or_else(|| self.unfit(Form::Named))
        };
        self.first_difference(server, true)
            .or_else(|| if is_closed { closed() } else { None })
            .or_else(|| self.opaque_difference(server))
            .or_else(|| self.unread(server))
    }

    /// Types that are compared by name only are the same, wherever they are.
    fn opaque_difference(&self, server: &Self) -> Option<String> {
        let spelled = |schema: &Self| match &schema.opaques()[..] {
            [] => "none".to_owned(),
            names => format!("opaque {}", names.join(", ")),
        };
        let (here, there) = (spelled(self), spelled(server));
        (here != there).then(|| said("types compared by name", &here, &there))
    }

    fn unread(&self, server: &Self) -> Option<String> {
        let parts = [
            ("the answer", true, server.answer.zip(self.answer)),
            ("the error", true, server.error.zip(self.error)),
            ("the handler's items", true, server.down.zip(self.down)),
            ("the caller's items", false, self.up.zip(server.up)),
        ];
        parts.into_iter().find_map(|(what, is_caller, types)| {
            let (written, read) = types?;
            let (writer, reader) = if is_caller { (server, self) } else { (self, server) };
            let (met, depth, names) = (HashSet::new(), 0, 0);
            let mut reading = Reading { writer, reader, is_caller, met, depth, names };
            match reading.value(written, read)? {
                Unread::This => Some(reading.said(what, &reader.spelled(read), &writer.spelled(written))),
                Unread::Within(found) => Some(format!("{what}: {found}")),
            }
        })
    }
}

/// How many bits an integer has below zero, and above.
const fn bits(ty: &Type) -> Option<(u8, u8)> {
    Some(match ty {
        Type::U8 => (0, 8),
        Type::U16 => (0, 16),
        Type::U32 => (0, 32),
        Type::U64 => (0, 64),
        Type::U128 => (0, 128),
        Type::I8 => (7, 7),
        Type::I16 => (15, 15),
        Type::I32 => (31, 31),
        Type::I64 => (63, 63),
        Type::I128 => (127, 127),
        _ => return None,
    })
}

/// Whether every value of a type that holds no other is one of the other type.
fn holds(written: &Type, read: &Type) -> bool {
    match (bits(written), bits(read)) {
        (Some(written), Some(read)) => written.0 <= read.0 && written.1 <= read.1,
        _ => written == read || matches!((written, read), (Type::F32, Type::F64) | (Type::Char, Type::Text)),
    }
}

impl Reading<'_> {
    fn said(&self, what: &str, read: &str, written: &str) -> String {
        if self.is_caller { said(what, read, written) } else { said(what, written, read) }
    }

    /// Finds what a reader of `read` cannot read of the values of `written`.
    fn value(&mut self, written: TypeRef, read: TypeRef) -> Option<Unread> {
        if !self.met.insert((written, read)) {
            return None;
        }
        if self.depth == DEPTH_MAX || self.met.len() > PAIRS_MAX || self.names > NAMES_MAX {
            return Some(Unread::Within("too deep, or too many types, to be compared".to_owned()));
        }
        self.depth += 1;
        let found = self.kinds(written, read);
        self.depth -= 1;
        found
    }

    fn kinds(&mut self, written: TypeRef, read: TypeRef) -> Option<Unread> {
        let (writer, reader) = (self.writer, self.reader);
        match (writer.get(written), reader.get(read)) {
            (Type::Unknown, _) | (_, Type::Unknown) => None,
            (Type::Option(a), Type::Option(b)) | (Type::List(a) | Type::Array(a, _), Type::List(b)) => {
                self.value(*a, *b)
            }
            // What may be nil on the wire would be read as `None`.
            (Type::Unit | Type::Opaque(_), Type::Option(_)) => Some(Unread::This),
            (_, Type::Option(b)) => self.value(written, *b),
            (Type::Bytes, Type::List(b)) => (!holds(&Type::U8, reader.get(*b))).then_some(Unread::This),
            (Type::Array(a, _), Type::Bytes) => (!holds(writer.get(*a), &Type::U8)).then_some(Unread::This),
            (Type::Array(a, len), Type::Array(b, other)) if len == other => self.value(*a, *b),
            (Type::Array(a, len), Type::Tuple(types)) if *len == types.len() as u64 => {
                types.iter().find_map(|b| self.value(*a, *b))
            }
            (Type::Tuple(types), Type::List(b)) => types.iter().find_map(|a| self.value(*a, *b)),
            (Type::Tuple(types), Type::Array(b, len)) if *len == types.len() as u64 => {
                types.iter().find_map(|a| self.value(*a, *b))
            }
            (Type::Tuple(a), Type::Tuple(b)) if a.len() == b.len() => self.all(a, b),
            (Type::Map(a, c), Type::Map(b, d)) => self.value(*a, *b).or_else(|| self.value(*c, *d)),
            (Type::Struct { fields: written, .. }, Type::Struct { name, fields, denies_unknown }) => {
                self.fields(name, written, fields, *denies_unknown)
            }
            (Type::Enum { variants: written, .. }, Type::Enum { name, variants, denies_unknown }) => {
                self.variants(name, written, variants, *denies_unknown)
            }
            (written, read) => (!holds(written, read)).then_some(Unread::This),
        }
    }

    fn all(&mut self, written: &[TypeRef], read: &[TypeRef]) -> Option<Unread> {
        written.iter().zip(read).find_map(|(written, read)| self.value(*written, *read))
    }

    fn fields(&mut self, owner: &str, written: &[Field], read: &[Field], denies: bool) -> Option<Unread> {
        let (writer, reader) = (self.writer, self.reader);
        self.names += written.len() * read.len();
        if self.names > NAMES_MAX {
            return Some(Unread::Within(format!("{owner}: too many fields to be compared")));
        }
        let unread = |walk: &Self, name: &str, read: &str, written: &str| {
            Some(Unread::Within(walk.said(&format!("field `{name}` of {owner}"), read, written)))
        };
        for field in read {
            let mut named = written.iter().filter(|written| field.is_called(&written.name));
            let spelled = || reader.spelled_field(field);
            match (named.next(), named.next()) {
                (None, _) if field.is_optional => {}
                (None, _) => return unread(self, &field.name, &spelled(), "none"),
                (Some(first), Some(second)) => {
                    let both = format!("{}`, `{}", first.name, second.name);
                    return unread(self, &field.name, &spelled(), &both);
                }
                (Some(there), None) => {
                    let found = self.value(there.ty, field.ty);
                    let written = || writer.spelled_field(there);
                    match found {
                        Some(Unread::This) => return unread(self, &field.name, &spelled(), &written()),
                        None if there.may_be_absent && !field.is_optional => {
                            let written = format!("{}` or `none", written());
                            return unread(self, &field.name, &spelled(), &written);
                        }
                        None => {}
                        found => return found,
                    }
                }
            }
        }
        let is_unknown = |written: &&Field| !read.iter().any(|field| field.is_called(&written.name));
        let unknown = written.iter().find(is_unknown).filter(|_| denies)?;
        unread(self, &unknown.name, "none", &writer.spelled_field(unknown))
    }

    fn variants(
        &mut self,
        owner: &str,
        written: &[Variant],
        read: &[Variant],
        denies: bool,
    ) -> Option<Unread> {
        self.names += written.len() * read.len();
        if self.names > NAMES_MAX {
            return Some(Unread::Within(format!("{owner}: too many variants to be compared")));
        }
        let takes_unknown = read.iter().any(|variant| variant.is_other);
        written.iter().find_map(|variant| {
            let name = &variant.name;
            match read.iter().find(|read| read.is_called(name)) {
                Some(read) => {
                    self.contents(&format!("{owner}::{name}"), &variant.contents, &read.contents, denies)
                }
                None if takes_unknown && variant.contents == Contents::Unit => None,
                None => Some(Unread::Within(self.said(&format!("a variant of {owner}"), "none", name))),
            }
        })
    }

    fn contents(&mut self, owner: &str, written: &Contents, read: &Contents, denies: bool) -> Option<Unread> {
        let found = match (written, read) {
            (Contents::Unit, Contents::Unit) => None,
            (Contents::Newtype(written), Contents::Newtype(read)) => {
                let found = self.value(*written, *read);
                if matches!(found, Some(Unread::This)) {
                    let (read, written) = (self.reader.spelled(*read), self.writer.spelled(*written));
                    return Some(Unread::Within(self.said(owner, &read, &written)));
                }
                found
            }
            (Contents::Tuple(a), Contents::Tuple(b)) if a.len() == b.len() => self.all(a, b),
            (Contents::Struct(written), Contents::Struct(read)) => self.fields(owner, written, read, denies),
            (written, read) => Some(Unread::Within(self.said(owner, &read.kind(), &written.kind()))),
        };
        match found {
            Some(Unread::This) => {
                let spelled = |schema: &Schema, contents: &Contents| match contents {
                    Contents::Tuple(types) => {
                        types.iter().map(|ty| schema.spelled(*ty)).collect::<Vec<_>>().join(", ")
                    }
                    contents => contents.kind(),
                };
                let (read, written) = (spelled(self.reader, read), spelled(self.writer, written));
                Some(Unread::Within(self.said(owner, &read, &written)))
            }
            found => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gimmal_engine::transport::Instant;

    use super::*;

    /// `len` structs, each of which may hold the one after it, and the last one the first.
    fn cycle(len: u32, fields: &[&str]) -> Schema {
        let types = (0..len).flat_map(|at| {
            let next = TypeRef((at + 1) % len * 2 + 1);
            let fields = fields.iter().map(|name| Field::plain(name, next)).collect();
            let name = "T".to_owned();
            [Type::Struct { name, fields, denies_unknown: false }, Type::Option(TypeRef(at * 2))]
        });
        Schema { types: types.collect(), answer: Some(TypeRef(0)), ..Schema::default() }
    }

    #[test]
    fn types_of_a_peer_that_never_end_are_refused_soon() {
        let fields: Vec<String> = (0..200).map(|at| format!("f{at}")).collect();
        let fields: Vec<&str> = fields.iter().map(|name| &name[..]).collect();
        for (ours, theirs) in [
            (cycle(3, &["next"]), cycle(1009, &["next"])),
            (cycle(13, &["a", "b"]), cycle(1009, &["a", "b"])),
            (cycle(2, &fields), cycle(1000, &fields)),
        ] {
            let began = Instant::now();
            let found = ours.difference(&theirs, Form::Named).unwrap();
            assert!(found.contains("to be compared"), "{found}");
            assert!(ours.difference(&theirs, Form::Positional).is_some());
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        }
        let (ours, theirs) = (cycle(2, &["next"]), cycle(6, &["next"]));
        assert_eq!(ours.difference(&theirs, Form::Named), None);
        assert_eq!(ours.fingerprint(Form::Named), cycle(2, &["next"]).fingerprint(Form::Named));
    }
}
