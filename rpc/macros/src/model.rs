//! What a service trait says, checked; every complaint points at its place.

use proc_macro2::{Literal, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ItemTrait, LitStr, Pat, PathArguments, Result,
    ReturnType, Token, TraitItem, TraitItemFn, Type, Visibility,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
    spanned::Spanned,
};

/// A complaint about what is at `at`.
fn wrong<T>(at: &impl Spanned, what: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(at.span(), what))
}

/// `#[service(...)]`.
pub(crate) struct Options {
    codec: Option<Type>,
    name: Option<LitStr>,
    krate: Option<syn::Path>,
    is_mocked: bool,
    is_local: bool,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self { codec: None, name: None, krate: None, is_mocked: false, is_local: false };
        while !input.is_empty() {
            if input.peek(Token![crate]) {
                input.parse::<Token![crate]>()?;
                input.parse::<Token![=]>()?;
                options.krate = Some(input.call(syn::Path::parse_mod_style)?);
            } else {
                let option: Ident = input.parse()?;
                let name = option.to_string();
                if !matches!(name.as_str(), "mock" | "local") {
                    input.parse::<Token![=]>()?;
                }
                match name.as_str() {
                    "codec" => options.codec = Some(input.parse()?),
                    "name" => options.name = Some(input.parse()?),
                    "mock" => options.is_mocked = true,
                    "local" => options.is_local = true,
                    _ => {
                        let what = "unknown option; there are `codec = Type`, `name = \"text\"`, `crate = path`, `mock` and `local`";
                        return wrong(&option, what);
                    }
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// A checked service.
pub(crate) struct Service {
    /// The module that the generated code names.
    pub(crate) private: TokenStream,
    pub(crate) name: String,
    pub(crate) ident: Ident,
    pub(crate) vis: Visibility,
    pub(crate) docs: Vec<Attribute>,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) supertraits: TokenStream,
    /// Whether a mock was asked for.
    pub(crate) is_mocked: bool,
    /// Whether its implementation and its handlers stay on one thread.
    pub(crate) is_local: bool,
    pub(crate) methods: Vec<Method>,
}

/// A checked method.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    pub(crate) docs: Vec<Attribute>,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) cx: Type,
    pub(crate) is_idempotent: bool,
    /// What writes its values.
    pub(crate) codec: TokenStream,
    /// That is the method's own, not the service's.
    has_own_codec: bool,
    /// Those of the attributes that may leave it out.
    pub(crate) cfgs: Vec<Attribute>,
    /// Its place in the table of methods, where none is left out.
    index: Literal,
    /// The enum that counts those that are not left out, where one may be.
    pub(crate) places: Option<Ident>,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    /// The declaration as it stands.
    Raw(Box<syn::Signature>),
    Async {
        arguments: Vec<Argument>,
        result: Answer,
        is_oneway: bool,
        /// Run to completion where the request landed: not a future.
        is_inline: bool,
    },
}

pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) is_bulk: bool,
    /// `T` of `Stream<T>`.
    pub(crate) stream: Option<Type>,
    /// `T` of `Sink<T>`.
    pub(crate) sink: Option<Type>,
}

impl Argument {
    /// Whether the codec writes it.
    pub(crate) const fn is_encoded(&self) -> bool {
        !self.is_bulk && self.stream.is_none() && self.sink.is_none()
    }
}

/// A method's result, by its spelling.
pub(crate) struct Answer {
    /// As spelled.
    pub(crate) ty: TokenStream,
    /// The answer: `T` of `Result<T, E>`, or the whole.
    pub(crate) value: TokenStream,
    /// `E`.
    pub(crate) error: Option<TokenStream>,
    /// `T` of `WithLoan<T>`.
    pub(crate) is_loan: bool,
    /// Bytes, which the codec copies at once.
    pub(crate) is_bytes: bool,
}

/// Serde knows tuples of so many.
const ARGUMENTS_MAX: usize = 16;

