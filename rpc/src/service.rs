//! What can be served, and how a request finds it.

use std::{fmt, sync::Arc};

use gimmal_engine::transport::Bulk;

pub use crate::{
    output::{Fallible, Plain},
    task::Seat,
};

use crate::{
    admission::Admitted, cx::Cx, error::ServeError, method::Method, response_writer::ResponseWriter,
    status::Status,
};

/// A service as the server sees it, which `#[service]` implements. Its methods are called on the server's workers.
///
/// ```
#[doc = include_str!("doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gimmal::Service;
///
/// let service = serve_hello(Greeter); // made by `#[service]` on the trait `Hello`
/// assert_eq!(service.methods()[0].name, "hello");
/// let server = gimmal::Server::builder().service(service).listen("mem://doc-service")?;
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub trait Service: Send + Sync + 'static {
    /// Returns its methods, always the same. Their places are the `method` of the other functions.
    fn methods(&self) -> &'static [Method];

    /// Returns whether the calling thread is the one that made it, for a service that is called on that thread only. Other services
    /// return `None`.
    ///
    /// A service around another one hands this on to it.
    fn is_local(&self) -> Option<bool> {
        None
    }

    /// Judges a call whose bulk, or whose large arguments, have not been brought yet. It runs on the worker and must not block.
    /// What it returns is kept until they are here, for [`Cx::take_admitted`] in the methods below. Calls without bulk are not judged
    /// beforehand.
    ///
    /// A service around another one hands this on to it.
    ///
    /// # Errors
    /// The caller gets this status, made with [`Status::refused`], and nothing is brought.
    fn admit(&self, method: usize, cx: &Cx) -> Result<Option<Admitted>, Status> {
        let _ = (method, cx);
        Ok(None)
    }

    /// Runs a method of kind [`Raw`](crate::MethodKind::Raw) to its end, on the worker: it must not block.
    ///
    /// # Errors
    /// A status goes in place of the answer.
    fn call_raw(
        &self,
        method: usize,
        cx: &Cx,
        request: &[u8],
        answer: &mut ResponseWriter<'_>,
    ) -> Result<(), Status>;

    /// Decodes the arguments of a method of kind [`Async`](crate::MethodKind::Async) and puts its future into `seat`.
    ///
    /// # Errors
    /// A status with [`Fate::NotRun`](crate::Fate::NotRun) when the arguments cannot be decoded.
    fn start(
        &self,
        method: usize,
        cx: Cx,
        arguments: &[u8],
        bulk: Option<Bulk>,
        seat: &mut Seat,
    ) -> Result<(), Status>;
}

/// A method that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) method: &'static Method,
    service: u32,
    index: u32,
    /// Among all methods of the server.
    number: u32,
}

impl Entry {
    pub(crate) const fn index(&self) -> usize {
        self.index as usize
    }

    pub(crate) const fn number(&self) -> usize {
        self.number as usize
    }
}

/// Every method of a server, fixed when it starts: open addressing over the stable ids.
#[derive(Default)]
pub(crate) struct Registry {
    services: Vec<Arc<dyn Service>>,
    table: Vec<Option<Entry>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.table.iter().flatten().map(|entry| entry.method)).finish()
    }
}

impl Registry {
    pub(crate) fn new(services: Vec<Arc<dyn Service>>) -> Result<Self, ServeError> {
        let count: usize = services.iter().map(|service| service.methods().len()).sum();
        let mut number = 0;
        let mut registry = Self { table: vec![None; (count * 2 + 1).next_power_of_two()], services };
        for (at, service) in (0u32..).zip(&registry.services) {
            for (index, method) in (0u32..).zip(service.methods()) {
                if let Some(attribute) = method.unfit() {
                    let (method, codec) = (method.to_string(), method.codec);
                    return Err(ServeError::Unfit { method, codec, attribute });
                }
                let entry = Entry { method, service: at, index, number };
                number += 1;
                let place = place(&registry.table, method.id);
                if let Some(other) = registry.table[place].replace(entry) {
                    return Err(ServeError::DuplicateMethod {
                        first: other.method.to_string(),
                        second: method.to_string(),
                        id: method.id,
                    });
                }
            }
        }
        Ok(registry)
    }

    /// All methods.
    pub(crate) fn methods(services: &[Arc<dyn Service>]) -> impl Iterator<Item = &'static Method> {
        services.iter().flat_map(|service| service.methods())
    }

    /// How many methods there are.
    pub(crate) fn len(&self) -> usize {
        self.table.iter().flatten().count()
    }

    #[inline]
    pub(crate) fn find(&self, id: u32) -> Option<Entry> {
        if self.table.is_empty() { None } else { self.table[place(&self.table, id)] }
    }

    #[inline]
    pub(crate) fn service(&self, entry: &Entry) -> &dyn Service {
        &*self.services[entry.service as usize]
    }
}

/// Where `id` is, or would be: never full, so there is always a place.
#[inline]
fn place(table: &[Option<Entry>], id: u32) -> usize {
    let mask = table.len() - 1;
    let mut at = id as usize & mask;
    while table[at].is_some_and(|entry| entry.method.id != id) {
        at = (at + 1) & mask;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::MethodKind;

    struct Fixed(&'static [Method]);

    impl Service for Fixed {
        fn methods(&self) -> &'static [Method] {
            self.0
        }

        fn call_raw(&self, _: usize, _: &Cx, _: &[u8], _: &mut ResponseWriter<'_>) -> Result<(), Status> {
            Ok(())
        }

        fn start(&self, _: usize, _: Cx, _: &[u8], _: Option<Bulk>, _: &mut Seat) -> Result<(), Status> {
            Err(Status::refused(crate::Code::Internal, ""))
        }
    }

    const fn method(service: &'static str, name: &'static str) -> Method {
        Method::new(service, name, "()", "raw", MethodKind::Raw)
    }

    const A: &[Method] = &[method("A", "one"), method("A", "two"), method("A", "three")];
    const B: &[Method] = &[method("B", "one")];

    #[test]
    fn methods_are_found_by_id_over_services() {
        let registry = Registry::new(vec![Arc::new(Fixed(A)), Arc::new(Fixed(B))]).unwrap();
        for methods in [A, B] {
            for (index, method) in methods.iter().enumerate() {
                let entry = registry.find(method.id).unwrap();
                assert_eq!((entry.method, entry.index()), (method, index));
            }
        }
        assert_eq!(registry.find(A[0].id ^ 1), None);
        assert_eq!(Registry::default().find(1), None);
    }

    #[test]
    fn the_same_id_twice_is_refused_by_name() {
        let twice = Registry::new(vec![Arc::new(Fixed(A)), Arc::new(Fixed(A))]).unwrap_err();
        assert!(twice.to_string().starts_with("A.one and A.one have the same method id"));
    }
}
