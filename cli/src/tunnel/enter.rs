//! The end at the programs: they connect, and their connections become streams.

use std::{error::Error, rc::Rc, sync::Arc, time::Duration};

use gimmal::tokio::LocalClient;
use gimmal_transport::parts::LogPace;
use tokio::{sync::Semaphore, task::spawn_local};

use super::{
    local::{Listener, Listeners},
    options::{Counts, IDLE, Tunnel},
    proxy::stream_name,
    pump::pump,
};
use crate::{accept::accepted, say::say, signals::asked_to_end};

/// How long a program's connection waits for one to the other end, which may be starting.
const CONNECT: Duration = Duration::from_secs(5);

/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// What connections of programs become streams by.
struct Enter {
    client: LocalClient,
    name: String,
    /// One for each connection that there may be.
    places: Arc<Semaphore>,
    idle: Option<Duration>,
    counts: Arc<Counts>,
}

/// Accepts programs until a signal, then lets their connections end. Returns whether all did.
pub(super) async fn run(tunnel: &Tunnel, to: &str, counts: &Arc<Counts>) -> Result<bool, Box<dyn Error>> {
    let (url, name) = target(to)?;
    let builder = tunnel.credentials.client(&[url])?.window(tunnel.streams()).idle(IDLE);
    let enter = Rc::new(Enter {
        client: LocalClient::connect_lazy(builder, url)?,
        name: name.to_owned(),
        places: Arc::new(Semaphore::new(tunnel.streams())),
        idle: tunnel.idle(),
        counts: Arc::clone(counts),
    });
    let mut listeners = Listeners::default();
    for at in &tunnel.listen {
        for listener in Listener::all(at).await? {
            say(&format!("{} -> {to}", listener.address()));
            listeners.add(listener);
        }
    }
    let accepting = spawn_local(accept(Rc::clone(&enter), listeners));
    asked_to_end().await;
    // Nobody listens any more; then all places are free once every connection has ended.
    accepting.abort();
    let _ = accepting.await;
    let all = u32::try_from(tunnel.streams())?;
    Ok(tokio::time::timeout(tunnel.drain(), enter.places.acquire_many(all)).await.is_ok())
}

/// The other end's URL, and the name behind its last slash.
fn target(to: &str) -> Result<(&str, &str), String> {
    match to.rsplit_once('/') {
        Some((url, name)) if !name.is_empty() && url.contains("://") && !url.ends_with('/') => {
            Ok((url, name))
        }
        _ => Err(format!(
            "--to {to} has no name behind the URL; write rdma://host:port/name or shm://tunnel/name"
        )),
    }
}

impl Enter {
    /// Waits for the connection to the other end, for as long as programs are used to. Without one the program sees a reset.
    async fn connected(&self) {
        let made = async {
            while !self.client.is_ready() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(CONNECT, made).await;
    }
}

/// Accepts at all of them, so that none keeps a place from the others while nobody connects to it.
async fn accept(enter: Rc<Enter>, mut listeners: Listeners) {
    let log = LogPace::default();
    while let Ok(place) = Arc::clone(&enter.places).acquire_owned().await {
        let (socket, ends) = accepted(async || listeners.accept().await, &log).await;
        let enter = Rc::clone(&enter);
        spawn_local(async move {
            let _place = place;
            enter.connected().await;
            let (stream, call) = gimmal_io::open_local(&enter.client, &stream_name(&enter.name, ends));
            let call = spawn_local(call);
            pump(socket, stream, enter.idle, &enter.counts).await;
            // The other end has its place until it has heard how the stream ended.
            let _ = call.await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_and_a_name() {
        assert_eq!(target("rdma://db:7471/redis"), Ok(("rdma://db:7471", "redis")));
        assert_eq!(target("shm:///run/x/redis"), Ok(("shm:///run/x", "redis")));
        assert_eq!(target("shm://tunnel/redis"), Ok(("shm://tunnel", "redis")));
        for bare in ["shm://tunnel", "tcp://a:1/", "redis", "/redis"] {
            assert!(target(bare).unwrap_err().contains("no name"), "{bare}");
        }
    }
}
