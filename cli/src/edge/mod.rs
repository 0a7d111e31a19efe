//! HTTP/2, in clear text or under TLS, on one side and gimmal on the other: for services and callers in other languages.
//!
//! ```text
//!  h2, h2c ─► enter ─► gimmal_http::Client ══ gimmal ══► gimmal_http::Serve ─► leave ─► h2, h2c
//! ```
//! One process goes one way; two of them carry HTTP/2 over gimmal. Heads, trailers, cancellation and `grpc-timeout` pass.

mod enter;
mod failed;
mod leave;
mod options;
mod passing;
mod secure;

use std::{error::Error, sync::Arc};

pub(crate) use self::options::Edge;
use self::options::{Counts, Http};
use crate::signals::outlive_hangup;

/// Runs an edge until a signal ends it. Returns whether every request had ended.
pub(crate) fn run(edge: &Edge) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let counts = Arc::new(Counts::default());
    let is_drained = runtime.block_on(async {
        outlive_hangup()?;
        match (Http::of(&edge.listen), Http::of(&edge.to)) {
            (Some(listen), None) => enter::run(edge, listen, &counts).await,
            (None, Some(to)) => leave::run(edge, to, &counts).await,
            _ => Err("one of --listen and --to is http://address:port or https://address:port, the other a URL of gimmal".into()),
        }
    })?;
    counts.print(is_drained, edge.json);
    Ok(is_drained)
}
