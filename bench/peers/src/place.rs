//! Where a server is: a socket in a folder, or a port of loopback that a file there tells.

use std::{
    fmt::Display,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

/// What carries the calls.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    /// Shared memory; a unix socket for libraries without it.
    Shm,
    /// TCP over loopback.
    Tcp,
}

/// What a server and its client have in common.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    path: PathBuf,
    pub(crate) over: Over,
}

impl Place {
    pub(crate) const fn new(path: PathBuf, over: Over) -> Self {
        Self { path, over }
    }

    /// The socket, or the file that tells the port.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the server listens.
    pub(crate) fn is_there(&self) -> bool {
        self.path.exists()
    }

    /// Tells the other process where the server listens; a socket in the folder tells that by itself.
    pub(crate) fn tell(&self, address: impl Display) -> Result<()> {
        if self.over == Over::Tcp {
            let draft = self.path.with_extension("draft");
            std::fs::write(&draft, address.to_string())?;
            std::fs::rename(draft, &self.path)?;
        }
        Ok(())
    }

    /// What the server told.
    pub(crate) fn told(&self) -> Result<SocketAddr> {
        let text = std::fs::read_to_string(&self.path)?;
        text.trim_start_matches("tcp://").parse().with_context(|| format!("the address {text}"))
    }

    /// What a server of gimmal listens at.
    pub(crate) fn url_to_listen(&self) -> String {
        match self.over {
            Over::Shm => format!("shm://{}", self.path.display()),
            Over::Tcp => "tcp://127.0.0.1:0".to_owned(),
        }
    }

    /// What a client of gimmal connects to.
    pub(crate) fn url(&self) -> Result<String> {
        match self.over {
            Over::Shm => Ok(self.url_to_listen()),
            Over::Tcp => Ok(format!("tcp://{}", self.told()?)),
        }
    }
}
