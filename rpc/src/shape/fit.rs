//! What a codec cannot carry, and what must not change although it is carried by name.

use super::{
    schema::{Schema, Type},
    shapes::Form,
};

/// Attributes by which serde reads a type from a buffer of its own, where numbers turn into floats: such types must be the same.
const BUFFERED: [&str; 4] =
    ["`#[serde(untagged)]`", "`#[serde(tag = ", "`#[serde(content = ", "`#[serde(flatten)]`"];

/// It reads its default where something was written.
const UNREAD: &str = "`#[serde(skip_deserializing)]`";

impl Schema {
    /// Why a codec of this form cannot carry the types, if it cannot.
    #[must_use]
    pub fn unfit(&self, form: Form) -> Option<String> {
        match form {
            Form::Positional => self.needs_names.first().cloned(),
            Form::Named => {
                let unread = self.needs_names.iter().find(|attribute| attribute.starts_with(UNREAD));
                unread.cloned().or_else(|| self.nil_within_option())
            }
            Form::Bytes => None,
        }
    }

    /// An `Option` of what is written as `None` is.
    fn nil_within_option(&self) -> Option<String> {
        self.types.iter().find_map(|ty| match ty {
            Type::Option(inner) if matches!(self.get(*inner), Type::Option(_) | Type::Unit) => {
                Some(format!("`Option<{}>`, two values of which are nil on the wire", self.spelled(*inner)))
            }
            _ => None,
        })
    }

    /// Whether the types must be the same on both sides: serde reads one from a buffer, or a place of a tuple may be absent.
    pub(super) fn must_be_same(&self) -> bool {
        self.needs_names.iter().any(|attribute| {
            let is_buffered = BUFFERED.iter().any(|buffered| attribute.starts_with(buffered));
            let place = attribute.rsplit_once('.').map(|(_, field)| field.parse::<u32>());
            is_buffered || matches!(place, Some(Ok(_)))
        })
    }

    /// The names of types whose contents nobody here knows, in order.
    pub(super) fn opaques(&self) -> Vec<&str> {
        let names = self.types.iter().filter_map(|ty| match ty {
            Type::Opaque(name) => Some(&name[..]),
            _ => None,
        });
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names
    }
}
