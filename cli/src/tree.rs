//! Files of the kernel below a root, which in tests is a folder of our own. A file that cannot be read has no text.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder in place of the root of the file system.
#[derive(Clone, Debug)]
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The place of an absolute path.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// A file's text without space around it; `None` when it cannot be read or is empty.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Names in a folder, sorted by length, then letters, so that `rxe10` follows `rxe9`.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(folder) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        names
    }

    /// RDMA devices.
    pub(crate) fn devices(&self) -> Vec<Device> {
        self.names("/sys/class/infiniband").into_iter().map(|name| self.device(name)).collect()
    }

    fn device(&self, name: String) -> Device {
        let base = PathBuf::from("/sys/class/infiniband").join(&name);
        let ports = base.join("ports");
        let numbers = self.names(&ports);
        let first = ports.join(numbers.first().map_or("1", String::as_str));
        let gids: Vec<String> = self
            .names(first.join("gids"))
            .iter()
            .filter_map(|index| self.text(first.join("gids").join(index)))
            .filter(|gid| gid.chars().any(|digit| !matches!(digit, '0' | ':')))
            .collect();
        let netdev = self
            .text(first.join("gid_attrs/ndevs/0"))
            .or_else(|| self.text(base.join("parent")))
            .or_else(|| self.names(base.join("device/net")).into_iter().next())
            .or_else(|| self.by_hardware_address(gids.first()?));
        Device {
            is_iwarp: self.text(base.join("node_type")).is_some_and(|kind| kind.contains("RNIC")),
            is_software: !self.exists(base.join("device")),
            states: numbers
                .iter()
                .map(|number| {
                    let state = self.text(ports.join(number).join("state")).unwrap_or_default();
                    match state.split_once(": ") {
                        Some((_, word)) => word.to_owned(),
                        None => state,
                    }
                })
                .collect(),
            link_layer: self.text(first.join("link_layer")).unwrap_or_default(),
            netdev,
            gids,
            name,
        }
    }

    /// iWARP drivers put the interface's hardware address into the first GID and name no interface.
    fn by_hardware_address(&self, gid: &str) -> Option<String> {
        let digits: String = gid.chars().filter(|digit| *digit != ':').take(12).collect();
        self.netdevs().into_iter().find(|netdev| {
            self.text(format!("/sys/class/net/{netdev}/address"))
                .is_some_and(|address| address.replace(':', "") == digits)
        })
    }

    /// Network interfaces.
    pub(crate) fn netdevs(&self) -> Vec<String> {
        self.names("/sys/class/net")
    }

    /// Whether an interface was set up: IFF_UP of its flags.
    pub(crate) fn is_set_up(&self, netdev: &str) -> bool {
        self.text(format!("/sys/class/net/{netdev}/flags"))
            .and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok())
            .is_some_and(|flags| flags & 1 != 0)
    }

    /// The other end of a veth pair, when it is in this network namespace.
    pub(crate) fn other_end(&self, netdev: &str) -> Option<String> {
        let link = self.text(format!("/sys/class/net/{netdev}/iflink"))?;
        let is_other = |other: &String| {
            other != netdev && self.text(format!("/sys/class/net/{other}/ifindex")).as_ref() == Some(&link)
        };
        self.netdevs().into_iter().find(is_other)
    }
}

/// An RDMA device in `/sys`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) is_iwarp: bool,
    /// No hardware behind it: rxe, siw.
    pub(crate) is_software: bool,
    /// Of each port: `ACTIVE`.
    pub(crate) states: Vec<String>,
    pub(crate) link_layer: String,
    pub(crate) netdev: Option<String>,
    /// Of the first port, as `/sys` writes them.
    pub(crate) gids: Vec<String>,
}

impl Device {
    pub(crate) fn is_active(&self) -> bool {
        self.states.iter().any(|state| state == "ACTIVE")
    }
}
