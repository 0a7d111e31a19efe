//! Attributes of serde and our own, each known by name: what they change on the wire, or that they are refused.

use syn::{Attribute, Error, LitStr, Path, Result, Token, Type, meta::ParseNestedMeta};

use crate::spell::spelled;

/// How the value of a field or variant is written.
pub(super) enum Written {
    /// As its type says.
    Plain,
    /// As bytes in one piece: `#[serde(with = "serde_bytes")]`.
    Bytes,
    /// As another type: `#[shape(as = "Type")]`.
    As(Box<Type>),
    /// In a way that has a name only.
    Opaque(LitStr),
}

/// What the attributes of a type say.
#[derive(Default)]
pub(super) struct Container {
    pub(super) krate: Option<Path>,
    pub(super) opaque: Option<LitStr>,
    /// The type that is written and read in its place.
    pub(super) other: Option<Type>,
    pub(super) rename_all: Option<String>,
    pub(super) rename_all_fields: Option<String>,
    pub(super) is_transparent: bool,
    pub(super) has_default: bool,
    pub(super) denies_unknown: bool,
    /// Attributes that need names on the wire, as spelled.
    notes: Vec<String>,
}

/// What the attributes of a field or a variant say.
pub(super) struct Part {
    /// Its name on the wire, where it was renamed.
    pub(super) name: Option<String>,
    pub(super) written: Written,
    pub(super) has_default: bool,
    /// Of a variant, for its fields.
    pub(super) rename_all: Option<String>,
    /// Other names by which it is read.
    pub(super) aliases: Vec<String>,
    /// A variant that is read for unknown ones.
    pub(super) is_other: bool,
    /// It is written only at times.
    skips_if: bool,
    skips_writing: bool,
    skips_reading: bool,
    notes: Vec<String>,
}

fn complaint<T>(at: &impl syn::spanned::Spanned, what: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(at.span(), what))
}

fn text(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    meta.value()?.parse()
}

/// `name = "x"`, or `name(serialize = "x", deserialize = "y")`: the names for writing and reading.
fn two_texts(meta: &ParseNestedMeta<'_>) -> Result<(Option<String>, Option<String>)> {
    if meta.input.peek(Token![=]) {
        let text = text(meta)?.value();
        return Ok((Some(text.clone()), Some(text)));
    }
    let mut both = (None, None);
    meta.parse_nested_meta(|inner| {
        let text: LitStr = inner.value()?.parse()?;
        match inner.path.is_ident("serialize") {
            true => both.0 = Some(text.value()),
            false => both.1 = Some(text.value()),
        }
        Ok(())
    })?;
    Ok(both)
}

/// The one name of a part: where it is read by another, codecs with names need the two sides to differ.
fn one_text(meta: &ParseNestedMeta<'_>) -> Result<String> {
    match two_texts(meta)? {
        (Some(written), Some(read)) if written == read => Ok(written),
        _ => complaint(
            &meta.path,
            "written by one name and read by another: a side could not read what it wrote; use one name",
        ),
    }
}

/// Takes what follows an attribute that says nothing about the wire.
fn ignore(meta: &ParseNestedMeta<'_>) -> Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<syn::Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        let inner;
        syn::parenthesized!(inner in meta.input);
        inner.parse::<proc_macro2::TokenStream>()?;
    }
    Ok(())
}

fn named(meta: &ParseNestedMeta<'_>) -> String {
    spelled(&meta.path)
}

fn opaque(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let name = text(meta)?;
    let has_version = name.value().rsplit_once('@').is_some_and(|(name, version)| {
        !name.is_empty() && !version.is_empty() && version.bytes().all(|digit| digit.is_ascii_digit())
    });
    if has_version {
        Ok(name)
    } else {
        complaint(&name, "name what is written, with a version: `opaque = \"name@1\"`")
    }
}

impl Container {
    pub(super) fn new(attributes: &[Attribute]) -> Result<Self> {
        let mut container = Self::default();
        let (mut into, mut from) = (None::<Type>, None::<Type>);
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("shape")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("crate") {
                    container.krate = Some(meta.value()?.call(Path::parse_mod_style)?);
                } else if meta.path.is_ident("opaque") {
                    container.opaque = Some(opaque(&meta)?);
                } else {
                    return complaint(&meta.path, "there are `crate = path` and `opaque = \"name@1\"`");
                }
                Ok(())
            })?;
        }
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| container.serde(&meta, &mut into, &mut from))?;
        }
        if container.opaque.is_none() {
            container.other = match (into, from) {
                (None, None) => None,
                (Some(into), Some(from)) if spelled(&into) == spelled(&from) => Some(into),
                (Some(one), _) | (None, Some(one)) => {
                    return complaint(
                        &one,
                        "written as one type and read as another: use one type for `into` and `from`, or `#[shape(opaque = \"name@1\")]`",
                    );
                }
            };
        }
        Ok(container)
    }

    fn serde(
        &mut self,
        meta: &ParseNestedMeta<'_>,
        into: &mut Option<Type>,
        from: &mut Option<Type>,
    ) -> Result<()> {
        match named(meta).as_str() {
            "rename_all" => self.rename_all = Some(one_text(meta)?),
            "rename_all_fields" => self.rename_all_fields = Some(one_text(meta)?),
            "transparent" => self.is_transparent = true,
            "default" => {
                self.has_default = true;
                ignore(meta)?;
            }
            "into" => *into = Some(text(meta)?.parse()?),
            "from" | "try_from" => *from = Some(text(meta)?.parse()?),
            attribute @ ("tag" | "content") => {
                self.notes.push(format!("`#[serde({attribute} = \"{}\")]`", text(meta)?.value()));
            }
            "untagged" => self.notes.push("`#[serde(untagged)]`".to_owned()),
            "deny_unknown_fields" => self.denies_unknown = true,
            "rename" | "bound" | "crate" | "expecting" | "non_exhaustive" => ignore(meta)?,
            other if self.opaque.is_some() => {
                let _ = other;
                ignore(meta)?;
            }
            other => return unknown(meta, other),
        }
        Ok(())
    }

    /// The attributes of a type called `name` that need names on the wire.
    pub(super) fn notes(&self, name: &str) -> Vec<String> {
        self.notes.iter().map(|note| format!("{note} on {name}")).collect()
    }
}

