//! Methods whose types have names on the wire: the caller's go ahead of its first request, and the callee judges them.
//!
//! ```text
//!  caller   Schema: method, signature, types ─► callee: other signature? ─► do both sides read each other? ─► noted
//!           Request: method, signature ───────► the same signature, or noted as one that fits: it runs
//!                                               otherwise: Mismatch, with the callee's types
//! ```
//! So no call has to be repeated, and one that does not fit never runs. Messages arrive in order, and a signature is judged
//! once: the later requests of a connection carry nothing more.

use gimmal_engine::{
    Head, Io, SendError,
    transport::{
        ConnId, Port, Violation,
        pack::{join, low_half},
    },
};

use crate::{
    frame::{Flags, Kind, RequestHead},
    id::CallId,
    method::Method,
    shape::Schema,
};

/// What precedes the types: which method's they are, and its signature with them.
pub(super) const FRONT_BYTES: usize = 8;
/// Most versions of a method that one caller has. Judging takes time, so a peer cannot ask for it again and again.
const VERSIONS_MAX: usize = 4;

/// What the two sides of a connection know of each other's types. A method with a signature is one number.
#[derive(Default, Debug)]
pub(super) struct Schemas {
    /// Methods whose types this side has sent, in order.
    sent: Vec<u64>,
    /// Methods whose types the peer has sent and that differ here, and whether both sides read each other.
    judged: Vec<(u64, bool)>,
}

impl Schemas {
    /// Sends the types of a method ahead of its first request. Returns whether the request may follow: there was room.
    #[cold]
    pub(super) fn tell<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, method: &Method) -> bool {
        let called = join(method.id, method.signature_hash);
        let Err(place) = self.sent.binary_search(&called) else { return true };
        if let Some(types) = method.described() {
            let bytes = FRONT_BYTES + types.len();
            let head = Head { kind: Kind::Schema.with(Flags::NONE), aux: CallId::NONE.aux() };
            let sent = io.send(conn, head, bytes, |body| {
                let (front, rest) = body.split_first_chunk_mut::<FRONT_BYTES>()?;
                *front = called.to_le_bytes();
                rest.get_mut(..types.len())?.copy_from_slice(&types); // metadata
                Some(bytes)
            });
            // Without its types, a request that differs is refused.
            if matches!(sent, Err(SendError::Blocked)) {
                return false;
            }
        }
        self.sent.insert(place, called);
        true
    }

    /// Judges a caller's types of `method`, which has others here.
    pub(super) fn judge(&mut self, called: u64, method: &Method, types: &[u8]) -> Result<(), Violation> {
        let of_method = |(known, _): &&(u64, bool)| low_half(*known) == method.id;
        let is_known = self.judged.iter().any(|(known, _)| *known == called);
        if is_known || self.judged.iter().filter(of_method).count() >= VERSIONS_MAX {
            return Ok(());
        }
        let theirs = Schema::from_bytes(types).ok_or(Violation::Malformed { what: "types of a method" })?;
        let fits = method.schema.is_some_and(|ours| theirs.hindrance(ours).is_none());
        self.judged.push((called, fits));
        Ok(())
    }

    /// Whether the types of the request's caller fit although they differ.
    pub(super) fn fit(&self, head: &RequestHead) -> bool {
        self.judged.contains(&(join(head.method, head.signature), true))
    }
}

#[cfg(all(test, feature = "evolve"))]
mod tests {
    use super::*;
    use crate::{
        method::MethodKind,
        shape::{Describing, Form},
    };

    /// A method whose answer is of this type.
    fn of<T: crate::Shape>() -> Method {
        let schema = Describing::<crate::MessagePack>::default().answer::<T>().done();
        let method = Method::new("Case", "get", "T", "messagepack", MethodKind::Async);
        method.with_schema(Form::Named, schema)
    }

    #[test]
    fn a_callers_types_are_judged_once_and_what_is_none_is_a_violation() {
        let (ours, head) = (of::<Result<u8, u8>>(), |method: &Method, signature| {
            let called = join(method.id, signature);
            (called, RequestHead { method: method.id, signature, deadline_us: 0, window: 0 })
        });
        let mut schemas = Schemas::default();
        let (called, request) = head(&ours, 1);
        assert!(schemas.judge(called, &ours, &[0xff; 9]).is_err());
        assert!(!schemas.fit(&request));
        let types = of::<Result<u16, u8>>().described().unwrap();
        schemas.judge(called, &ours, &types).unwrap();
        assert!(schemas.fit(&request), "a wider reader");
        // The first judgement stands.
        let narrow = of::<Result<bool, u8>>().described().unwrap();
        schemas.judge(called, &ours, &narrow).unwrap();
        assert!(schemas.fit(&request));
        for signature in 2..100 {
            let (called, request) = head(&ours, signature);
            schemas.judge(called, &ours, if signature < 4 { &types } else { &narrow }).unwrap();
            assert_eq!(schemas.fit(&request), signature < 4, "version {signature}");
        }
        assert_eq!(schemas.judged.len(), VERSIONS_MAX);
    }
}
