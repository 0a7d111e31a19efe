//! The client's side of a service: a method for each of the trait's, over any channel.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Ident, ext::IdentExt as _};

use crate::{
    model::{Answer, Argument, Kind, Method, Service},
    spell::{directions, item_codec, joined, table_ident, written},
};

/// The result as the marker type that both sides know.
fn output(service: &Service, result: &Answer) -> TokenStream {
    let private = &service.private;
    let value = &result.value;
    let value = match (result.is_loan, result.is_bytes) {
        (true, _) => quote!(#value),
        (_, true) => quote!(#private::PlainBytes),
        _ => quote!(#private::Plain<#value>),
    };
    match &result.error {
        None => value,
        Some(error) => quote!(#private::Fallible<#value, #error>),
    }
}

fn client_method(service: &Service, method: &Method) -> TokenStream {
    let private = &service.private;
    let Method { ident, docs, cfgs, codec, .. } = method;
    let index = method.index();
    match &method.kind {
        Kind::Raw(_) => quote! {
            #(#cfgs)*
            #(#docs)*
            pub fn #ident(&self, gimmal_request: &[u8]) -> #private::RawCall<GimmalChannel> {
                #private::Channel::call_raw_with(&self.channel, &self.methods[#index], &self.options, gimmal_request)
            }
        },
        Kind::Async { arguments, result, is_oneway, .. } => {
            if directions(arguments) != (false, false) {
                return client_streams(service, method, arguments, result);
            }
            let inputs = arguments.iter().map(|Argument { ident, ty, is_bulk, .. }| {
                if *is_bulk { quote!(#ident: #private::Loan) } else { quote!(#ident: #ty) }
            });
            let encoded = arguments.iter().filter(|argument| argument.is_encoded());
            let (names, types): (Vec<_>, Vec<_>) =
                encoded.map(|argument| written(service, method, argument, &argument.ident)).unzip();
            let (names, types) = (joined(&names), joined(&types));
            let loan = arguments.iter().find(|argument| argument.is_bulk).map_or_else(
                || quote!(::core::option::Option::None),
                |argument| {
                    let name = &argument.ident;
                    quote!(::core::option::Option::Some(#name))
                },
            );
            let output = if *is_oneway { quote!(#private::OneWay) } else { output(service, result) };
            quote! {
                #(#cfgs)*
                #(#docs)*
                pub fn #ident(&self, #(#inputs),*) -> #private::Call<GimmalChannel, #codec, #output> {
                    #private::start(
                        &self.channel,
                        &self.methods[#index],
                        &self.options,
                        #loan,
                        &#private::Encoded::<#codec, #types>::new(&#names),
                    )
                }
            }
        }
    }
}

/// A method with streams: the caller's ends of them, and the call.
fn client_streams(
    service: &Service,
    method: &Method,
    arguments: &[Argument],
    result: &Answer,
) -> TokenStream {
    let private = &service.private;
    let Method { ident, docs, cfgs, codec, .. } = method;
    let index = method.index();
    let encoded: Vec<&Argument> = arguments.iter().filter(|argument| argument.is_encoded()).collect();
    let names: Vec<&Ident> = encoded.iter().map(|argument| &argument.ident).collect();
    let types: Vec<&syn::Type> = encoded.iter().map(|argument| &argument.ty).collect();
    let (values, written): (Vec<_>, Vec<_>) =
        encoded.iter().map(|argument| written(service, method, argument, &argument.ident)).unzip();
    let (all_names, all_types) = (joined(&values), joined(&written));
    let (up, down) = directions(arguments);
    let mut ends = Vec::new();
    let mut gives = Vec::new();
    // What the handler reads, the caller writes.
    if let Some(item) = arguments.iter().find_map(|argument| argument.stream.as_ref()) {
        let codec = item_codec(service, method, item);
        ends.push(quote!(gimmal_ends.sink::<GimmalChannel, #codec, #item>(&self.channel)));
        gives.push(quote!(#private::Sink<#item, GimmalChannel>));
    }
    if let Some(item) = arguments.iter().find_map(|argument| argument.sink.as_ref()) {
        let codec = item_codec(service, method, item);
        ends.push(quote!(gimmal_ends.stream::<GimmalChannel, #codec, #item>(&self.channel)));
        gives.push(quote!(#private::Stream<#item, GimmalChannel>));
    }
    let output = output(service, result);
    quote! {
        #(#cfgs)*
        #(#docs)*
        pub fn #ident(&self, #(#names: #types),*) -> (#(#gives,)* #private::StreamCall<GimmalChannel, #codec, #output>) {
            let gimmal_ends = #private::ends(#up, #down);
            (
                #(#ends,)*
                #private::start_streams(
                    &self.channel,
                    &self.methods[#index],
                    &self.options,
                    gimmal_ends,
                    &#private::Encoded::<#codec, #all_types>::new(&#all_names),
                ),
            )
        }
    }
}

/// The pipelines of a service's raw methods, which only one kind of client has.
fn pipelines(service: &Service) -> TokenStream {
    let private = &service.private;
    let client = format_ident!("{}Client", service.ident);
    let raw = service.methods.iter().filter(|method| matches!(method.kind, Kind::Raw(_)));
    let methods = raw.map(|method| {
        let (Method { ident, cfgs, .. }, index) = (method, method.index());
        let pipeline = format_ident!("{}_pipeline", ident.unraw());
        let about = format!("Returns a pipeline: many calls of [`{ident}`](Self::{ident}) in flight at once, told apart by tags.");
        quote! {
            #(#cfgs)*
            #[doc = #about]
            pub fn #pipeline(&self) -> #private::Pipeline {
                self.channel.pipeline(&self.methods[#index], &self.options)
            }
        }
    });
    let methods: Vec<_> = methods.collect();
    if methods.is_empty() {
        return quote!();
    }
    quote! {
        #[allow(dead_code)]
        impl #client<#private::LocalClient> {
            #(#methods)*
        }
    }
}

pub(crate) fn client(service: &Service) -> TokenStream {
    let Service { private, ident, vis, docs, .. } = service;
    let client = format_ident!("{ident}Client");
    let (table, count) = (table_ident(service), service.count());
    let methods = service.methods.iter().map(|method| client_method(service, method));
    let pipelines = pipelines(service);
    quote! {
        #(#docs)*
        #[derive(Clone, Debug)]
        #vis struct #client<GimmalChannel = #private::Client> {
            channel: GimmalChannel,
            options: #private::CallOptions,
            methods: &'static [#private::Method; #count],
        }

        #[allow(clippy::too_many_arguments)]
        impl<GimmalChannel: #private::Channel> #client<GimmalChannel> {
            /// Makes a client that calls through a channel: a connected client, or one with layers around it. Does not block.
            pub fn new(gimmal_channel: GimmalChannel) -> Self {
                Self { channel: gimmal_channel, options: ::core::default::Default::default(), methods: #table() }
            }

            /// Gives all calls of this client these options, in place of those it had. Clone it first to keep both.
            #[must_use]
            pub fn with_options(mut self, gimmal_options: #private::CallOptions) -> Self {
                self.options = gimmal_options;
                self
            }

            /// Returns the channel that it calls through, for loans and access to remote memory.
            pub fn channel(&self) -> &GimmalChannel {
                &self.channel
            }

            #(#methods)*
        }

        #pipelines
    }
}