fn unknown<T>(meta: &ParseNestedMeta<'_>, name: &str) -> Result<T> {
    complaint(
        &meta.path,
        format!("`#[serde({name})]` writes what a shape cannot tell: add `#[shape(opaque = \"name@1\")]`"),
    )
}

impl Part {
    pub(super) fn new(attributes: &[Attribute]) -> Result<Self> {
        let mut part = Self {
            name: None,
            written: Written::Plain,
            has_default: false,
            rename_all: None,
            aliases: Vec::new(),
            is_other: false,
            skips_if: false,
            skips_writing: false,
            skips_reading: false,
            notes: Vec::new(),
        };
        let mut hidden = None;
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| part.serde(&meta, &mut hidden))?;
        }
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("shape")) {
            attribute.parse_nested_meta(|meta| {
                part.written = if meta.path.is_ident("opaque") {
                    Written::Opaque(opaque(&meta)?)
                } else if meta.input.peek(Token![=]) && meta.path.is_ident("as") {
                    Written::As(Box::new(text(&meta)?.parse()?))
                } else {
                    return complaint(&meta.path, "there are `opaque = \"name@1\"` and `as = \"Type\"`");
                };
                Ok(())
            })?;
        }
        match (hidden, &part.written) {
            (Some(error), Written::Plain) if !part.is_skipped() => Err(error),
            _ => Ok(part),
        }
    }

    fn serde(&mut self, meta: &ParseNestedMeta<'_>, hidden: &mut Option<Error>) -> Result<()> {
        match named(meta).as_str() {
            "rename" => self.name = Some(one_text(meta)?),
            "rename_all" => self.rename_all = Some(one_text(meta)?),
            "default" => {
                self.has_default = true;
                ignore(meta)?;
            }
            "skip" => (self.skips_writing, self.skips_reading) = (true, true),
            "skip_serializing" => self.skips_writing = true,
            "skip_deserializing" => self.skips_reading = true,
            "skip_serializing_if" => {
                text(meta)?;
                self.skips_if = true;
                self.notes.push("`#[serde(skip_serializing_if)]`".to_owned());
            }
            attribute @ ("flatten" | "untagged" | "other") => {
                self.is_other |= attribute == "other";
                self.notes.push(format!("`#[serde({attribute})]`"));
            }
            "alias" => self.aliases.push(text(meta)?.value()),
            attribute @ ("with" | "serialize_with" | "deserialize_with") => {
                let by = text(meta)?;
                if by.value().starts_with("serde_bytes") {
                    self.written = Written::Bytes;
                } else {
                    let what = format!(
                        "`#[serde({attribute})]` hides what is written: add `#[shape(opaque = \"name@1\")]` or `#[shape(as = \"Type\")]`"
                    );
                    *hidden = Some(Error::new_spanned(&by, what));
                }
            }
            "borrow" | "bound" => ignore(meta)?,
            other => {
                *hidden = unknown::<()>(meta, other).err();
                ignore(meta)?;
            }
        }
        Ok(())
    }

    /// Whether a field is neither written nor read.
    pub(super) const fn is_skipped(&self) -> bool {
        self.skips_writing && self.skips_reading
    }

    /// Whether a field that is read may not be written.
    pub(super) const fn may_be_absent(&self) -> bool {
        self.skips_if || self.skips_writing
    }

    /// Whether a variant is not read.
    pub(super) const fn is_variant_skipped(&self) -> bool {
        self.skips_reading
    }

    /// The attributes of a field that need names on the wire; `at` says where it is.
    pub(super) fn notes(&self, at: &str) -> Vec<String> {
        let mut notes = self.variant_notes(at);
        match (self.skips_writing, self.skips_reading) {
            (true, false) => notes.push(format!("`#[serde(skip_serializing)]` on {at}")),
            (false, true) => notes.push(format!("`#[serde(skip_deserializing)]` on {at}")),
            _ => {}
        }
        notes
    }

    /// The attributes of a variant that need names on the wire.
    pub(super) fn variant_notes(&self, at: &str) -> Vec<String> {
        self.notes.iter().map(|note| format!("{note} on {at}")).collect()
    }
}
