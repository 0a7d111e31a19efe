//! What the doctor can ask of a machine; in tests a made-up one answers.

use std::{path::Path, time::Duration};

use gimmal::{config::Cpus, error::PlaceError};
use gimmal_rdma::{
    cm::Route,
    device::{self, Assigned, Unusable},
};
use gimmal_rpc::{Client, Config};
use gimmal_transport::{Address, ConnectOptions, Key, Tls};
use rustix::{
    fs::{Access, MemfdFlags, SealFlags},
    io::retry_on_intr,
    process::{Resource, geteuid, getrlimit},
};

use crate::{connect, credentials::in_options, tree::Tree};

/// What the doctor asks of the machine it runs on.
pub(crate) trait Machine {
    /// The kernel's files.
    fn tree(&self) -> &Tree;
    /// Whether this process may read and write a file.
    fn may_use(&self, path: &Path) -> bool;
    fn is_root(&self) -> bool;
    /// `sudo `, for commands that only root can run.
    fn sudo(&self) -> &'static str {
        if self.is_root() { "" } else { "sudo " }
    }
    /// Interfaces' addresses.
    fn addresses(&self) -> Vec<Assigned>;
    /// Whether libibverbs and librdmacm can be opened; else what is missing.
    fn libraries(&self) -> Result<(), String>;
    /// Names of the devices, those that cannot be opened with the reason.
    fn devices(&self) -> Result<Vec<Result<String, Unusable>>, String>;
    /// The limit of locked memory, bytes; `None`: none.
    fn memlock(&self) -> Option<u64>;
    /// The limit of a file's size, bytes; `None`: none.
    fn file_size(&self) -> Option<u64>;
    /// Whether a sealed memory file can be made, of a page and within that limit.
    fn memfd(&self) -> Result<(), String>;
    /// Bytes of a file system: free and all.
    fn room(&self, path: &str) -> Option<(u64, u64)>;
    /// Cores this process may run on.
    fn cores(&self) -> usize;
    /// The processors of this process, as [`Placement::Auto`](gimmal::config::Placement::Auto) reads them.
    fn cpus(&self) -> Result<Cpus, PlaceError>;
    /// The way to a peer.
    fn route(&self, host: &str, port: u16) -> Result<Route, String>;
    /// A whole connection.
    fn connect(&self, address: &Address) -> Result<String, String>;
    /// Connects to a `gimmal://` URL; which way was chosen, and why.
    fn connect_best(&self, url: &str) -> Result<String, String>;
}

/// The machine this program runs on.
#[derive(Debug)]
pub(crate) struct Live {
    tree: Tree,
    timeout: Duration,
    key: Option<Key>,
    tls: Tls,
}

impl Live {
    pub(crate) fn new(timeout: Duration, key: Option<Key>, tls: Tls) -> Self {
        Self { tree: Tree::new("/"), timeout, key, tls }
    }
}

impl Machine for Live {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn may_use(&self, path: &Path) -> bool {
        rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_ok()
    }

    fn is_root(&self) -> bool {
        geteuid().is_root()
    }

    fn addresses(&self) -> Vec<Assigned> {
        device::addresses()
    }

    fn libraries(&self) -> Result<(), String> {
        device::libraries().map_err(|error| error.to_string())
    }

    fn devices(&self) -> Result<Vec<Result<String, Unusable>>, String> {
        let devices = device::devices().map_err(|error| error.to_string())?;
        Ok(devices.into_iter().map(|device| device.map(|device| device.name)).collect())
    }

    fn memlock(&self) -> Option<u64> {
        getrlimit(Resource::Memlock).current
    }

    fn file_size(&self) -> Option<u64> {
        getrlimit(Resource::Fsize).current
    }

    fn memfd(&self) -> Result<(), String> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        retry_on_intr(|| rustix::fs::memfd_create("gimmal-doctor", flags))
            .and_then(|file| {
                retry_on_intr(|| rustix::fs::ftruncate(&file, 4096))?;
                rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
            })
            .map_err(|errno| errno.to_string())
    }

    fn room(&self, path: &str) -> Option<(u64, u64)> {
        let room = rustix::fs::statvfs(path).ok()?;
        Some((room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize))
    }

    fn cores(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn cpus(&self) -> Result<Cpus, PlaceError> {
        Cpus::read()
    }

    fn route(&self, host: &str, port: u16) -> Result<Route, String> {
        gimmal_rdma::cm::route(host, port, self.timeout).map_err(|error| error.to_string())
    }

    fn connect(&self, address: &Address) -> Result<String, String> {
        let options = ConnectOptions {
            connect_timeout: self.timeout,
            key: self.key.clone(),
            tls: self.tls.clone(),
            ..ConnectOptions::default()
        };
        connect::try_it(address, &options).map_err(|error| in_options(&error))
    }

    fn connect_best(&self, url: &str) -> Result<String, String> {
        let mut config = Config::default();
        config.engine.connect.connect_timeout = self.timeout;
        config.engine.connect.key.clone_from(&self.key);
        config.engine.connect.tls.clone_from(&self.tls);
        let client = Client::builder().config(config).connect(url);
        let client = client.map_err(|error| in_options(&error.to_string()))?;
        let negotiated = client.negotiated().ok_or("it is not connected")?;
        Ok(negotiated.chosen.clone().unwrap_or_else(|| negotiated.provider.to_owned()))
    }
}
