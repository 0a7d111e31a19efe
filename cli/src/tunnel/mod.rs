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

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::options::Counts;
pub(crate) use self::options::Tunnel;
use crate::signals::outlive_hangup;

/// Lets the process open as many files as it may: a connection takes one, and a user often begins with 1,024.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // Without it, connections wait for one another.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Runs one end of a tunnel until a signal. Returns whether every connection had ended by itself.
pub(crate) fn run(tunnel: &Tunnel) -> Result<bool, Box<dyn Error>> {
    raise_files();
    // One thread has the programs' sockets and gimmal's port: a message wakes it once, and goes to no other thread.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    let counts = Arc::new(Counts::default());
    let is_drained = runtime.block_on(async {
        outlive_hangup()?;
        match (&tunnel.to, tunnel.map.is_empty() && tunnel.map_file.is_none()) {
            (Some(to), true) => enter::run(tunnel, to, &counts).await,
            (None, false) => leave::run(tunnel, &counts).await,
            _ => Err("a tunnel has either --to URL/name, or --map name=tcp:address:port".into()),
        }
    })?;
    counts.print(is_drained, tunnel.json);
    Ok(is_drained)
}
