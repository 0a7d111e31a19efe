//! The code of a service: trait, dispatcher, client, mock.

use proc_macro2::{Literal, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{Ident, ext::IdentExt as _};

use crate::{
    mock::mock,
    model::{Answer, Argument, Kind, Method, Service},
};

pub(crate) fn expand(service: &Service) -> TokenStream {
    let declared = declared(service);
    let table = table(service);
    let server = server(service);
    let client = client(service);
    let mock = mock(service);
    quote! {
        #declared
        #table
        #server
        #client
        #mock
    }
}

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

fn signature(kind: &Kind) -> String {
    match kind {
        Kind::Raw(_) => "(bytes) -> bytes".to_owned(),
        Kind::Async { arguments, result, is_oneway, .. } => {
            let types: Vec<String> = arguments.iter().map(|argument| spelled(&argument.ty)).collect();
            let way = if *is_oneway { "one-way " } else { "" };
            format!("{way}({}) -> {}", types.join(", "), spelled(&result.ty))
        }
    }
}

fn table_ident(service: &Service) -> Ident {
    format_ident!("__{}_METHODS", snake(&service.ident.to_string()).to_uppercase())
}

fn declared(service: &Service) -> TokenStream {
    let Service { ident, vis, docs, attributes, supertraits, .. } = service;
    let supertraits = if supertraits.is_empty() { quote!() } else { quote!(+ #supertraits) };
    let methods = service.methods.iter().map(|method| {
        let Method { ident, docs, attributes, cx, kind, .. } = method;
        match kind {
            Kind::Raw(signature) => quote! { #(#docs)* #(#attributes)* #signature; },
            Kind::Async { arguments, result, is_inline, .. } => {
                let inputs = arguments.iter().map(|Argument { ident, ty, .. }| quote!(#ident: #ty));
                let output = &result.ty;
                if *is_inline {
                    return quote! {
                        #(#docs)*
                        #(#attributes)*
                        fn #ident(&self, cx: #cx, #(#inputs),*) -> #output;
                    };
                }
                quote! {
                    #(#docs)*
                    #(#attributes)*
                    fn #ident(&self, cx: #cx, #(#inputs),*)
                        -> impl ::core::future::Future<Output = #output> + ::core::marker::Send;
                }
            }
        }
    });
    quote! {
        #(#docs)*
        #(#attributes)*
        #vis trait #ident: ::core::marker::Send + ::core::marker::Sync + 'static #supertraits {
            #(#methods)*
        }
    }
}

/// What writes a method's values.
fn codec_of(service: &Service, method: &Method) -> TokenStream {
    method.codec.as_ref().map_or_else(|| service.codec.clone(), ToTokens::to_token_stream)
}

/// A method's arguments, their names or types, as the one value that its codec writes. One alone is written as it is: not
/// every codec knows tuples, and one with a single value costs another move.
fn joined(parts: &[impl ToTokens]) -> TokenStream {
    match parts {
        [part] => part.to_token_stream(),
        parts => quote!((#(#parts,)*)),
    }
}

/// An argument by `name`, as its codec takes it: a pattern or an expression, and its type.
fn written(
    service: &Service,
    method: &Method,
    argument: &Argument,
    name: &Ident,
) -> (TokenStream, TokenStream) {
    let (krate, ty) = (&service.krate, &argument.ty);
    if method.copies_at_once(ty) {
        (quote!(#krate::__macro::Bytes(#name)), quote!(#krate::__macro::Bytes<#ty>))
    } else {
        (name.to_token_stream(), ty.to_token_stream())
    }
}

/// What writes the items of a stream.
fn item_codec(service: &Service, method: &Method, item: &syn::Type) -> TokenStream {
    let (krate, codec) = (&service.krate, codec_of(service, method));
    if method.copies_at_once(item) { quote!(#krate::__macro::InOnePiece<#codec>) } else { codec }
}

/// Whether the caller streams, and whether the handler does.
fn directions(arguments: &[Argument]) -> (bool, bool) {
    let any = |is: fn(&Argument) -> bool| arguments.iter().any(is);
    (any(|argument| argument.stream.is_some()), any(|argument| argument.sink.is_some()))
}

fn table(service: &Service) -> TokenStream {
    let Service { krate, name, .. } = service;
    let table = table_ident(service);
    let private = quote!(#krate::__macro);
    let methods = service.methods.iter().map(|method| {
        let text = method.ident.to_string();
        let signature = signature(&method.kind);
        let mut more = quote!();
        let (codec, kind, takes, gives) = match &method.kind {
            Kind::Raw(_) => (quote!(#private::Raw), quote!(Raw), false, false),
            Kind::Async { arguments, result, is_oneway, is_inline } => {
                let takes = arguments.iter().any(|argument| argument.is_bulk);
                let (up, down) = directions(arguments);
                if up || down {
                    more = quote!(.with_streams(#up, #down));
                }
                if *is_oneway {
                    more = quote!(.one_way());
                }
                let kind = if *is_inline { quote!(Raw) } else { quote!(Async) };
                (codec_of(service, method), kind, takes, result.is_loan)
            }
        };
        let again = if method.is_idempotent { quote!(.idempotent()) } else { quote!() };
        quote! {
            #private::Method::new(
                #name,
                #text,
                #signature,
                <#codec as #private::Codec>::NAME,
                #private::MethodKind::#kind,
            )
            .with_bulk(#takes, #gives)
            #more
            #again
        }
    });
    let complaint = format!("two methods of {name} have the same id; rename one of them");
    quote! {
        #[doc(hidden)]
        const #table: &[#private::Method] = &[#(#methods),*];
        const _: () = ::core::assert!(#private::ids_are_distinct(#table), #complaint);
    }
}

/// The result as the marker type that both sides know.
fn output(service: &Service, result: &Answer) -> TokenStream {
    let private = {
        let krate = &service.krate;
        quote!(#krate::__macro)
    };
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

/// Wraps what the handler returned.
fn wrapped(service: &Service, result: &Answer, call: &TokenStream) -> TokenStream {
    let private = {
        let krate = &service.krate;
        quote!(#krate::__macro)
    };
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

fn server(service: &Service) -> TokenStream {
    let Service { krate, ident, vis, .. } = service;
    let private = quote!(#krate::__macro);
    let table = table_ident(service);
    let server = format_ident!("{ident}Server");
    let serve = format_ident!("serve_{}", snake(&ident.to_string()));
    let mut raw = Vec::new();
    let mut starts = Vec::new();
    for (index, method) in service.methods.iter().enumerate() {
        let index = Literal::usize_unsuffixed(index);
        let (name, codec) = (&method.ident, codec_of(service, method));
        match &method.kind {
            Kind::Raw(_) => raw.push(quote! {
                #index => #private::RawOutcome::outcome(#ident::#name(&*self.service, cx, arguments, answer)),
            }),
            Kind::Async { arguments, result, is_inline, .. } => {
                let encoded = arguments.iter().enumerate().filter(|(_, argument)| argument.is_encoded());
                let (names, (patterns, types)): (Vec<_>, (Vec<_>, Vec<_>)) = encoded
                    .map(|(at, argument)| {
                        let name = format_ident!("argument_{at}");
                        let written = written(service, method, argument, &name);
                        (name, written)
                    })
                    .unzip();
                let (all_names, all_types) = (joined(&patterns), joined(&types));
                // No `?`, which would move what was decoded once more.
                let decoded = quote! {
                    let #all_names = match <#codec as #private::Decode<'_, #all_types>>::decode(arguments) {
                        ::core::result::Result::Ok(arguments) => arguments,
                        ::core::result::Result::Err(error) => {
                            return ::core::result::Result::Err(#private::not_decoded(&error));
                        }
                    };
                };
                if *is_inline {
                    let call = quote!(#ident::#name(&*self.service, cx, #(#names),*));
                    let wrapped = wrapped(service, result, &call);
                    raw.push(quote! {
                        #index => {
                            #decoded
                            #private::put::<#codec, _>(answer, &#wrapped)
                        }
                    });
                    continue;
                }
                let bulk = arguments.iter().position(|argument| argument.is_bulk).map(|at| {
                    let name = format_ident!("argument_{at}");
                    quote!(let #name = #private::bulk(bulk)?;)
                });
                let streams = arguments.iter().enumerate().filter_map(|(at, argument)| {
                    let name = format_ident!("argument_{at}");
                    match (&argument.stream, &argument.sink) {
                        (Some(item), _) => {
                            let codec = item_codec(service, method, item);
                            Some(quote!(let #name = seat.stream::<#codec, #item>()?;))
                        }
                        (_, Some(item)) => {
                            let codec = item_codec(service, method, item);
                            Some(quote!(let #name = seat.sink::<#codec, #item>()?;))
                        }
                        _ => None,
                    }
                });
                let streams: TokenStream = streams.collect();
                let all = (0..arguments.len()).map(|at| format_ident!("argument_{at}"));
                let call = quote!(#ident::#name(&*service, &cx, #(#all),*).await);
                let wrapped = wrapped(service, result, &call);
                starts.push(quote! {
                    #index => {
                        #decoded
                        #bulk
                        #streams
                        seat.put::<#codec, _>(async move { #wrapped });
                        ::core::result::Result::Ok(())
                    }
                });
            }
        }
    }
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
                answer: &mut #private::Answer<'_>,
            ) -> ::core::result::Result<(), #private::Status> {
                match method {
                    #(#raw)*
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
                    #(#starts)*
                    _ => ::core::result::Result::Err(#private::no_method()),
                }
            }
        }
    }
}

fn client_method(service: &Service, index: usize, method: &Method) -> TokenStream {
    let (krate, codec) = (&service.krate, codec_of(service, method));
    let private = quote!(#krate::__macro);
    let table = table_ident(service);
    let index = Literal::usize_unsuffixed(index);
    let Method { ident, docs, .. } = method;
    match &method.kind {
        Kind::Raw(_) => quote! {
            #(#docs)*
            pub fn #ident(&self, request: &[u8]) -> #private::RawCall<C> {
                #private::Channel::call_raw_with(&self.channel, &#table[#index], &self.options, request)
            }
        },
        Kind::Async { arguments, result, is_oneway, .. } => {
            if directions(arguments) != (false, false) {
                return client_streams(service, &index, method, arguments, result);
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
            let output = if *is_oneway { quote!(#private::Told) } else { output(service, result) };
            quote! {
                #(#docs)*
                pub fn #ident(&self, #(#inputs),*) -> #private::Call<C, #codec, #output> {
                    #private::start(
                        &self.channel,
                        &#table[#index],
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
    index: &Literal,
    method: &Method,
    arguments: &[Argument],
    result: &Answer,
) -> TokenStream {
    let (krate, codec) = (&service.krate, codec_of(service, method));
    let private = quote!(#krate::__macro);
    let table = table_ident(service);
    let Method { ident, docs, .. } = method;
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
        ends.push(quote!(ends.sink::<C, #codec, #item>(&self.channel)));
        gives.push(quote!(#private::Sink<#item, C>));
    }
    if let Some(item) = arguments.iter().find_map(|argument| argument.sink.as_ref()) {
        let codec = item_codec(service, method, item);
        ends.push(quote!(ends.stream::<C, #codec, #item>(&self.channel)));
        gives.push(quote!(#private::Stream<#item, C>));
    }
    let output = output(service, result);
    quote! {
        #(#docs)*
        pub fn #ident(&self, #(#names: #types),*) -> (#(#gives,)* #private::StreamCall<C, #codec, #output>) {
            let ends = #private::ends(#up, #down);
            (
                #(#ends,)*
                #private::start_streams(
                    &self.channel,
                    &#table[#index],
                    &self.options,
                    ends,
                    &#private::Encoded::<#codec, #all_types>::new(&#all_names),
                ),
            )
        }
    }
}

/// The pipelines of a service's raw methods, which only one kind of client has.
fn pipelines(service: &Service) -> TokenStream {
    let (krate, table) = (&service.krate, table_ident(service));
    let private = quote!(#krate::__macro);
    let client = format_ident!("{}Client", service.ident);
    let raw = |(_, method): &(usize, &Method)| matches!(method.kind, Kind::Raw(_));
    let methods = service.methods.iter().enumerate().filter(raw).map(|(index, Method { ident, .. })| {
        let index = Literal::usize_unsuffixed(index);
        let pipeline = format_ident!("{}_pipeline", ident.unraw());
        let about = format!("Many calls of [`{ident}`](Self::{ident}) at once, told apart by tags.");
        quote! {
            #[doc = #about]
            pub fn #pipeline(&self) -> #private::Pipeline {
                self.channel.pipeline(&#table[#index], &self.options)
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

fn client(service: &Service) -> TokenStream {
    let Service { krate, ident, vis, docs, .. } = service;
    let private = quote!(#krate::__macro);
    let client = format_ident!("{ident}Client");
    let methods =
        service.methods.iter().enumerate().map(|(index, method)| client_method(service, index, method));
    let pipelines = pipelines(service);
    quote! {
        #(#docs)*
        #[derive(Clone, Debug)]
        #vis struct #client<C = #private::Client> {
            channel: C,
            options: #private::CallOptions,
        }

        #[allow(clippy::too_many_arguments)]
        impl<C: #private::Channel> #client<C> {
            /// A client over `channel`.
            pub fn new(channel: C) -> Self {
                Self { channel, options: ::core::default::Default::default() }
            }

            /// A client whose calls have these options.
            #[must_use]
            pub fn with_options(mut self, options: #private::CallOptions) -> Self {
                self.options = options;
                self
            }

            /// What it calls through.
            pub fn channel(&self) -> &C {
                &self.channel
            }

            #(#methods)*
        }

        #pipelines
    }
}
