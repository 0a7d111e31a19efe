//! The names of `std::net`, for the threads of tests that block.

use std::{
    future::Future,
    io::{self, Read, Write},
    net::SocketAddr,
};

use tokio_itself::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::net;

fn block<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio_itself::runtime::Builder::new_current_thread().build()?.block_on(future)
}

/// A server that takes streams.
#[derive(Debug)]
pub struct Listener(net::TcpListener);

/// A stream.
#[derive(Debug)]
pub struct Socket(net::TcpStream);

impl Listener {
    /// Listens in memory or at a port of TCP, whatever `address` says.
    pub fn bind(address: &str) -> io::Result<Self> {
        net::TcpListener::listen(address).map(Self)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Blocks for the next stream.
    pub fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        block(self.0.accept()).map(|(stream, address)| (Socket(stream), address))
    }
}

impl Read for Socket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        block(self.0.read(out))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        block(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
