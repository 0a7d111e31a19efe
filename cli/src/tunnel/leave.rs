//! The end at the servers: streams arrive, and each becomes a connection to what its name stands for.

use std::{
    collections::BTreeMap,
    error::Error,
    path::Path,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use gimmal::{
    Config,
    tokio::{Tokio, serve_until},
};
use gimmal_io::{Duplex, Incoming};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::spawn_local,
};

use super::{
    local::{Place, Socket},
    options::{Counts, IDLE, Tunnel},
    proxy::{header, read_name},
    pump::{Why, pump, refuse},
};
use crate::{
    say::{complain, say},
    signals::asked_to_end,
};

/// How long a connection to a server may take.
const CONNECT: Duration = Duration::from_secs(5);

/// What streams become connections by.
struct Leave {
    map: RwLock<BTreeMap<String, Place>>,
    /// One for each connection that there may be.
    places: Arc<Semaphore>,
    tells_address: bool,
    idle: Option<Duration>,
    counts: Arc<Counts>,
}

/// Serves until a signal, then lets connections end. Returns whether all did.
pub(super) async fn run(tunnel: &Tunnel, counts: &Arc<Counts>) -> Result<bool, Box<dyn Error>> {
    let [url] = &tunnel.listen[..] else { return Err("the end at the servers listens at one URL".into()) };
    let leave = Arc::new(Leave {
        map: RwLock::new(read_map(&tunnel.map, tunnel.map_file.as_deref())?),
        places: Arc::new(Semaphore::new(tunnel.streams())),
        tells_address: tunnel.proxy_protocol,
        idle: tunnel.idle(),
        counts: Arc::clone(counts),
    });
    let (streams, incoming) = gimmal_io::serve(tunnel.streams());
    let mut config = Config { serving_max: tunnel.streams(), ..Config::default() };
    config.engine.idle = IDLE;
    let builder = tunnel.credentials.server(&[url])?.config(config).runtime(Tokio::current()?);
    let server = builder.service(streams).listen_local(url)?;
    for (name, place) in leave.names().iter() {
        say(&format!("{}/{name} -> {place}", server.address()));
    }
    tokio::spawn(accept(Arc::clone(&leave), incoming));
    let reloads = reload(&leave, tunnel);
    // A task of its own: what `block_on` polls is polled once for each look at the sockets.
    let served = spawn_local(serve_until(server, asked_to_end(), tunnel.drain()));
    tokio::select! {
        is_drained = served => Ok(is_drained??),
        never = reloads => never,
    }
}

/// The names, each with its place: of the command line, then of the file.
fn read_map(lines: &[String], file: Option<&Path>) -> Result<BTreeMap<String, Place>, String> {
    let text = match file {
        None => String::new(),
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let of_file = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .iter()
        .map(String::as_str)
        .chain(of_file)
        .map(|line| match line.split_once('=') {
            Some((name, place)) if !name.is_empty() && !name.contains([' ', '/']) => {
                Ok((name.to_owned(), place.parse()?))
            }
            _ => Err(format!("`{line}` is no name of a server; write name=tcp:host:port or name=unix:path")),
        })
        .collect()
}

/// Reads the names again at each SIGHUP. A file that is wrong leaves them as they were.
async fn reload(leave: &Leave, tunnel: &Tunnel) -> Result<bool, Box<dyn Error>> {
    let mut hangup = signal(SignalKind::hangup())?;
    while hangup.recv().await.is_some() {
        match read_map(&tunnel.map, tunnel.map_file.as_deref()) {
            Ok(map) => *leave.map.write().unwrap_or_else(PoisonError::into_inner) = map,
            Err(error) => complain(&format!("the names stay as they are: {error}")),
        }
    }
    std::future::pending().await
}

async fn accept(leave: Arc<Leave>, mut incoming: Incoming) {
    while let Some((name, stream)) = incoming.accept().await {
        let Ok(place) = Arc::clone(&leave.places).try_acquire_owned() else {
            leave.refuse(stream, Why::TooMany);
            continue;
        };
        let leave = Arc::clone(&leave);
        tokio::spawn(async move {
            let _place = place;
            match leave.connect(&name).await {
                Ok(socket) => pump(socket, stream, leave.idle, &leave.counts).await,
                Err(why) => leave.refuse(stream, why),
            }
        });
    }
}

impl Leave {
    fn names(&self) -> RwLockReadGuard<'_, BTreeMap<String, Place>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, stream: Duplex, why: Why) {
        Counts::add(&self.counts.refused, 1);
        refuse(stream, why);
    }

    /// Connects to what the stream's name stands for.
    async fn connect(&self, stream_name: &str) -> Result<Socket, Why> {
        let (name, ends) = read_name(stream_name);
        let place = self.names().get(name).cloned().ok_or(Why::Unknown)?;
        let connected = tokio::time::timeout(CONNECT, place.connect()).await;
        let mut socket = connected.ok().and_then(Result::ok).ok_or(Why::Unreachable)?;
        if self.tells_address {
            socket.split().1.write_all(&header(ends)).await.map_err(|_| Why::Unreachable)?;
        }
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_command_line_and_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("map");
        std::fs::write(&file, "# servers\n\nredis=tcp:127.0.0.1:2\n web=unix:/run/web \n").unwrap();
        let map = read_map(&["redis=tcp:127.0.0.1:1".to_owned()], Some(&file)).unwrap();
        let read: Vec<_> = map.iter().map(|(name, place)| format!("{name}={place}")).collect();
        assert_eq!(read, ["redis=tcp:127.0.0.1:2", "web=unix:/run/web"]);
        for wrong in ["redis", "=tcp:a:1", "redis=udp:a:1", "a b=tcp:a:1"] {
            assert!(read_map(&[wrong.to_owned()], None).is_err(), "{wrong}");
        }
        let error = read_map(&[], Some(&folder.path().join("none"))).unwrap_err();
        assert!(error.contains("none: No such file"), "{error}");
    }
}
