//! A tunnel for programs that nobody changes: their connections are byte streams of one connection of gimmal.
//!
//! ```text
//!  program ─► enter ─► gimmal_io::open ══ one connection ══► gimmal_io::Incoming ─► leave ─► program's server
//! ```
//! One process goes one way. Half a connection may end alone, and an end by force is one on the other side too.

mod enter;
mod leave;
mod local;
mod options;
mod proxy;
mod pump;

use std::{error::Error, sync::Arc};

use self::options::Counts;
pub(crate) use self::options::Tunnel;

/// Runs one end of a tunnel until a signal. Returns whether every connection had ended by itself.
pub(crate) fn run(tunnel: &Tunnel) -> Result<bool, Box<dyn Error>> {
    // With more threads each message goes from one to another once more, and bulk waits for gimmal's worker, which is one, too.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let counts = Arc::new(Counts::default());
    let is_drained = runtime.block_on(async {
        match (&tunnel.to, tunnel.map.is_empty() && tunnel.map_file.is_none()) {
            (Some(to), true) => enter::run(tunnel, to, &counts).await,
            (None, false) => leave::run(tunnel, &counts).await,
            _ => Err("a tunnel has either --to URL/name, or --map name=tcp:address:port".into()),
        }
    })?;
    counts.print(is_drained, tunnel.json);
    Ok(is_drained)
}
