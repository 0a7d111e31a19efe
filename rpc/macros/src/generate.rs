//! The code of a service: trait, dispatcher, client, mock.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{ext::IdentExt as _, spanned::Spanned as _};

use crate::{
    client::client,
    mock::mock,
    model::{Argument, Kind, Method, Service},
    server::server,
    spell::{directions, spelled, table_ident},
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

fn declared(service: &Service) -> TokenStream {
    let Service { ident, vis, docs, attributes, supertraits, is_local, .. } = service;
    let send = if *is_local { quote!() } else { quote!(+ ::core::marker::Send) };
    let threads = if *is_local { quote!() } else { quote!(#send + ::core::marker::Sync) };
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
                        -> impl ::core::future::Future<Output = #output> #send;
                }
            }
        }
    });
    quote! {
        #(#docs)*
        #(#attributes)*
        #vis trait #ident: 'static #threads #supertraits {
            #(#methods)*
        }
    }
}

/// The types that the codec of a method writes, as calls of `Describing`.
fn described(service: &Service, codec: &TokenStream, kind: &Kind) -> TokenStream {
    let private = &service.private;
    let Kind::Async { arguments, result, is_oneway, .. } = kind else { return quote!() };
    let parts = arguments.iter().map(|Argument { ident, ty, is_bulk, stream, sink }| {
        let name = ident.unraw().to_string();
        match (stream, sink) {
            _ if *is_bulk => quote!(),
            (Some(item), _) => quote_spanned!(item.span()=> .up::<#item>()),
            (_, Some(item)) => quote_spanned!(item.span()=> .down::<#item>()),
            _ => quote_spanned!(ty.span()=> .argument::<#ty>(#name)),
        }
    });
    let (takes, gives) = (arguments.iter().any(|argument| argument.is_bulk), result.is_loan);
    let value = &result.value;
    let answer = if *is_oneway { quote!() } else { quote_spanned!(value.span()=> .answer::<#value>()) };
    let error = result.error.as_ref().map(|error| quote_spanned!(error.span()=> .error::<#error>()));
    quote! {
        .with_schema(
            <#codec as #private::Codec>::FORM,
            <#private::Describing<#codec> as ::core::default::Default>::default()
                #(#parts)*
                #answer
                #error
                .bulk(#takes, #gives)
                .done(),
        )
    }
}

fn table(service: &Service) -> TokenStream {
    let Service { private, name, .. } = service;
    let table = table_ident(service);
    let names = service.names();
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
                (method.codec.clone(), kind, takes, result.is_loan)
            }
        };
        let again = if method.is_idempotent { quote!(.idempotent()) } else { quote!() };
        let cfgs = &method.cfgs;
        let described = described(service, &codec, &method.kind);
        quote! {
            #(#cfgs)*
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
            #described
        }
    });
    let places = service.methods.first().and_then(|method| method.places.as_ref()).map(|places| {
        let variants = service.methods.iter().map(|Method { ident, cfgs, .. }| quote!(#(#cfgs)* #ident));
        quote! {
            #[doc(hidden)]
            #[allow(non_camel_case_types, dead_code)]
            enum #places { #(#variants),* }
        }
    });
    let count = service.count();
    let complaint = format!("two methods of {name} have the same id; rename one of them");
    quote! {
        #places
        #[doc(hidden)]
        fn #table() -> &'static [#private::Method; #count] {
            static METHODS: #private::LazyLock<[#private::Method; #count]> =
                #private::LazyLock::new(|| [#(#methods),*]);
            &METHODS
        }
        const _: () = ::core::assert!(#private::ids_are_distinct(#name, &[#(#names),*]), #complaint);
    }
}
