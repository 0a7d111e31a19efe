//! What the macro says about a trait that is no service, and what it makes of one that is.

use quote::quote;

use crate::{
    generate::expand,
    model::{Options, Service},
};

fn service(options: &str, item: &str) -> syn::Result<Service> {
    let options: Options = syn::parse_str(options)?;
    Service::new(options, syn::parse_str(item)?)
}

/// The complaints about a trait with this one method, or these.
fn complaints(methods: &str) -> Vec<String> {
    let error = service("", &format!("trait Greeter {{ {methods} }}")).err();
    error.into_iter().flatten().map(|error| error.to_string()).collect()
}

#[test]
fn every_complaint_says_what_to_write_instead() {
    for (methods, complaint) in [
        ("fn m(&self, cx: &Cx);", "a service method is `async fn`, `#[inline] fn`, or `#[raw] fn`"),
        ("#[inline] async fn m(&self, cx: &Cx);", "a service method is `async fn`, `#[inline] fn`"),
        ("#[inline] fn m(&self, cx: &Cx, name: &mut str);", "may borrow from it"),
        ("#[inline] fn m(&self, cx: &Cx, bytes: Bulk);", "takes no bulk and no streams"),
        ("#[inline] fn m(&self, cx: &Cx) -> WithLoan<u8>;", "returns no loan"),
        ("#[inline] #[oneway] fn m(&self, cx: &Cx);", "cannot be one-way"),
        ("async fn m(&self, name: String);", "second parameter is `cx: &Cx`"),
        ("async fn m(&self, cx: &mut Cx);", "second parameter is `cx: &Cx`"),
        ("async fn m(&mut self, cx: &Cx);", "takes `&self`"),
        ("async fn m(self, cx: &Cx);", "takes `&self`"),
        ("async fn m(cx: &Cx);", "takes `&self`"),
        ("async fn m(&self, cx: &Cx, name: &str);", "arguments are owned values"),
        ("async fn m(&self, cx: &Cx, (a, b): (u8, u8));", "parameters are plain names"),
        ("async fn m(&self, cx: &Cx, name: impl Display);", "name the type"),
        ("async fn m(&self, cx: &Cx) -> &str;", "a result is an owned value"),
        ("async fn m(&self, cx: &Cx) -> impl Display;", "name the type"),
        ("async fn m(&self, cx: &Cx) -> std::io::Result<u8>;", "spell it `Result<T, E>`"),
        ("async fn m(&self, cx: &Cx) -> WithLoan;", "spell it `WithLoan<T>`"),
        ("async fn m(&self, cx: &Cx) -> Sink<u8>;", "a stream is an argument: `down: Sink<T>`"),
        (
            "async fn m(&self, cx: &Cx) -> Result<gimmal::Stream<u8>, E>;",
            "a stream is an argument: `down: Sink<T>`",
        ),
        ("async fn m<T>(&self, cx: &Cx, value: T);", "has no generics"),
        ("async fn m(&self, cx: &Cx, one: Bulk, two: Bulk);", "one bulk argument a method"),
        ("async fn m(&self, cx: &Cx, one: Stream<u8>, two: Stream<u8>);", "at most one `Stream<T>` and one"),
        ("async fn m(&self, cx: &Cx, one: Sink<u8>, two: Bulk);", "takes no bulk"),
        ("#[oneway] async fn m(&self, cx: &Cx) -> u8;", "a one-way method returns nothing"),
        ("#[oneway] async fn m(&self, cx: &Cx, one: Sink<u8>);", "a one-way method has no streams"),
        (
            "#[oneway] #[raw] fn m(&self, cx: &Cx, a: &[u8], b: &mut ResponseWriter<'_>);",
            "it cannot be one-way",
        ),
        (
            "#[codec(Raw)] #[raw] fn m(&self, cx: &Cx, a: &[u8], b: &mut ResponseWriter<'_>);",
            "it is bytes already",
        ),
        ("#[codec(A)] #[codec(B)] async fn m(&self, cx: &Cx);", "one codec a method"),
        ("#[codec = 1] async fn m(&self, cx: &Cx);", "spell it `#[codec(Type)]`"),
        ("async fn m(&self, cx: &Cx) {}", "has no body here"),
        ("async fn new(&self, cx: &Cx);", "`new` is taken in the generated client"),
        ("#[raw] async fn m(&self, cx: &Cx, a: &[u8], b: &mut ResponseWriter<'_>);", "it is not async"),
        ("#[raw] fn m(&self, cx: &Cx, a: &[u8]);", "a raw method is `fn name("),
        ("const N: u8;", "methods only"),
        ("", "at least one method"),
    ] {
        let complaints = complaints(methods);
        assert!(complaints.len() == 1 && complaints[0].contains(complaint), "{methods}: {complaints:?}");
    }
}

#[test]
fn all_complaints_come_at_once() {
    assert_eq!(complaints("fn a(&self, cx: &Cx); async fn b(&self); type T;").len(), 3);
}

#[test]
fn traits_and_options_are_checked_too() {
    let complaint =
        |options, item| service(options, item).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(complaint("", "trait T<A> { async fn m(&self, cx: &Cx); }").contains("has no generics"));
    assert!(complaint("", "unsafe trait T { async fn m(&self, cx: &Cx); }").contains("a plain trait"));
    assert!(complaint("codecs = Raw", "trait T {}").contains("unknown option"));
}

#[test]
fn a_service_has_a_trait_a_server_and_a_client() {
    let item = "/// Keeps.\npub trait FileStore: Sized { /// Reads.\nasync fn read(&self, cx: &Cx, path: Vec < u8 >) -> Result<WithLoan<u64>, E>; }";
    let made =
        expand(&service("codec = Bincode, name = \"files.v1\", crate = crate", item).expect("it is good"));
    let with_mock = expand(&service("mock", item).expect("it is good")).to_string();
    let file: syn::File = syn::parse2(made.clone()).expect("it is Rust");
    assert!(file.items.len() >= 7);
    let text = made.to_string();
    for part in [
        "serve_file_store",
        "FileStoreServer",
        "FileStoreClient",
        "\"files.v1\"",
        "\"(Vec<u8>) -> Result<WithLoan<u64>, E>\"",
        "with_bulk (false , true)",
        "\" Keeps.\"",
        "\" Reads.\"",
        "Fallible < WithLoan < u64 > , E >",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(with_mock.contains("MockFileStore") && !text.contains("Mock"));
}

#[test]
fn names_and_spellings() {
    for (name, snake) in
        [("Echo", "echo"), ("FileStore", "file_store"), ("KVStore", "kv_store"), ("A1B", "a1_b")]
    {
        assert_eq!(crate::spell::snake(name), snake);
    }
    let spelled = |tokens| crate::spell::spelled(&tokens);
    assert_eq!(spelled(quote!(Vec<(u8, &'static str)>)), "Vec<(u8, &'static str)>");
    assert_eq!(spelled(quote!(dyn Send)), "dyn Send");
}
