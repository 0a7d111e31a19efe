//! [`Incoming`] as where a server of axum gets its connections from.

use std::{future, io};

use axum::serve::Listener;

use crate::{Duplex, Incoming};

/// A connection's address is the name that its client opened the stream with.
impl Listener for Incoming {
    type Io = Duplex;
    type Addr = String;

    /// Never returns once the gimmal server is gone, since axum knows no end: use its graceful shutdown.
    async fn accept(&mut self) -> (Duplex, String) {
        match Self::accept(self).await {
            Some((name, stream)) => (stream, name),
            None => future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<String> {
        Ok("gimmal".to_owned())
    }
}
