//! A token beside every call, and a service that asks for one: who calls, where a shared key only says who may connect.
//!
//! ```text
//!  XClient ─► Layered<WithToken> ─► Client ═══ metadata: authorization ═══► Server ─► Guarded<XServer, Authorize>
//! ```

use std::{fmt, sync::Arc};

use constant_time_eq::constant_time_eq;

use super::{Layer, ServerLayer};
use crate::{
    channel::CallOptions,
    cx::Cx,
    metadata::{AUTHORIZATION, Metadata},
    method::Method,
    status::{Code, Status},
};

/// Puts a token into the metadata of every call, under [`AUTHORIZATION`]; one that the call has already stands. One-way
/// calls carry no metadata, so they are refused here. Costs an allocation for a call.
#[derive(Clone)]
pub struct WithToken(Arc<[u8]>);

impl fmt::Debug for WithToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithToken(..)")
    }
}

impl WithToken {
    /// This token.
    #[must_use]
    pub fn new(token: impl AsRef<[u8]>) -> Self {
        Self(token.as_ref().into())
    }
}

impl Layer for WithToken {
    type Seen = ();

    fn before(&self, method: &'static Method, options: &mut CallOptions) -> Result<(), Status> {
        let refused = |text: String| Err(Status::refused(Code::InvalidArgument, text));
        if method.is_oneway {
            return refused("a one-way call carries no token: it has no metadata".to_owned());
        }
        let mut metadata = options.metadata.as_deref().cloned().unwrap_or_else(Metadata::new);
        if metadata.get(AUTHORIZATION).is_none() {
            if let Err(error) = metadata.insert(AUTHORIZATION, &self.0) {
                return refused(format!("the token: {error}"));
            }
            options.metadata = Some(Arc::new(metadata));
        }
        Ok(())
    }
}

/// Lets only calls with a token that it accepts reach the handlers of a service; the others are not run, and end with
/// `unauthenticated`. So do one-way calls, without a word, as they carry none.
pub struct Authorize<F>(F);

impl<F> fmt::Debug for Authorize<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorize(..)")
    }
}

impl<F: Fn(&Cx, &[u8]) -> bool + Send + Sync + 'static> Authorize<F> {
    /// What `accepts` accepts. It runs on the server's worker before every call, so it must not block, and
    /// what it compares tokens with should take the same time whatever they are.
    pub const fn by(accepts: F) -> Self {
        Self(accepts)
    }
}

/// Accepts any of `tokens`; the time that this takes says nothing about them but their lengths.
pub fn tokens(
    tokens: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Authorize<impl Fn(&Cx, &[u8]) -> bool + Send + Sync + 'static> {
    let tokens: Vec<Box<[u8]>> = tokens.into_iter().map(|token| token.as_ref().into()).collect();
    Authorize::by(move |_, given| {
        tokens.iter().fold(false, |any, token| any | constant_time_eq(token, given))
    })
}

impl<F: Fn(&Cx, &[u8]) -> bool + Send + Sync + 'static> ServerLayer for Authorize<F> {
    type Seen = ();

    fn before(&self, cx: &Cx, _: &'static Method) -> Result<(), Status> {
        let metadata = cx.metadata();
        let text = match metadata.as_ref().and_then(|metadata| metadata.get(AUTHORIZATION)) {
            Some(token) if (self.0)(cx, token) => return Ok(()),
            Some(_) => "the token of the call is not accepted",
            None => "the call has no token (metadata `authorization`)",
        };
        Err(Status::refused(Code::Unauthenticated, text))
    }
}
