//! Types as a Rust program spells them.

use super::schema::{Field, Schema, Type, TypeRef};

/// Levels of a type that are spelled; what is deeper is `…`.
const LEVELS: u8 = 8;

impl Schema {
    /// The type at `at` as Rust spells it, by its name where it has one.
    #[must_use]
    pub fn spelled(&self, at: TypeRef) -> String {
        self.spelled_within(at, LEVELS)
    }

    /// A field or an argument: `cents: u64`.
    pub(super) fn spelled_field(&self, field: &Field) -> String {
        format!("{}: {}", field.name, self.spelled(field.ty))
    }

    fn spelled_within(&self, at: TypeRef, levels: u8) -> String {
        let Some(levels) = levels.checked_sub(1) else { return "…".to_owned() };
        let inner = |at: &TypeRef| self.spelled_within(*at, levels);
        match self.get(at) {
            Type::Bool => "bool".to_owned(),
            Type::U8 => "u8".to_owned(),
            Type::U16 => "u16".to_owned(),
            Type::U32 => "u32".to_owned(),
            Type::U64 => "u64".to_owned(),
            Type::U128 => "u128".to_owned(),
            Type::I8 => "i8".to_owned(),
            Type::I16 => "i16".to_owned(),
            Type::I32 => "i32".to_owned(),
            Type::I64 => "i64".to_owned(),
            Type::I128 => "i128".to_owned(),
            Type::F32 => "f32".to_owned(),
            Type::F64 => "f64".to_owned(),
            Type::Char => "char".to_owned(),
            Type::Text => "String".to_owned(),
            Type::Bytes => "Vec<u8>".to_owned(),
            Type::Unit => "()".to_owned(),
            Type::Option(item) => format!("Option<{}>", inner(item)),
            Type::List(item) => format!("Vec<{}>", inner(item)),
            Type::Map(key, value) => format!("BTreeMap<{}, {}>", inner(key), inner(value)),
            Type::Tuple(types) => match &types[..] {
                [only] => format!("({},)", inner(only)),
                types => {
                    let types: Vec<String> = types.iter().map(inner).collect();
                    format!("({})", types.join(", "))
                }
            },
            Type::Array(item, len) => format!("[{}; {len}]", inner(item)),
            Type::Struct { name, .. } | Type::Enum { name, .. } => name.clone(),
            Type::Opaque(name) => format!("opaque {name}"),
            Type::Unknown => "no shape".to_owned(),
        }
    }
}