/// Names that a generated client needs for itself.
const RESERVED: [&str; 4] = ["new", "channel", "options", "with_options"];

fn split_docs(attributes: Vec<Attribute>) -> (Vec<Attribute>, Vec<Attribute>) {
    attributes.into_iter().partition(|attribute| attribute.path().is_ident("doc"))
}

impl Service {
    pub(crate) fn new(options: Options, item: ItemTrait) -> Result<Self> {
        if !item.generics.params.is_empty() {
            return wrong(&item.generics, "a service trait has no generics: it is one thing on the wire");
        }
        if let Some(auto) =
            item.auto_token.map(|auto| auto.span()).or_else(|| item.unsafety.map(|unsafety| unsafety.span()))
        {
            return Err(Error::new(auto, "a service is a plain trait"));
        }
        let krate = options.krate.map_or_else(|| quote!(::gimmal), |path| quote!(#path));
        let private = quote!(#krate::__macro);
        let codec = options.codec.map_or_else(|| quote!(#private::Postcard), |codec| quote!(#codec));
        let mut methods = Vec::new();
        let mut complaints: Option<Error> = None;
        for item in item.items {
            let method = match item {
                TraitItem::Fn(method) => Method::new(method, methods.len(), &codec),
                other => wrong(&other, "a service trait has methods only"),
            };
            match (method, &mut complaints) {
                (Ok(method), _) => methods.push(method),
                (Err(error), Some(complaints)) => complaints.combine(error),
                (Err(error), none) => *none = Some(error),
            }
        }
        if let Some(complaints) = complaints {
            return Err(complaints);
        }
        pipelines_are_free(&methods)?;
        if methods.iter().any(|method: &Method| !method.cfgs.is_empty()) {
            let places = format_ident!("__{}Methods", item.ident);
            methods.iter_mut().for_each(|method| method.places = Some(places.clone()));
        }
        if methods.is_empty() {
            return wrong(&item.ident, "a service needs at least one method");
        }
        let (docs, attributes) = split_docs(item.attrs);
        let name = options.name.map_or_else(|| item.ident.to_string(), |name| name.value());
        let supertraits = item.supertraits.to_token_stream();
        Ok(Self {
            private,
            name,
            ident: item.ident,
            vis: item.vis,
            docs,
            attributes,
            supertraits,
            is_mocked: options.is_mocked,
            is_local: options.is_local,
            methods,
        })
    }
}

impl Service {
    /// The names of its methods, each with the conditions under which it exists.
    pub(crate) fn names(&self) -> Vec<TokenStream> {
        let name = |Method { ident, cfgs, .. }: &Method| {
            let text = ident.to_string();
            quote!(#(#cfgs)* #text)
        };
        self.methods.iter().map(name).collect()
    }

    /// How many methods it has, as an expression: a method may be compiled out.
    pub(crate) fn count(&self) -> TokenStream {
        let (count, names) = (self.methods.len(), self.names());
        match self.methods.first().and_then(|method| method.places.as_ref()) {
            None => quote!(#count),
            Some(_) => quote!({ <[&str]>::len(&[#(#names),*]) }),
        }
    }
}

impl Method {
    /// Its place in the table of methods.
    pub(crate) fn index(&self) -> TokenStream {
        let Self { index, ident, places, .. } = self;
        places.as_ref().map_or_else(|| quote!(#index), |places| quote!(#places::#ident as usize))
    }

    /// What comes before the arrow of its arm, where `gimmal_method` is matched.
    pub(crate) fn arm(&self) -> TokenStream {
        let (index, cfgs) = (self.index(), &self.cfgs);
        match &self.places {
            None => quote!(#index),
            Some(_) => quote!(#(#cfgs)* _ if gimmal_method == (#index)),
        }
    }

    /// Whether values of `ty` are bytes that the codec copies at once. A method's own codec takes every type as it is.
    pub(crate) fn copies_at_once(&self, ty: &Type) -> bool {
        !self.has_own_codec && is_bytes(ty)
    }

    fn new(method: TraitItemFn, index: usize, codec: &TokenStream) -> Result<Self> {
        let TraitItemFn { mut attrs, sig, default, .. } = method;
        if let Some(body) = default {
            return wrong(&body, "a service method has no body here; implement it");
        }
        if RESERVED.contains(&sig.ident.to_string().as_str()) {
            let what = format!("`{}` is taken in the generated client; choose another name", sig.ident);
            return wrong(&sig.ident, what);
        }
        if !sig.generics.params.is_empty() {
            return wrong(&sig.generics, "a service method has no generics: its types are its wire format");
        }
        let mut take = |name: &str| -> Vec<Attribute> {
            attrs.extract_if(.., |attribute| attribute.path().is_ident(name)).collect()
        };
        let (raw, oneway, inline) = (take("raw"), take("oneway"), take("inline"));
        let (idempotent, own) = (take("idempotent"), take("codec"));
        let own = own_codec(&own, !raw.is_empty())?;
        let (docs, attributes) = split_docs(attrs);
        let last =
            |attribute: &Attribute| attribute.path().segments.last().map(|last| last.ident.to_string());
        if let Some(other) =
            attributes.iter().find(|attribute| last(attribute).as_deref() == Some("instrument"))
        {
            return wrong(other, "a service method has no body here; put this on its implementation");
        }
        let (cx, arguments) = inputs(&sig)?;
        if let (Some(oneway), false) = (oneway.first(), raw.is_empty()) {
            return wrong(&oneway, "a raw method is answered: it cannot be one-way");
        }
        let kind = if raw.is_empty() {
            let (is_inline, is_oneway) = (!inline.is_empty(), !oneway.is_empty());
            if sig.asyncness.is_some() == is_inline {
                let what = "a service method is `async fn`, `#[inline] fn`, or `#[raw] fn` with (cx, request: &[u8], answer: &mut ResponseWriter<'_>)";
                return wrong(&sig.fn_token, what);
            }
            let argument = |input| Argument::new(input, is_inline);
            let arguments: Vec<Argument> = arguments.into_iter().map(argument).collect::<Result<_>>()?;
            let mut result = Answer::new(&sig.output)?;
            result.is_bytes &= own.is_none();
            if let Some(one) = arguments.iter().filter(|argument| argument.is_encoded()).nth(ARGUMENTS_MAX) {
                let what = format!("at most {ARGUMENTS_MAX} arguments a method: put some into a struct");
                return wrong(&one.ident, what);
            }
            async_shape(&arguments, &result, &sig, is_oneway)?;
            if is_inline {
                inline_shape(&arguments, &result, &sig, is_oneway)?;
            }
            Kind::Async { arguments, result, is_oneway, is_inline }
        } else {
            raw_shape(&sig, arguments.len())?;
            Kind::Raw(Box::new(sig.clone()))
        };
        Ok(Self {
            ident: sig.ident,
            docs,
            cfgs: attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned().collect(),
            places: None,
            attributes,
            cx,
            is_idempotent: !idempotent.is_empty(),
            has_own_codec: own.is_some(),
            codec: own.map_or_else(|| codec.clone(), ToTokens::into_token_stream),
            index: Literal::usize_unsuffixed(index),
            kind,
        })
    }
}

/// The client has a `NAME_pipeline` for each raw method.
fn pipelines_are_free(methods: &[Method]) -> Result<()> {
    for raw in methods.iter().filter(|method| matches!(method.kind, Kind::Raw(_))) {
        let pipeline = format!("{}_pipeline", raw.ident.unraw());
        if let Some(other) = methods.iter().find(|method| method.ident == pipeline) {
            let what = format!(
                "`{pipeline}` is what `{}` has in the generated client; choose another name",
                raw.ident
            );
            return wrong(&other.ident, what);
        }
    }
    Ok(())
}

/// `Type` of `#[codec(Type)]`.
fn own_codec(attributes: &[Attribute], is_raw: bool) -> Result<Option<Type>> {
    let Some(first) = attributes.first() else { return Ok(None) };
    if let (Some(other), _) | (None, Some(other)) = (attributes.get(1), is_raw.then_some(first)) {
        let what = "one codec a method, and none for a raw one: it is bytes already";
        return wrong(&other, what);
    }
    first.parse_args().map(Some).map_err(|error| Error::new(error.span(), "spell it `#[codec(Type)]`"))
}

fn async_shape(arguments: &[Argument], result: &Answer, sig: &syn::Signature, is_oneway: bool) -> Result<()> {
    let second = |is: fn(&Argument) -> bool| arguments.iter().filter(|argument| is(argument)).nth(1);
    if let Some(second) = second(|argument| argument.is_bulk) {
        return wrong(&second.ty, "one bulk argument a method: one message carries one loan");
    }
    let twice = second(|argument| argument.stream.is_some()).or_else(|| second(|a| a.sink.is_some()));
    if let Some(second) = twice {
        let what = "at most one `Stream<T>` and one `Sink<T>` a method: a call has two directions";
        return wrong(&second.ty, what);
    }
    let streams = arguments.iter().any(|argument| argument.stream.is_some() || argument.sink.is_some());
    if let Some(bulk) = arguments.iter().find(|argument| argument.is_bulk)
        && (streams || is_oneway)
    {
        let what = "a method with streams, or a one-way one, takes no bulk";
        return wrong(&bulk.ty, what);
    }
    if is_oneway && streams {
        return wrong(&sig.ident, "a one-way method has no streams: nobody waits for it");
    }
    if is_oneway && !matches!(&sig.output, ReturnType::Default) {
        return wrong(&sig.output, "a one-way method returns nothing: nobody hears it");
    }
    if streams && result.is_loan {
        return wrong(&sig.output, "a method with streams returns no loan");
    }
    Ok(())
}

fn inline_shape(
    arguments: &[Argument],
    result: &Answer,
    sig: &syn::Signature,
    is_oneway: bool,
) -> Result<()> {
    if is_oneway {
        return wrong(&sig.ident, "an inline method is answered: it cannot be one-way");
    }
    if let Some(other) = arguments.iter().find(|argument| !argument.is_encoded()) {
        let what = "an inline method takes no bulk and no streams: it does not wait; make it `async fn`";
        return wrong(&other.ty, what);
    }
    if result.is_loan {
        return wrong(&sig.output, "an inline method returns no loan; make it `async fn`");
    }
    Ok(())
}

fn raw_shape(sig: &syn::Signature, arguments: usize) -> Result<()> {
    if let Some(asyncness) = sig.asyncness {
        return wrong(&asyncness, "a raw method runs to completion on the worker: it is not async");
    }
    if arguments != 2 {
        let what =
            "a raw method is `fn name(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>)`";
        return wrong(&sig.inputs, what);
    }
    Ok(())
}

/// `&self`, `cx: &Cx`, and the rest.
fn inputs(sig: &syn::Signature) -> Result<(Type, Vec<syn::PatType>)> {
    let mut inputs = sig.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(receiver)) if receiver.reference.is_some() && receiver.mutability.is_none() => {}
        other => {
            let span = other.map_or_else(|| sig.ident.span(), Spanned::span);
            return Err(Error::new(span, "a service method takes `&self`: calls run side by side"));
        }
    }
    let cx = match inputs.next() {
        Some(FnArg::Typed(cx)) if is_reference_to(&cx.ty, "Cx") => (*cx.ty).clone(),
        other => {
            let span = other.map_or_else(|| sig.ident.span(), Spanned::span);
            return Err(Error::new(span, "a service method's second parameter is `cx: &Cx`"));
        }
    };
    let rest = inputs.filter_map(|input| match input {
        FnArg::Typed(typed) => Some(typed.clone()),
        FnArg::Receiver(_) => None,
    });
    Ok((cx, rest.collect()))
}

/// Whether a type is spelled `Vec<u8>` or `&[u8]`.
fn is_bytes(ty: &Type) -> bool {
    let is_byte = |ty: &Type| matches!(ty, Type::Path(path) if path.path.is_ident("u8"));
    match ty {
        Type::Reference(reference) => matches!(&*reference.elem, Type::Slice(slice) if is_byte(&slice.elem)),
        ty => last_segment(ty).is_some_and(|last| {
            last.ident == "Vec" && matches!(*type_arguments(last), [item] if is_byte(item))
        }),
    }
}

fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

fn is_reference_to(ty: &Type, name: &str) -> bool {
    matches!(ty, Type::Reference(reference) if reference.mutability.is_none()
        && last_segment(&reference.elem).is_some_and(|segment| segment.ident == name))
}

impl Argument {
    fn new(input: syn::PatType, may_borrow: bool) -> Result<Self> {
        let Pat::Ident(pattern) = &*input.pat else {
            return wrong(&input.pat, "a service method's parameters are plain names");
        };
        match &*input.ty {
            Type::Reference(reference) if !may_borrow || reference.mutability.is_some() => {
                let what = "arguments are owned values (String, Vec<u8>, ...): they outlive the message they came in; those of an `#[inline] fn` may borrow from it";
                return wrong(&reference, what);
            }
            Type::ImplTrait(generic) => {
                return wrong(&generic, "name the type: it is the wire format");
            }
            _ => {}
        }
        let is_bulk = last_segment(&input.ty)
            .is_some_and(|segment| segment.ident == "Bulk" && segment.arguments.is_empty());
        let item = |name: &str| {
            let segment = last_segment(&input.ty).filter(|segment| segment.ident == name)?;
            let types = type_arguments(segment);
            (types.len() == 1).then(|| types[0].clone())
        };
        let (stream, sink) = (item("Stream"), item("Sink"));
        Ok(Self { ident: pattern.ident.clone(), stream, sink, ty: *input.ty, is_bulk })
    }
}

fn type_arguments(segment: &syn::PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return Vec::new() };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

impl Answer {
    fn new(output: &ReturnType) -> Result<Self> {
        let ReturnType::Type(_, ty) = output else {
            return Ok(Self {
                ty: quote!(()),
                value: quote!(()),
                error: None,
                is_loan: false,
                is_bytes: false,
            });
        };
        if let Type::Reference(reference) = &**ty {
            return wrong(&reference, "a result is an owned value");
        }
        if let Type::ImplTrait(generic) = &**ty {
            return wrong(&generic, "name the type: it is the wire format");
        }
        let result = last_segment(ty).filter(|segment| segment.ident == "Result");
        let (value, error) = match result.map(type_arguments).as_deref() {
            None => (&**ty, None),
            Some([value, error]) => (*value, Some(error.to_token_stream())),
            Some(_) => {
                let what = "spell it `Result<T, E>`: both types are the wire format";
                return wrong(&ty, what);
            }
        };
        if let Some(segment) =
            last_segment(value).filter(|segment| matches!(&*segment.ident.to_string(), "Sink" | "Stream"))
        {
            let what = format!(
                "a stream is an argument: `down: Sink<T>` to the caller, `up: Stream<T>` from it; the result, if any, comes after its \
                 items. Write the `{}` there",
                segment.ident
            );
            return wrong(&value, what);
        }
        let loan = last_segment(value).filter(|segment| segment.ident == "WithLoan");
        if let Some(segment) = loan
            && type_arguments(segment).len() != 1
        {
            return wrong(&value, "spell it `WithLoan<T>`");
        }
        let (is_loan, is_bytes) = (loan.is_some(), is_bytes(value));
        Ok(Self { ty: ty.to_token_stream(), value: value.to_token_stream(), error, is_loan, is_bytes })
    }
}
