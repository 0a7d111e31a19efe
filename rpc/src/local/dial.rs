//! Connecting a local client without blocking its thread, and hearing when the connection takes no more calls.
//!
//! ```text
//!  a thread: look the name up, dial, shake hands ─► the worker's inbox ─► the driver's turns adopt the connection
//!                                                └► Dialling: the client's calls go there from now on
//! ```

use std::{
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use gimmal_engine::{
    OpenError, StartError,
    transport::{CloseReason, thread},
};

use super::LocalConn;
use crate::{
    command::{Command, Watcher},
    config::Reconnect,
    error::ConnectError,
    oneshot::{Receiver, Sender, oneshot},
    reconnect::{Backoff, persist},
    route::Opened,
    workers::{self, Handle},
};

type Connected = Result<Made, ConnectError>;

/// A connection that was made on a client's worker. It is closed when this is dropped, unless it was taken.
struct Made {
    opened: Option<Opened>,
    handle: Handle,
}

impl Made {
    fn take(mut self) -> Option<Opened> {
        self.opened.take()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((conn, _)) = &self.opened {
            workers::close(&self.handle, *conn);
        }
    }
}

/// The future of [`LocalClient::dial`](super::LocalClient::dial): it ends when the local client is connected. Dropping it ends the
/// attempt within its time-outs.
#[must_use = "the client is connected when this is polled to its end"]
pub struct Dialling {
    local: Rc<LocalConn>,
    connected: Result<Receiver<Connected>, ConnectError>,
}

impl fmt::Debug for Dialling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialling({})", self.local.route().name())
    }
}

impl Dialling {
    /// Dials by a thread: once, or until somebody answers.
    pub(super) fn of(local: &Rc<LocalConn>, again: Option<Reconnect>) -> Self {
        let (sender, receiver) = oneshot();
        let (handle, route) = (local.turns().handle(), local.route().clone());
        let dial = move || match again {
            None => {
                let open = |address: &_, options: &_| handle.connect_with(address, options);
                let opened = route.open(handle.connect_options(), open);
                sender.send(opened.map(|opened| Made { opened: Some(opened), handle }));
            }
            Some(reconnect) => {
                let options = reconnect.options(handle.connect_options());
                let attempt = || {
                    let is_wanted = sender.is_wanted() && !handle.is_gone();
                    let open = |address: &_, options: &_| handle.connect_with(address, options);
                    is_wanted.then(|| route.open(&options, open))
                };
                if let Some(opened) = persist(&mut Backoff::new(&reconnect), &route.name(), attempt) {
                    sender.send(Ok(Made { opened: Some(opened), handle }));
                }
            }
        };
        let connected = thread::spawn("gimmal-dial", dial).map(|_| receiver);
        let connected = connected.map_err(|error| StartError::Thread(error.to_string()).into());
        Self { local: Rc::clone(local), connected }
    }
}

impl Future for Dialling {
    type Output = Result<(), ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let receiver = match &mut this.connected {
            Ok(receiver) => receiver,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        Pin::new(receiver).poll(context).map(|connected| {
            let stopped = || Err(OpenError::Worker("the thread that dials has ended").into());
            let connected = connected.unwrap_or_else(stopped)?;
            if this.local.negotiated().is_none()
                && let Some(opened) = connected.take()
            {
                this.local.connected(opened);
            }
            Ok(())
        })
    }
}

/// The future of [`LocalClient::gone`](super::LocalClient::gone): it ends when the connection takes no more calls. Cancel safe.
#[derive(Debug)]
#[must_use = "it ends when it is polled"]
pub struct Gone(Receiver<()>);

impl Future for Gone {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

impl Gone {
    pub(super) fn of(local: &LocalConn) -> Self {
        let (sender, receiver) = oneshot();
        local.tell(Command::Watch(local.conn(), Arc::new(Tells(sender))));
        Self(receiver)
    }
}

#[derive(Debug)]
struct Tells(Sender<()>);

impl Watcher for Tells {
    fn ended(&self, _: &CloseReason) {
        self.0.send(());
    }

    fn leaving(&self) {
        self.0.send(());
    }

    fn is_moving(&self) -> bool {
        false
    }
}
