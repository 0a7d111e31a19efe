//! The server's side of a service: what decodes arguments, runs methods and keeps their results.
//!
//! What is named here begins with `gimmal`, as in `client` and `mock`: the user's types, constants and unit structs may have any
//! other name, and a pattern or type parameter of the same name would be theirs.

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
        let #patterns = match <#codec as #private::Decode<'_, #types>>::decode(gimmal_arguments) {
            ::core::result::Result::Ok(gimmal_arguments) => gimmal_arguments,
            ::core::result::Result::Err(gimmal_error) => {
                return ::core::result::Result::Err(#private::not_decoded(&gimmal_error));
            }
        };
    }
}

/// The implementation, in a method of the server.
fn implementation(service: &Service) -> TokenStream {
    if service.is_local { quote!(&**self.service) } else { quote!(&*self.service) }
}

/// The variable of an argument in the server's code, where its own name might be another's.
fn numbered(at: usize) -> Ident {
    format_ident!("gimmal_argument_{at}")
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
                quote!(let #name = gimmal_seat.stream::<#codec, #item>()?;)
            }
            (_, Some(item)) => {
                let codec = codec(item);
                quote!(let #name = gimmal_seat.sink::<#codec, #item>()?;)
            }
            _ if argument.is_bulk => quote!(let #name = #private::bulk(gimmal_bulk)?;),
            _ => quote!(),
        }
    });
    beside.collect()
}

/// Runs a method to its end: an arm of `call_raw`.
fn raw_arm(service: &Service, method: &Method) -> Option<TokenStream> {
    let (private, ident, name) = (&service.private, &service.ident, &method.ident);
    let (codec, arm) = (&method.codec, method.arm());
    let implementation = implementation(service);
    match &method.kind {
        Kind::Raw(_) => Some(quote! {
            #arm => #private::RawOutcome::outcome(#ident::#name(#implementation, gimmal_cx, gimmal_arguments, gimmal_writer)),
        }),
        Kind::Async { arguments, result, is_inline: true, .. } => {
            let decoded = decoded(service, method, arguments);
            let all = (0..arguments.len()).map(numbered);
            let wrapped =
                wrapped(service, result, &quote!(#ident::#name(#implementation, gimmal_cx, #(#all),*)));
            Some(quote! {
                #arm => {
                    #decoded
                    #private::put::<#codec, _>(gimmal_writer, &#wrapped)
                }
            })
        }
        Kind::Async { .. } => None,
    }
}

/// Starts a method: an arm of `start`.
fn start_arm(service: &Service, method: &Method) -> Option<TokenStream> {
    let (private, ident, name) = (&service.private, &service.ident, &method.ident);
    let (codec, arm) = (&method.codec, method.arm());
    let Kind::Async { arguments, result, is_inline: false, .. } = &method.kind else { return None };
    let decoded = decoded(service, method, arguments);
    let beside = beside(service, method, arguments);
    let all = (0..arguments.len()).map(numbered);
    let wrapped =
        wrapped(service, result, &quote!(#ident::#name(&*gimmal_service, &gimmal_cx, #(#all),*).await));
    let mut future = quote!(async move { #wrapped });
    if service.is_local {
        future = quote!(#private::SendWrapper::new(#future));
    }
    Some(quote! {
        #arm => {
            #decoded
            #beside
            gimmal_seat.put::<#codec, _>(#future);
            ::core::result::Result::Ok(())
        }
    })
}

/// How a server holds its implementation.
struct Holding {
    pointer: TokenStream,
    held: TokenStream,
    made: TokenStream,
    /// The method of `Service` that tells.
    is_local: TokenStream,
}

impl Holding {
    fn of(service: &Service) -> Self {
        let private = &service.private;
        if !service.is_local {
            let pointer = quote!(#private::Arc);
            let (held, made) = (quote!(#pointer<GimmalService>), quote!(#pointer::new(gimmal_service)));
            return Self { pointer, held, made, is_local: quote!() };
        }
        let (pointer, stays) = (quote!(::std::rc::Rc), quote!(#private::SendWrapper));
        Self {
            held: quote!(#stays<#pointer<GimmalService>>),
            made: quote!(#stays::new(#pointer::new(gimmal_service))),
            pointer,
            is_local: quote! {
                fn is_local(&self) -> ::core::option::Option<bool> {
                    ::core::option::Option::Some(self.service.valid())
                }
            },
        }
    }
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
    let about = format!("A service for a server, made of an implementation of [`{ident}`].");
    let makes = format!("Makes a service for a server of an implementation of [`{ident}`].");
    let Holding { pointer, held, made, is_local } = Holding::of(service);
    quote! {
        #[doc = #about]
        #vis struct #server<GimmalService> {
            service: #held,
        }

        impl<GimmalService> ::core::fmt::Debug for #server<GimmalService> {
            fn fmt(&self, gimmal_f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                gimmal_f.write_str(::core::stringify!(#server))
            }
        }

        #[doc = #makes]
        #vis fn #serve<GimmalService: #ident>(gimmal_service: GimmalService) -> #server<GimmalService> {
            #server { service: #made }
        }

        // A deprecated method is served as any other.
        #[allow(deprecated)]
        impl<GimmalService: #ident> #private::Service for #server<GimmalService> {
            fn methods(&self) -> &'static [#private::Method] {
                #table()
            }

            #is_local

            #[allow(unused_variables)]
            fn call_raw(
                &self,
                gimmal_method: usize,
                gimmal_cx: &#private::Cx,
                gimmal_arguments: &[u8],
                gimmal_writer: &mut #private::ResponseWriter<'_>,
            ) -> ::core::result::Result<(), #private::Status> {
                match gimmal_method {
                    #raw
                    _ => ::core::result::Result::Err(#private::no_method()),
                }
            }

            #[allow(unused_variables, clippy::let_unit_value)]
            fn start(
                &self,
                gimmal_method: usize,
                gimmal_cx: #private::Cx,
                gimmal_arguments: &[u8],
                gimmal_bulk: ::core::option::Option<#private::Bulk>,
                gimmal_seat: &mut #private::Seat,
            ) -> ::core::result::Result<(), #private::Status> {
                let gimmal_service = #pointer::clone(&self.service);
                match gimmal_method {
                    #starts
                    _ => ::core::result::Result::Err(#private::no_method()),
                }
            }
        }
    }
}
