//! 64 bits of everything in a schema that must be the same on both sides.
//!
//! A type that holds itself is hashed as the number of levels up to itself. So the places in the table do not count: the
//! same types give the same bits, in whatever order and however often they are met.

use super::{
    schema::{Contents, Field, Schema, Type, TypeRef},
    shapes::Form,
};

/// FNV-1a, 64 bits: stable over versions, machines and compilers.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    const fn new(kind: u8) -> Self {
        Self(0xcbf2_9ce4_8422_2325).byte(kind)
    }

    const fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u64).wrapping_mul(0x0100_0000_01b3))
    }

    fn number(self, number: u64) -> Self {
        number.to_le_bytes().into_iter().fold(self, Self::byte)
    }

    fn text(self, text: &str) -> Self {
        text.bytes().fold(self.number(text.len() as u64), Self::byte)
    }
}

/// A walk over a schema.
struct Walk<'a> {
    schema: &'a Schema,
    form: Form,
    /// The types that are being hashed, outermost first.
    open: Vec<TypeRef>,
    /// Hashes of types that hold nothing of what is open around them.
    closed: Vec<Option<u64>>,
    /// The outermost of the open types that the current one holds.
    outermost: usize,
}

impl Schema {
    /// Returns a hash of all that a codec of this form writes, which both sides of a call compare. It is the same on every machine.
    #[must_use]
    pub fn fingerprint(&self, form: Form) -> u64 {
        let closed = vec![None; self.types.len()];
        let mut walk = Walk { schema: self, form, open: Vec::new(), closed, outermost: usize::MAX };
        let mut hash = walk.fields(Hash::new(0), &self.arguments);
        for ty in [self.answer, self.error, self.up, self.down] {
            hash = hash.number(ty.map_or(0, |ty| walk.hash(ty)));
        }
        hash = hash.byte(u8::from(self.takes_bulk)).byte(u8::from(self.gives_bulk));
        self.needs_names.iter().fold(hash, |hash, attribute| hash.text(attribute)).0
    }
}

impl Walk<'_> {
    fn hash(&mut self, at: TypeRef) -> u64 {
        if let Some(depth) = self.open.iter().position(|open| *open == at) {
            self.outermost = self.outermost.min(depth);
            return Hash::new(1).number((self.open.len() - depth) as u64).0;
        }
        let place = usize::try_from(at.0).unwrap_or(usize::MAX);
        if let Some(Some(hash)) = self.closed.get(place) {
            return *hash;
        }
        let outer = std::mem::replace(&mut self.outermost, usize::MAX);
        let depth = self.open.len();
        self.open.push(at);
        let hash = self.contents(at).0;
        self.open.pop();
        if self.outermost >= depth {
            if let Some(closed) = self.closed.get_mut(place) {
                *closed = Some(hash);
            }
            self.outermost = outer;
        } else {
            self.outermost = self.outermost.min(outer);
        }
        hash
    }

    fn contents(&mut self, at: TypeRef) -> Hash {
        let schema = self.schema;
        match schema.get(at) {
            Type::Bool => Hash::new(10),
            Type::U8 => Hash::new(11),
            Type::U16 => Hash::new(12),
            Type::U32 => Hash::new(13),
            Type::U64 => Hash::new(14),
            Type::U128 => Hash::new(15),
            Type::I8 => Hash::new(16),
            Type::I16 => Hash::new(17),
            Type::I32 => Hash::new(18),
            Type::I64 => Hash::new(19),
            Type::I128 => Hash::new(20),
            Type::F32 => Hash::new(21),
            Type::F64 => Hash::new(22),
            Type::Char => Hash::new(23),
            Type::Text => Hash::new(24),
            Type::Bytes => Hash::new(25),
            Type::Unit => Hash::new(26),
            Type::Unknown => Hash::new(27),
            Type::Option(inner) => Hash::new(30).number(self.hash(*inner)),
            Type::List(inner) => Hash::new(31).number(self.hash(*inner)),
            Type::Map(key, value) => Hash::new(32).number(self.hash(*key)).number(self.hash(*value)),
            Type::Tuple(types) => self.all(Hash::new(33), types),
            Type::Array(inner, len) => Hash::new(34).number(self.hash(*inner)).number(*len),
            Type::Struct { fields, .. } => self.fields(Hash::new(35), fields),
            Type::Enum { variants, .. } => {
                let hash = Hash::new(36).number(variants.len() as u64);
                variants.iter().fold(hash, |hash, variant| {
                    let hash = hash.text(&variant.name);
                    match &variant.contents {
                        Contents::Unit => hash.byte(0),
                        Contents::Newtype(inner) => hash.byte(1).number(self.hash(*inner)),
                        Contents::Tuple(types) => self.all(hash.byte(2), types),
                        Contents::Struct(fields) => self.fields(hash.byte(3), fields),
                    }
                })
            }
            Type::Opaque(name) => Hash::new(37).text(name),
        }
    }

    fn all(&mut self, hash: Hash, types: &[TypeRef]) -> Hash {
        types.iter().fold(hash.number(types.len() as u64), |hash, ty| hash.number(self.hash(*ty)))
    }

    fn fields(&mut self, hash: Hash, fields: &[Field]) -> Hash {
        fields.iter().fold(hash.number(fields.len() as u64), |hash, field| {
            let hash = hash.text(&field.name).number(self.hash(field.ty));
            // With names, what one side leaves out the other may have to have.
            if self.form == Form::Named { hash.byte(u8::from(field.is_optional)) } else { hash }
        })
    }
}
