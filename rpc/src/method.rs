//! What is known of a method before any call: names, stable id, signature.

use std::fmt;

use gimmal_engine::transport::pack::{high_half, low_half};

use crate::{
    error::Mismatch,
    id::hash_pair,
    shape::{Form, Schema},
};

/// Most bytes of a schema that travels. The types of methods with longer ones must be the same.
const SCHEMA_BYTES_MAX: usize = 12 << 10;

/// How a method's handler is run on its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MethodKind {
    /// Run to completion on the worker: request read in place, answer written in place.
    Raw,
    /// A future, polled on the worker.
    Async,
}

/// A method of a service. The macro makes one for each, when the service is first used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Method {
    /// The service's name.
    pub service: &'static str,
    /// The method's name.
    pub name: &'static str,
    /// Stable hash of both: the method's name on the wire.
    pub id: u32,
    /// Types as spelled in the trait.
    pub signature: &'static str,
    /// The codec's name.
    pub codec: &'static str,
    /// Stable hash of the codec and of the types as it writes them, which both sides compare. Where there is no schema, of
    /// signature and codec as spelled.
    pub signature_hash: u32,
    /// The types as the codec writes them. A method without one, such as a raw method, is compared as spelled.
    pub schema: Option<&'static Schema>,
    /// What the codec writes of them.
    pub form: Form,
    /// How it is run.
    pub kind: MethodKind,
    /// Whether an argument is bulk: brought before the handler is called.
    pub takes_bulk: bool,
    /// Whether the answer may come with bulk.
    pub gives_bulk: bool,
    /// Whether there is no answer.
    pub is_oneway: bool,
    /// Whether running it twice does no more than running it once.
    pub is_idempotent: bool,
    /// Whether the caller sends a stream of items.
    pub streams_up: bool,
    /// Whether the handler does.
    pub streams_down: bool,
}

impl Method {
    /// Makes a method of its service, its name, its signature, its codec and its kind, for services by hand.
    #[must_use]
    pub const fn new(
        service: &'static str,
        name: &'static str,
        signature: &'static str,
        codec: &'static str,
        kind: MethodKind,
    ) -> Self {
        let id = hash_pair(service, name);
        let signature_hash = hash_pair(signature, codec);
        Self {
            service,
            name,
            id,
            signature,
            codec,
            signature_hash,
            schema: None,
            form: Form::Bytes,
            kind,
            takes_bulk: false,
            gives_bulk: false,
            is_oneway: false,
            is_idempotent: false,
            streams_up: false,
            streams_down: false,
        }
    }

    /// Adds a bulk argument, a bulk result, or both.
    #[must_use]
    pub const fn with_bulk(mut self, takes: bool, gives: bool) -> Self {
        self.takes_bulk = takes;
        self.gives_bulk = gives;
        self
    }

    /// Makes the method one-way: it has no answer, and its call ends when the request has left.
    #[must_use]
    pub const fn one_way(mut self) -> Self {
        self.is_oneway = true;
        self
    }

    /// Marks the method as idempotent: a layer may repeat a call that may have run.
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// Sets whether the caller sends a stream of items (`up`), and whether the handler does (`down`).
    #[must_use]
    pub const fn with_streams(mut self, up: bool, down: bool) -> Self {
        self.streams_up = up;
        self.streams_down = down;
        self
    }

    /// Adds the types as the codec writes them, which both sides compare.
    #[must_use]
    pub fn with_schema(mut self, form: Form, schema: &'static Schema) -> Self {
        let mut hash = schema.fingerprint(form);
        for byte in self.codec.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.signature_hash = high_half(hash) ^ low_half(hash);
        self.schema = Some(schema);
        self.form = form;
        self
    }

    /// Returns why the codec cannot carry the method's types, if it cannot.
    #[must_use]
    pub fn unfit(&self) -> Option<String> {
        self.schema?.unfit(self.form)
    }

    /// The types that a server may read although it has others, if they are not too long.
    pub(crate) fn described(&self) -> Option<Vec<u8>> {
        let schema = self.schema.filter(|_| self.form == Form::Named)?;
        schema.to_bytes(SCHEMA_BYTES_MAX)
    }

    /// What a refused caller is told: [`Method::spelled`], and behind a zero the schema if it is not too long.
    pub(crate) fn declared(&self) -> String {
        let spelled = self.spelled();
        match self.schema.and_then(|schema| schema.to_text(SCHEMA_BYTES_MAX)) {
            Some(schema) => format!("{spelled}\0{schema}"),
            None => spelled,
        }
    }

    /// How a server's declaration, made by [`Method::declared`], differs from this one.
    pub(crate) fn mismatch(&self, declared: &str) -> Mismatch {
        let (theirs, schema) = declared.split_once('\0').unwrap_or((declared, ""));
        let difference = self
            .schema
            .zip(Schema::from_text(schema))
            .and_then(|(ours, theirs)| ours.difference(&theirs, self.form));
        let (method, ours) = (self.to_string(), self.spelled());
        Mismatch { method, ours, theirs: theirs.to_owned(), difference: difference.unwrap_or_default() }
    }

    /// Returns signature and codec, for people on the other side.
    #[must_use]
    pub fn spelled(&self) -> String {
        format!("{}{} [{}]", self.name, self.signature, self.codec)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.service, self.name)
    }
}

/// Whether no two methods of a service have the same id. The macro asks at compile time.
#[must_use]
pub const fn ids_are_distinct(service: &str, methods: &[&str]) -> bool {
    let mut first = 0;
    while first < methods.len() {
        let mut second = first + 1;
        while second < methods.len() {
            if hash_pair(service, methods[first]) == hash_pair(service, methods[second]) {
                return false;
            }
            second += 1;
        }
        first += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;
    use crate::{codec::Postcard, shape::Describing};

    #[test]
    fn no_property_of_a_method_undoes_another() {
        let calls: &[BuilderCall<Method>] = &[
            ("with_bulk", |method| method.with_bulk(true, false)),
            ("one_way", Method::one_way),
            ("idempotent", Method::idempotent),
            ("with_streams", |method| method.with_streams(true, false)),
            ("with_schema", |method| {
                method.with_schema(Form::Positional, Describing::<Postcard>::default().answer::<u8>().done())
            }),
        ];
        let fresh = || Method::new("Echo", "echo", "()", "postcard", MethodKind::Async);
        no_call_undoes_another(fresh, calls, |method| format!("{method:?}"));
    }

    #[test]
    fn golden_ids_never_change() {
        let method = Method::new("Echo", "echo", "(String) -> String", "postcard", MethodKind::Async);
        assert_eq!((method.id, method.signature_hash), (0xff77_841f, 0x5ccc_ff25));
        assert_eq!(method.to_string(), "Echo.echo");
        assert_eq!(method.spelled(), "echo(String) -> String [postcard]");
        let bincode = Method::new("Echo", "echo", "(String) -> String", "bincode", MethodKind::Async);
        assert_ne!(bincode.signature_hash, method.signature_hash);
        assert!(!ids_are_distinct("Echo", &["echo", "echo"]) && ids_are_distinct("Echo", &["echo", "other"]));
    }
}
