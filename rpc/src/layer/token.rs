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

/// A layer of clients that puts a token into the metadata of every call, under [`AUTHORIZATION`]; one that the call has already
/// stays. One-way calls carry no metadata, so they are refused with `invalid argument`, not run; so is a call whose metadata has no
/// room for the token. Costs an allocation for a call. [`Authorize`] is the other side of it, and has an example.
#[derive(Clone)]
pub struct WithToken(Arc<[u8]>);

impl fmt::Debug for WithToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithToken(..)")
    }
}

impl WithToken {
    /// Sends `token` with every call. It is any bytes, within the 4096 of a call's metadata.
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

/// A layer of services that lets only calls with a token that it accepts reach the handlers; the others are not run, and end with
/// `unauthenticated`. One-way calls carry no token, so they are refused without a word. Made by [`tokens`] or [`Authorize::by`].
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gimmal::{Client, Server, layer::{Guarded, Layered, WithToken, tokens}};
///
/// let service = Guarded::new(serve_hello(Greeter), tokens(["s3cret"]));
/// let server = Server::builder().service(service).listen("mem://doc-token")?;
/// let channel = Client::connect("mem://doc-token")?;
/// let client = HelloClient::new(Layered::new(channel.clone(), WithToken::new("s3cret")));
/// assert!(client.hello("Ada".into()).wait().is_ok());
/// assert!(HelloClient::new(channel).hello("Ada".into()).wait().is_err());
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub struct Authorize<F>(F);

impl<F> fmt::Debug for Authorize<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorize(..)")
    }
}

impl<F: Fn(&Cx, &[u8]) -> bool + Send + Sync + 'static> Authorize<F> {
    /// Makes a layer that accepts the tokens for which `accepts` returns true. It runs on the server's worker before every call, so
    /// it must not block. How it compares tokens should take the same time whatever they are.
    pub const fn by(accepts: F) -> Self {
        Self(accepts)
    }
}

/// Makes a layer that accepts any of `tokens`; the time that this takes says nothing about them but their lengths.
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
