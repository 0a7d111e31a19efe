//! `#[derive(Shape)]`: what serde's derives write for a type, read from the same attributes.

mod attributes;
mod rename;
#[cfg(test)]
mod tests;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Data, DeriveInput, Error, Fields, Ident, Result, Type, ext::IdentExt as _, spanned::Spanned};

use crate::spell::spelled;
use attributes::{Container, Part, Written};

pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let container = Container::new(&input.attrs)?;
    let private = container.private();
    let name = input.ident.unraw().to_string();
    let expander = Expander { container: &container, private: &private, name: &name };
    let shape = expander.shape(input)?;
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(syn::parse_quote!(#private::Shape));
    }
    let (ident, (generics, arguments, bounds)) = (&input.ident, generics.split_for_impl());
    Ok(quote! {
        #[automatically_derived]
        impl #generics #private::Shape for #ident #arguments #bounds {
            fn shape(shapes: &mut #private::Shapes) -> #private::TypeRef {
                #shape
            }
        }
    })
}

struct Expander<'a> {
    container: &'a Container,
    private: &'a TokenStream,
    name: &'a str,
}

impl Expander<'_> {
    /// The body of `Shape::shape`.
    fn shape(&self, input: &DeriveInput) -> Result<TokenStream> {
        let Self { container, name, .. } = self;
        if let Some(opaque) = &container.opaque {
            return Ok(quote!(shapes.opaque(#opaque)));
        }
        if let Some(other) = &container.other {
            return Ok(self.asked(other));
        }
        let mut notes = container.notes(name);
        let contents = match &input.data {
            Data::Struct(data) => {
                if let Some(field) = self.single(&data.fields)? {
                    return Ok(self.place(&field.0, &field.1));
                }
                self.structure(&data.fields, &mut notes)?
            }
            Data::Enum(data) => self.enumeration(data, &mut notes)?,
            Data::Union(data) => return Err(Error::new(data.union_token.span, "serde writes no unions")),
        };
        Ok(quote! {
            shapes.put::<Self>(|shapes| {
                #(shapes.needs_names(#notes);)*
                #contents
            })
        })
    }

    /// The one field that is written in the place of its struct.
    fn single(&self, fields: &Fields) -> Result<Option<(Type, Part)>> {
        let is_newtype = matches!(fields, Fields::Unnamed(fields) if fields.unnamed.len() == 1);
        if !is_newtype && !self.container.is_transparent {
            return Ok(None);
        }
        for field in fields {
            let part = Part::new(&field.attrs)?;
            let is_marker = spelled(&field.ty).contains("PhantomData");
            if !part.is_skipped() && (is_newtype || !is_marker) {
                return Ok(Some((field.ty.clone(), part)));
            }
        }
        Ok(None)
    }

    /// A list of names.
    fn texts(&self, names: &[String]) -> TokenStream {
        let private = self.private;
        quote!(#private::list([#(#private::text(#names)),*]))
    }

    /// Asks a type for its place in the table. A complaint about it points at the type.
    fn asked(&self, ty: &Type) -> TokenStream {
        let private = self.private;
        let at = ty.span().resolved_at(Span::call_site());
        quote_spanned!(at=> <#ty as #private::Shape>::shape(shapes))
    }

    /// The place of a field's type in the table.
    fn place(&self, ty: &Type, part: &Part) -> TokenStream {
        let private = self.private;
        match &part.written {
            Written::Opaque(name) => quote!(shapes.opaque(#name)),
            Written::As(ty) => self.asked(ty),
            Written::Bytes if spelled(ty).starts_with("Option<") => {
                quote!(<::core::option::Option<#private::Vec<u8>> as #private::Shape>::shape(shapes))
            }
            Written::Bytes => quote!(<#private::Vec<u8> as #private::Shape>::shape(shapes)),
            Written::Plain => self.asked(ty),
        }
    }

    /// The fields that are written, as an expression for their list; `owner` is what complaints call their type.
    fn named(
        &self,
        owner: &str,
        fields: &Fields,
        rule: Option<&str>,
        notes: &mut Vec<String>,
    ) -> Result<TokenStream> {
        let private = self.private;
        let mut all = Vec::new();
        for field in fields {
            let part = Part::new(&field.attrs)?;
            let name = field.ident.as_ref().map(|ident| ident.unraw().to_string()).unwrap_or_default();
            notes.extend(part.notes(&format!("{owner}.{name}")));
            if part.is_skipped() {
                continue;
            }
            let wire = part.name.clone().unwrap_or_else(|| rename::field(rule, &name));
            let place = self.place(&field.ty, &part);
            let is_option =
                spelled(&field.ty).starts_with("Option<") && matches!(part.written, Written::Plain);
            let is_optional = part.has_default || self.container.has_default || is_option;
            let (may_be_absent, aliases) = (part.may_be_absent(), self.texts(&part.aliases));
            all.push(quote!(#private::field(#wire, #place, #is_optional, #may_be_absent, #aliases)));
        }
        Ok(quote!(#private::list([#(#all),*])))
    }

    /// The types of unnamed fields that are written.
    fn unnamed(&self, owner: &str, fields: &Fields, notes: &mut Vec<String>) -> Result<Vec<TokenStream>> {
        let mut all = Vec::new();
        for (at, field) in fields.iter().enumerate() {
            let part = Part::new(&field.attrs)?;
            notes.extend(part.notes(&format!("{owner}.{at}")));
            if !part.is_skipped() {
                all.push(self.place(&field.ty, &part));
            }
        }
        Ok(all)
    }

    fn structure(&self, fields: &Fields, notes: &mut Vec<String>) -> Result<TokenStream> {
        let Self { container, private, name } = self;
        Ok(match fields {
            Fields::Named(_) => {
                let fields = self.named(name, fields, container.rename_all.as_deref(), notes)?;
                let denies_unknown = container.denies_unknown;
                quote! {
                    #private::Type::Struct {
                        name: #private::text(#name),
                        fields: #fields,
                        denies_unknown: #denies_unknown,
                    }
                }
            }
            Fields::Unnamed(_) => {
                let types = self.unnamed(name, fields, notes)?;
                quote!(#private::Type::Tuple(#private::list([#(#types),*])))
            }
            Fields::Unit => quote!(#private::Type::Unit),
        })
    }

    fn enumeration(&self, data: &syn::DataEnum, notes: &mut Vec<String>) -> Result<TokenStream> {
        let Self { container, private, name } = self;
        let mut skipped: Option<&Ident> = None;
        let mut all = Vec::new();
        for variant in &data.variants {
            let part = Part::new(&variant.attrs)?;
            let bare = variant.ident.unraw().to_string();
            let owner = format!("{name}::{bare}");
            notes.extend(part.variant_notes(&owner));
            if part.is_variant_skipped() {
                skipped = Some(&variant.ident);
                continue;
            }
            if let Some(skipped) = skipped.take() {
                // serde numbers the variants differently when it writes and when it reads.
                notes.push(format!("`#[serde(skip)]` on {name}::{skipped}, with other variants behind it"));
            }
            let wire =
                part.name.clone().unwrap_or_else(|| rename::variant(container.rename_all.as_deref(), &bare));
            let rule = part.rename_all.as_deref().or(container.rename_all_fields.as_deref());
            let contents = match (&part.written, &variant.fields) {
                (Written::Opaque(opaque), _) => quote!(Newtype(shapes.opaque(#opaque))),
                (Written::As(ty), _) => quote!(Newtype(<#ty as #private::Shape>::shape(shapes))),
                (Written::Bytes, _) => quote!(Newtype(<#private::Vec<u8> as #private::Shape>::shape(shapes))),
                (Written::Plain, Fields::Unit) => quote!(Unit),
                (Written::Plain, fields @ Fields::Named(_)) => {
                    let fields = self.named(&owner, fields, rule, notes)?;
                    quote!(Struct(#fields))
                }
                (Written::Plain, fields @ Fields::Unnamed(_)) => {
                    let types = self.unnamed(&owner, fields, notes)?;
                    match (&types[..], fields.len()) {
                        ([only], 1) => quote!(Newtype(#only)),
                        (types, _) => quote!(Tuple(#private::list([#(#types),*]))),
                    }
                }
            };
            let (aliases, is_other) = (self.texts(&part.aliases), part.is_other);
            all.push(quote! {
                #private::Variant {
                    name: #private::text(#wire),
                    contents: #private::Contents::#contents,
                    aliases: #aliases,
                    is_other: #is_other,
                }
            });
        }
        let denies_unknown = container.denies_unknown;
        Ok(quote! {
            #private::Type::Enum {
                name: #private::text(#name),
                variants: #private::list([#(#all),*]),
                denies_unknown: #denies_unknown,
            }
        })
    }
}

/// The path of the macro's own names, and `opaque = "name@1"`.
impl Container {
    fn private(&self) -> TokenStream {
        let krate = self.krate.as_ref().map_or_else(|| quote!(::gimmal), ToTokens::to_token_stream);
        quote!(#krate::__macro)
    }
}
