//! The calls of a world's client.

use std::{
    cell::Cell,
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use gimmal_engine::transport::{ConnId, Loan, LoanError, Provider, UserBytes};

use super::super::Fresh;
use super::{Inside, NOWHERE, World};
use crate::{
    calls::{CallKey, Reply},
    channel::{Beside, CallOptions, Channel, Ticket},
    codec::{Compose, compose_into},
    method::Method,
    response::Response,
};

/// A call on a [`World`]. Dropping it cancels the call.
pub struct WorldCall<P: Provider> {
    world: World<P>,
    stage: Stage,
}

enum Stage {
    Started(ConnId, CallKey),
    /// It could not be started, and why.
    Failed(Response),
    /// For a connection.
    Waiting(&'static Method, CallOptions, Vec<u8>),
    Over,
}

impl<P: Provider> fmt::Debug for WorldCall<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorldCall")
    }
}

impl<P: Provider> Inside<P> {
    fn start<A: Compose + ?Sized>(
        &mut self,
        method: &'static Method,
        options: &CallOptions,
        Beside { loan, streams }: Beside,
        arguments: &A,
    ) -> Stage {
        assert!(options.metadata.is_none(), "calls of a world have no metadata");
        let timeout = options.resolve_streams();
        let conn = self.line.conn.as_ref().map_or(NOWHERE, |(conn, _)| *conn);
        let started = self.client.at(self.now).with(|node, io| {
            node.start(io, conn, method, timeout, Fresh::new(arguments), (loan, streams), Reply::Local)
        });
        match started {
            Ok(key) => Stage::Started(conn, key),
            Err(error) => Stage::Failed((*error).into()),
        }
    }
}

impl<P: Provider> Channel for World<P> {
    type Ticket = WorldCall<P>;

    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        beside: Beside,
        arguments: &A,
    ) -> WorldCall<P> {
        let mut inside = self.inside.borrow_mut();
        let stage = if inside.line.conn.is_none() && options.wait_for_ready {
            let mut body = Vec::new();
            compose_into(&mut body, 1 << 20, arguments).unwrap();
            Stage::Waiting(method, options.clone(), body)
        } else {
            inside.start(method, options, beside, arguments)
        };
        drop(inside);
        WorldCall { world: self.clone(), stage }
    }

    fn default_timeout(&self) -> Option<Duration> {
        None
    }

    fn drive(&self, _: Duration) -> bool {
        false
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        let _ = bytes;
        Err(LoanError::Closed)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.loan(bytes.len())
    }
}

impl<P: Provider> Ticket for WorldCall<P> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        let mut inside = self.world.inside.borrow_mut();
        if matches!(self.stage, Stage::Waiting(..)) && inside.line.conn.is_none() {
            inside.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return Poll::Pending,
                Stage::Failed(response) => return Poll::Ready(response),
                Stage::Waiting(method, options, body) => {
                    self.stage = inside.start(method, &options, Beside::default(), &body[..]);
                }
                Stage::Started(conn, key) => {
                    let node = inside.client.app_mut();
                    if let Some(response) = node.take(conn, key, &Cell::default()) {
                        return Poll::Ready(response);
                    }
                    node.watch(conn, key, context.waker());
                    self.stage = Stage::Started(conn, key);
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Response> {
        if let Stage::Started(conn, key) = self.stage {
            let mut inside = self.world.inside.borrow_mut();
            if let Some(begun) = inside.client.app_mut().take_begun(conn, key) {
                return Poll::Ready(begun.into());
            }
        }
        self.poll(context)
    }

    fn wait(&mut self) -> Response {
        panic!("a world turns only when it is told to");
    }

    fn recycle(&mut self, _: Vec<u8>) {}

    /// Nobody would take its answer.
    fn detach(&mut self) {}
}

impl<P: Provider> Drop for WorldCall<P> {
    fn drop(&mut self) {
        if let Stage::Started(conn, key) = self.stage {
            self.world.inside.borrow_mut().client.with(|node, io| node.cancel(io, conn, key));
        }
    }
}
