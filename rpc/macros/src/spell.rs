//! How the parts of a service are spelled in the code that is made of it.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::Ident;

use crate::model::{Argument, Method, Service};

/// `FileStore` is served by `serve_file_store`.
pub(crate) fn snake(name: &str) -> String {
    let mut out = String::new();
    let letters: Vec<char> = name.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let after_lower = at > 0 && !letters[at - 1].is_uppercase() && letters[at - 1] != '_';
        let before_lower = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if letter.is_uppercase() && at > 0 && (after_lower || (before_lower && letters[at - 1] != '_')) {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Tokens as a text that does not depend on how they were spaced.
pub(crate) fn spelled(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let mut out = String::new();
    let mut gap = false;
    for letter in text.chars() {
        if letter.is_whitespace() {
            gap = true;
            continue;
        }
        let word = |letter: char| letter.is_alphanumeric() || letter == '_';
        if gap && out.chars().next_back().is_some_and(word) && word(letter) {
            out.push(' ');
        }
        gap = false;
        out.push(letter);
    }
    out.replace(',', ", ")
}

pub(crate) fn table_ident(service: &Service) -> Ident {
    format_ident!("__{}_methods", snake(&service.ident.to_string()))
}

/// A method's arguments, their names or types, as the one value that its codec writes. One alone is written as it is: not
/// every codec knows tuples, and one with a single value costs another move.
pub(crate) fn joined(parts: &[impl ToTokens]) -> TokenStream {
    match parts {
        [part] => part.to_token_stream(),
        parts => quote!((#(#parts,)*)),
    }
}

/// An argument by `name`, as its codec takes it: a pattern or an expression, and its type.
pub(crate) fn written(
    service: &Service,
    method: &Method,
    argument: &Argument,
    name: &Ident,
) -> (TokenStream, TokenStream) {
    let (private, ty) = (&service.private, &argument.ty);
    if method.copies_at_once(ty) {
        (quote!(#private::Bytes(#name)), quote!(#private::Bytes<#ty>))
    } else {
        (name.to_token_stream(), ty.to_token_stream())
    }
}

/// What writes the items of a stream.
pub(crate) fn item_codec(service: &Service, method: &Method, item: &syn::Type) -> TokenStream {
    let (private, codec) = (&service.private, &method.codec);
    if method.copies_at_once(item) { quote!(#private::InOnePiece<#codec>) } else { codec.clone() }
}

/// Whether the caller streams, and whether the handler does.
pub(crate) fn directions(arguments: &[Argument]) -> (bool, bool) {
    let any = |is: fn(&Argument) -> bool| arguments.iter().any(is);
    (any(|argument| argument.stream.is_some()), any(|argument| argument.sink.is_some()))
}
