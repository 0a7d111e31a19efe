//! The server's side of a service: what decodes arguments, runs methods and keeps their results.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::Ident;

use crate::{
    model::{Answer, Argument, Kind, Method, Service},
    spell::{item_codec, joined, snake, table_ident, written},
};

/// Wraps what the handler returned.
fn wrapped(service: &Service, result: &Answer, call: &TokenStream) -> TokenStream {
    let private = &service.private;
    let call = if result.is_bytes {
        match &result.error {
            None => quote!(#private::Bytes(#call)),
            Some(_) => quote!(#call.map(#private::Bytes)),
        }
    } else {
        call.clone()
    };
    match (result.error.is_some(), result.is_loan) {
        (false, false) => quote!(#private::Plain(#call)),
        (false, true) => call,
        (true, false) => quote!(#private::Fallible(#call.map(#private::Plain))),
        (true, true) => quote!(#private::Fallible(#call)),
    }
}

/// Reads a method's arguments, each into a variable of its own.
fn decoded(service: &Service, method: &Method, arguments: &[Argument]) -> TokenStream {
    let (private, codec) = (&service.private, &method.codec);
    let encoded = arguments.iter().enumerate().filter(|(_, argument)| argument.is_encoded());
    let (patterns, types): (Vec<_>, Vec<_>) =
        encoded.map(|(at, argument)| written(service, method, argument, &numbered(at))).unzip();
    let (patterns, types) = (joined(&patterns), joined(&types));
    // No `?`, which would move what was decoded once more.
    quote! {
        let #patterns = match <#codec as #private::Decode<'_, #types>>::decode(arguments) {
            ::core::result::Result::Ok(arguments) => arguments,
            ::core::result::Result::Err(error) => {
                return ::core::result::Result::Err(#private::not_decoded(&error));
            }
        };
    }
}

/// The variable of an argument in the server's code, where its own name might be another's.
fn numbered(at: usize) -> Ident {
    format_ident!("argument_{at}")
}

/// The bulk and the streams of a method, each in its argument's variable.
fn beside(service: &Service, method: &Method, arguments: &[Argument]) -> TokenStream {
    let private = &service.private;
    let beside = arguments.iter().enumerate().map(|(at, argument)| {
        let name = numbered(at);
        let codec = |item| item_codec(service, method, item);
        match (&argument.stream, &argument.sink) {
            (Some(item), _) => {
                let codec = codec(item);
                quote!(let #name = seat.stream::<#codec, #item>()?;)
            }
            (_, Some(item)) => {
                let codec = codec(item);
                quote!(let #name = seat.sink::<#codec, #item>()?;)
            }
            _ if argument.is_bulk => quote!(let #name = #private::bulk(bulk)?;),
            _ => quote!(),
        }
    });
    beside.collect()
}

/// Runs a method to its end: an arm of `call_raw`.
fn raw_arm(service: &Service, method: &Method) -> Option<TokenStream> {
    let (private, ident, name) = (&service.private, &service.ident, &method.ident);
    let Method { index, codec, .. } = method;
    match &method.kind {
        Kind::Raw(_) => Some(quote! {
            #index => #private::RawOutcome::outcome(#ident::#name(&*self.service, cx, arguments, writer)),
        }),
        Kind::Async { arguments, result, is_inline: true, .. } => {
            let decoded = decoded(service, method, arguments);
            let all = (0..arguments.len()).map(numbered);
            let wrapped = wrapped(service, result, &quote!(#ident::#name(&*self.service, cx, #(#all),*)));
            Some(quote! {
                #index => {
                    #decoded
                    #private::put::<#codec, _>(writer, &#wrapped)
                }
            })
        }
        Kind::Async { .. } => None,
    }
}

/// Starts a method: an arm of `start`.
fn start_arm(service: &Service, method: &Method) -> Option<TokenStream> {
    let (ident, name) = (&service.ident, &method.ident);
    let Method { index, codec, .. } = method;
    let Kind::Async { arguments, result, is_inline: false, .. } = &method.kind else { return None };
    let decoded = decoded(service, method, arguments);
    let beside = beside(service, method, arguments);
    let all = (0..arguments.len()).map(numbered);
    let wrapped = wrapped(service, result, &quote!(#ident::#name(&*service, &cx, #(#all),*).await));
    Some(quote! {
        #index => {
            #decoded
            #beside
            seat.put::<#codec, _>(async move { #wrapped });
            ::core::result::Result::Ok(())
        }
    })
}

pub(crate) fn server(service: &Service) -> TokenStream {
    let Service { private, ident, vis, .. } = service;
    let table = table_ident(service);
    let server = format_ident!("{ident}Server");
    let serve = format_ident!("serve_{}", snake(&ident.to_string()));
    let arms = |arm: fn(&Service, &Method) -> Option<TokenStream>| -> TokenStream {
        service.methods.iter().filter_map(|method| arm(service, method)).collect()
    };
    let (raw, starts) = (arms(raw_arm), arms(start_arm));
    let about = format!("Serves an implementation of [`{ident}`].");
    quote! {
        #[doc = #about]
        #vis struct #server<S> {
            service: #private::Arc<S>,
        }

        impl<S> ::core::fmt::Debug for #server<S> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(::core::stringify!(#server))
            }
        }

        #[doc = #about]
        #vis fn #serve<S: #ident>(service: S) -> #server<S> {
            #server { service: #private::Arc::new(service) }
        }

        impl<S: #ident> #private::Service for #server<S> {
            fn methods(&self) -> &'static [#private::Method] {
                #table
            }

            #[allow(unused_variables)]
            fn call_raw(
                &self,
                method: usize,
                cx: &#private::Cx,
                arguments: &[u8],
                writer: &mut #private::ResponseWriter<'_>,
            ) -> ::core::result::Result<(), #private::Status> {
                match method {
                    #raw
                    _ => ::core::result::Result::Err(#private::no_method()),
                }
            }

            #[allow(unused_variables, clippy::let_unit_value)]
            fn start(
                &self,
                method: usize,
                cx: #private::Cx,
                arguments: &[u8],
                bulk: ::core::option::Option<#private::Bulk>,
                seat: &mut #private::Seat,
            ) -> ::core::result::Result<(), #private::Status> {
                let service = #private::Arc::clone(&self.service);
                match method {
                    #starts
                    _ => ::core::result::Result::Err(#private::no_method()),
                }
            }
        }
    }
}
