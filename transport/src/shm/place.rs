//! Where a listener and its clients meet: at a socket in a folder, or at a name of this process.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{io::Errno, net::SocketAddrUnix};

use super::{
    named::{self, Named},
    rendezvous::{Rendezvous, socket_address},
    socket,
};
use crate::{
    Address, Allow, ConnectError, Credentials, ListenError, ListenOptions,
    kernel::{self, system},
    peer,
};

/// A place that this process listens at.
#[derive(Debug)]
pub(super) enum Place {
    /// `shm://name`.
    Folder(Rendezvous),
    /// `mem://name`.
    Process(Named),
}

impl Place {
    /// Takes the place that `address` names.
    pub(super) fn bind(address: &Address, options: &ListenOptions) -> Result<Self, ListenError> {
        match address {
            Address::Shm { path } => {
                Ok(Self::Folder(Rendezvous::bind(path, options.backlog, !options.allow.is_default())?))
            }
            Address::Mem { name } => {
                let named = Named::bind(name, options.backlog)?;
                let in_use =
                    || ListenError::InUse { address: address.to_string(), by: "this process".to_owned() };
                named.map(Self::Process).ok_or_else(in_use)
            }
            Address::Rdma { .. } | Address::Tcp { .. } => {
                let why =
                    "shared memory listens on shm://name, shm:///absolute/path or mem://name".to_owned();
                Err(ListenError::Address { address: address.to_string(), why })
            }
        }
    }

    /// Where clients find it.
    pub(super) fn address(&self) -> Address {
        match self {
            Self::Folder(rendezvous) => Address::Shm { path: rendezvous.path().to_owned() },
            Self::Process(named) => Address::Mem { name: named.name().to_owned() },
        }
    }

    /// The socket of the next client; `AGAIN` when none waits.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Folder(rendezvous) => kernel::accept(rendezvous.socket()),
            Self::Process(named) => named.accept(),
        }
    }
}

/// Readable while a client waits.
impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Folder(rendezvous) => rendezvous.socket().as_fd(),
            Self::Process(named) => named.bell(),
        }
    }
}

/// A place that this process connects to.
#[derive(Debug)]
pub(super) enum Dial {
    /// A socket that is to connect, and where to.
    Folder { socket: OwnedFd, to: Box<SocketAddrUnix> },
    /// A name of this process.
    Process { name: String },
}

impl Dial {
    /// Prepares to connect to `address`.
    pub(super) fn new(address: &Address) -> Result<Self, ConnectError> {
        let refuse = |why| ConnectError::Address { address: address.to_string(), why };
        match address {
            Address::Shm { path } => {
                let to = Box::new(socket_address(path).map_err(refuse)?);
                Ok(Self::Folder { socket: socket::open().map_err(system("socket"))?, to })
            }
            Address::Mem { name } => Ok(Self::Process { name: name.clone() }),
            Address::Rdma { .. } | Address::Tcp { .. } => {
                let why = "shared memory connects to shm://name, shm:///absolute/path or mem://name";
                Err(refuse(why.to_owned()))
            }
        }
    }

    /// Tries once, without waiting; with the error comes what to try again with.
    pub(super) fn connect(self) -> Result<OwnedFd, (Errno, Self)> {
        match self {
            Self::Folder { socket, to } => match kernel::connect(&socket, &*to) {
                Ok(()) => Ok(socket),
                Err(errno) => Err((errno, Self::Folder { socket, to })),
            },
            Self::Process { name } => named::dial(&name).map_err(|errno| (errno, Self::Process { name })),
        }
    }
}

/// What a connection to `address` says of its device.
pub(super) fn device(address: &Address) -> String {
    match address {
        Address::Shm { path } => path.display().to_string(),
        other => other.to_string(),
    }
}

/// The path of the socket; empty for a name of this process.
pub(super) fn path(address: &Address) -> &Path {
    match address {
        Address::Shm { path } => path,
        _ => Path::new(""),
    }
}

/// Whether `allow` lets `peer` in at `address`. It is about other processes: to a name of its own each may connect.
pub(super) fn admits(address: &Address, peer: &Credentials, allow: &Allow) -> bool {
    matches!(address, Address::Mem { .. }) || peer::is_allowed(peer, allow)
}
