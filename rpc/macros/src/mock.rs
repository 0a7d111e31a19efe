//! A service whose methods do what a test sets.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{FnArg, ReturnType};

use crate::model::{Argument, Kind, Method, Service};

/// The parts of one method's mock.
struct Mocked {
    /// The field's type, in an `Option`.
    field: TokenStream,
    /// What the setter takes: generics, and the type of its argument.
    generics: TokenStream,
    setter: TokenStream,
    /// What the setter keeps.
    kept: TokenStream,
    implementation: TokenStream,
}

/// Nothing, unless it was asked for.
pub(crate) fn mock(service: &Service) -> TokenStream {
    let Service { ident, vis, is_mocked, .. } = service;
    if !*is_mocked {
        return quote!();
    }
    let mock = format_ident!("Mock{ident}");
    let names: Vec<_> = service.methods.iter().map(|method| &method.ident).collect();
    let cfgs: Vec<_> = service.methods.iter().map(|method| &method.cfgs).collect();
    let mocked: Vec<_> = service.methods.iter().map(|method| mocked(service, method)).collect();
    let fields = mocked.iter().map(|mocked| &mocked.field);
    let setters = names.iter().zip(&mocked).zip(&cfgs).map(|((name, mocked), cfgs)| {
        let Mocked { generics, setter, kept, .. } = mocked;
        let about = format!("Sets what `{name}` does, in place of what was set before.");
        quote! {
            #(#cfgs)*
            #[doc = #about]
            #[must_use]
            pub fn #name<#generics>(mut self, gimmal_does: #setter) -> Self {
                self.#name = ::core::option::Option::Some(#kept);
                self
            }
        }
    });
    let implementations = mocked.iter().map(|mocked| &mocked.implementation);
    let about = format!(
        "A [`{ident}`] for tests, whose methods do what was set. One that was not set panics with its name when it is called, and its caller is told so."
    );
    quote! {
        #[doc = #about]
        #[derive(Default)]
        #[allow(clippy::type_complexity)]
        #vis struct #mock {
            #(#(#cfgs)* #names: ::core::option::Option<#fields>,)*
        }

        impl ::core::fmt::Debug for #mock {
            fn fmt(&self, gimmal_f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                gimmal_f.write_str(::core::stringify!(#mock))
            }
        }

        impl #mock {
            /// Makes a mock of which no method is set.
            #[must_use]
            pub fn new() -> Self {
                ::core::default::Default::default()
            }

            #(#setters)*
        }

        impl #ident for #mock {
            #(#(#cfgs)* #implementations)*
        }
    }
}

fn mocked(service: &Service, method: &Method) -> Mocked {
    let Method { ident, cx, kind, .. } = method;
    let unset = format!("Mock{}::{ident} was called, and nothing was set for it", service.ident);
    let set = quote!(self.#ident.as_ref().expect(#unset));
    match kind {
        Kind::Async { arguments, result, is_inline: false, .. } => {
            let (names, types) = split(arguments);
            let output = &result.ty;
            let future = quote!(::core::future::Future<Output = #output> + ::core::marker::Send);
            let boxed = quote!(::core::pin::Pin<::std::boxed::Box<dyn #future>>);
            Mocked {
                field: kept(&quote!(::core::ops::Fn(#(#types),*) -> #boxed)),
                generics: quote!(GimmalFuture: #future + 'static),
                setter: given(&quote!(::core::ops::Fn(#(#types),*) -> GimmalFuture)),
                kept: quote!(::std::boxed::Box::new(move |#(#names),*| ::std::boxed::Box::pin(gimmal_does(#(#names),*)))),
                implementation: quote! {
                    async fn #ident(&self, _: #cx, #(#names: #types),*) -> #output {
                        #set(#(#names),*).await
                    }
                },
            }
        }
        Kind::Async { arguments, result, .. } => {
            let (names, types) = split(arguments);
            let output = &result.ty;
            plain(
                &quote!(::core::ops::Fn(#(#types),*) -> #output),
                quote! {
                    fn #ident(&self, _: #cx, #(#names: #types),*) -> #output {
                        #set(#(#names),*)
                    }
                },
            )
        }
        Kind::Raw(signature) => {
            let types: Vec<_> = signature
                .inputs
                .iter()
                .skip(2)
                .filter_map(|input| match input {
                    FnArg::Typed(typed) => Some(&typed.ty),
                    FnArg::Receiver(_) => None,
                })
                .collect();
            let output = match &signature.output {
                ReturnType::Default => quote!(()),
                ReturnType::Type(_, ty) => quote!(#ty),
            };
            let (request, answer) = (types.first(), types.get(1));
            plain(
                &quote!(::core::ops::Fn(#(#types),*) -> #output),
                quote! {
                    fn #ident(&self, _: #cx, gimmal_request: #request, gimmal_answer: #answer) -> #output {
                        #set(gimmal_request, gimmal_answer)
                    }
                },
            )
        }
    }
}

/// A method that runs to completion: what is set is kept as it is.
fn plain(does: &TokenStream, implementation: TokenStream) -> Mocked {
    let (field, setter) = (kept(does), given(does));
    Mocked {
        field,
        generics: quote!(),
        setter,
        kept: quote!(::std::boxed::Box::new(gimmal_does)),
        implementation,
    }
}

fn kept(does: &TokenStream) -> TokenStream {
    quote!(::std::boxed::Box<dyn #does + ::core::marker::Send + ::core::marker::Sync>)
}

fn given(does: &TokenStream) -> TokenStream {
    quote!(impl #does + ::core::marker::Send + ::core::marker::Sync + 'static)
}

fn split(arguments: &[Argument]) -> (Vec<&syn::Ident>, Vec<&syn::Type>) {
    arguments.iter().map(|argument| (&argument.ident, &argument.ty)).unzip()
}
