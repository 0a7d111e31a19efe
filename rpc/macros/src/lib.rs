//! `#[service]`: from a trait to a server's dispatcher and a typed client.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod client;
mod generate;
mod mock;
mod model;
mod server;
mod shape;
mod spell;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Makes a service of a trait.
///
/// ```text
/// #[gimmal::service]
/// pub trait Counter {
///     /// Adds `by` and returns the sum.
///     async fn add(&self, cx: &Cx, by: u64) -> Result<u64, Overflow>;
///     /// Runs to completion on the worker; reads and writes in place.
///     #[raw]
///     fn peek(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
/// }
/// ```
///
/// It keeps the trait (its futures are `Send`, implementations may write `async fn`), and adds
/// - `serve_counter(implementation)`, to be given to a server, and its type `CounterServer`;
/// - `CounterClient<C>`, with a method for each of the trait's, over any channel.
///
/// A method with `#[inline]` is a plain `fn` that runs to completion on the worker: its arguments may borrow (`&str`,
/// `&[u8]`, a type with a lifetime) and then lie where the request landed; it must not block.
///
/// Arguments of other methods and results are owned values that the service's codec can carry. An argument of type `Bulk` and a result
/// of type `WithLoan<T>` travel beside the codec: the client gives a `Loan` and gets a `WithLoan<T, Bulk>`.
///
/// An argument of type `Stream<T>` is a stream of items from the caller, one of type `Sink<T>` a stream to it; the
/// client's method then gives its ends and the call: `(Sink<T>, Stream<U>, StreamCall)`. A method with `#[oneway]` is not
/// answered; its call ends when the request has left. A method with `#[idempotent]` may be made again by
/// layers although it may have run. A method with `#[codec(Type)]` has that codec in place of the service's: its only
/// argument, its answer and its error are written by it as they are, so that `#[codec(Raw)]` is for methods whose values are
/// bytes.
///
/// With `#[service(mock)]` there is a `MockCounter` too, for tests of callers: each of its methods does what was
/// set, an async function of the arguments or, for an inline or raw method, a plain one:
/// `MockCounter::new().add(|by| async move { Ok(by + 1) })`. Serve it over `mem://`.
///
/// With `#[service(local)]` neither the implementation nor its futures are `Send`: they may hold an `Rc`, or spawn local tasks.
/// A server on the calling thread serves it (`ServerBuilder::listen_local`); one with worker threads refuses to start.
///
/// Options: `#[service(codec = Bincode)]` (default `Postcard`), `#[service(name = "counter.v2")]` (default the trait's
/// name; part of every method's id), `#[service(crate = path)]`, `#[service(mock)]`, `#[service(local)]`.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as model::Options);
    let item = parse_macro_input!(item as syn::ItemTrait);
    let expanded = model::Service::new(options, item).map(|service| generate::expand(&service));
    expanded.unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Tells the two sides of a call what serde's derives write for a type; see `gimmal::Shape`.
///
/// Put it beside `Serialize` and `Deserialize`. It reads the attributes of serde: names, order and kinds of fields and
/// variants are part of the shape, and attributes that only codecs with named fields can carry are noted. What it cannot
/// tell is refused by name.
///
/// Its own attributes: `#[shape(opaque = "name@1")]` on a type or a field compares a name and a version in place of what is
/// inside, `#[shape(as = "Type")]` on a field says that it is written as that type, `#[shape(crate = path)]` names the crate.
#[proc_macro_derive(Shape, attributes(shape, serde))]
pub fn shape(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::DeriveInput);
    shape::derive(&item).unwrap_or_else(|error| error.into_compile_error()).into()
}
