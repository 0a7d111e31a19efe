//! What one guest is to be, and the pure parts of getting there: the programs that write QEMU's command line and the
//! guest's scripts read only this.

use std::{path::PathBuf, str::FromStr};

use anyhow::{Result, bail};

use crate::fabric::{Fabrics, Role};

/// Where the lab's own files lie in the guest.
pub(crate) const FOLDER: &str = "/run/gimmal-lab";

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// `Some` in a pair; then the only device is rxe on `eth0`.
    pub role: Option<Role>,
    pub fabrics: Fabrics,
    /// A program and its arguments.
    pub command: Vec<String>,
    pub cwd: PathBuf,
    /// In the order of setting: later ones win.
    pub env: Vec<Variable>,
    /// Folders of the host that are not on its root file system, to be found at the same path. What the guest writes
    /// there stays in the guest.
    pub shares: Vec<PathBuf>,
    pub memlock: Memlock,
    pub mem_mb: u32,
    pub cpus: u32,
    /// Memory nodes, each with as much memory and as many processors.
    pub nodes: u32,
}

/// `ulimit -l` of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memlock {
    Unlimited,
    Bytes(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub name: String,
    pub value: String,
}

impl Variable {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.into() }
    }

    /// The variables that a command finds as on the host.
    pub(crate) fn inherited() -> Vec<Self> {
        ["HOME", "PATH", "USER", "LANG", "TERM"].iter().filter_map(|name| name.parse().ok()).collect()
    }
}

impl FromStr for Memlock {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "unlimited" => Self::Unlimited,
            bytes => Self::Bytes(bytes.parse()?),
        })
    }
}

impl FromStr for Variable {
    type Err = anyhow::Error;

    /// `NAME=VALUE`, or `NAME` for the value it has here.
    fn from_str(text: &str) -> Result<Self> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (text, std::env::var(text)?),
        };
        let mut letters = name.chars();
        let head = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
        if !head || !letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_') {
            bail!("{name:?} is no name for a variable");
        }
        Ok(Self::new(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_parsed() {
        assert_eq!("A_1=x=y".parse::<Variable>().unwrap(), Variable::new("A_1", "x=y"));
        assert_eq!("A=".parse::<Variable>().unwrap(), Variable::new("A", ""));
        assert_eq!("PATH".parse::<Variable>().unwrap().value, std::env::var("PATH").unwrap());
        for wrong in ["", "=x", "1A=x", "A-B=x", "A;B=x", "NO_SUCH_VARIABLE_HERE"] {
            assert!(wrong.parse::<Variable>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn memlock_is_parsed() {
        assert_eq!("unlimited".parse::<Memlock>().unwrap(), Memlock::Unlimited);
        assert_eq!("65536".parse::<Memlock>().unwrap(), Memlock::Bytes(65536));
        assert!("much".parse::<Memlock>().is_err());
    }
}
