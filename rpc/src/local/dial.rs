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

use super::{LocalConn, conn::Turns};
use crate::{
    command::{Command, Watcher},
    config::Reconnect,
    error::ConnectError,
    late::Late,
    oneshot::{Receiver, Sender, oneshot},
    reconnect::{Backoff, persist},
    route::Opened,
    workers::Handle,
};

type Connected = Result<Made, ConnectError>;

/// A connection that was made on a client's worker. It is closed when this is dropped, unless it was taken.
struct Made {
    opened: Option<Opened>,
    handle: Handle,
    late: Arc<Late>,
}

impl Made {
    fn nothing(turns: &Turns) -> Self {
        Self { opened: None, handle: turns.handle(), late: turns.app().late() }
    }

    fn with(mut self, opened: Opened) -> Self {
        self.opened = Some(opened);
        self
    }

    fn take(mut self) -> Option<Opened> {
        self.opened.take()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((conn, negotiated)) = self.opened.take()
            && self.handle.close(conn).is_err()
        {
            self.late.ask(|asked| asked.closes.push((conn, negotiated)));
            self.handle.ring();
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
        let route = local.route().clone();
        let made = Made::nothing(&local.turns());
        let dial = move || match again {
            None => {
                let open = |address: &_, options: &_| made.handle.connect_with(address, options);
                let opened = route.open(made.handle.connect_options(), open);
                sender.send(opened.map(|opened| made.with(opened)));
            }
            Some(reconnect) => {
                let options = reconnect.options(made.handle.connect_options());
                let attempt = || {
                    let is_wanted = sender.is_wanted() && !made.handle.is_gone();
                    let open = |address: &_, options: &_| made.handle.connect_with(address, options);
                    is_wanted.then(|| route.open(&options, open))
                };
                if let Some(opened) = persist(&mut Backoff::new(&reconnect), &route.name(), attempt) {
                    sender.send(Ok(made.with(opened)));
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use gimmal_testkit::until;

    use super::*;
    use crate::{Cx, client::Client, config::Config, reconnect::NOWHERE, server::Server};

    #[gimmal_macros::service(crate = crate)]
    trait Nothing {
        async fn nothing(&self, cx: &Cx);
    }

    struct Idle;

    impl Nothing for Idle {
        async fn nothing(&self, _: &Cx) {}
    }

    #[test]
    fn a_connection_that_nobody_takes_is_closed_although_the_inbox_is_full() {
        let url = format!("mem://nobody-takes-{}", std::process::id());
        let server = Server::builder().service(serve_nothing(Idle)).listen(&url).unwrap();
        let client = Client::builder().config(Config::default()).open_local(&url).unwrap();
        let dialling = client.dial(None);
        let connections = |expected: usize| {
            client.turn();
            server.duty().iter().map(|duty| duty.connections).sum::<usize>() == expected
        };
        until("it is made", || connections(1));
        let handle = client.local.turns().handle();
        let any = || Command::Retire(NOWHERE, None, Arc::new(AtomicBool::new(false)));
        while handle.submit(any()).is_ok() {}
        drop(dialling);
        until("it is closed", || connections(0));
    }
}
