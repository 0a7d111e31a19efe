//! The client whose calling thread is the worker: the lowest latency, no second thread, no copy of the request.

use std::{fmt, rc::Rc, time::Duration};

use gimmal_engine::transport::{Loan, LoanError, Negotiated, UserBytes};

use crate::{
    channel::{CallOptions, Channel},
    codec::Compose,
    config::Config,
    error::ConnectError,
    method::Method,
    near::{Local, Mover, Near},
    pipeline::Pipeline,
    stats::Stats,
    stream::Lanes,
};

/// A connection whose worker is the calling thread. Not `Send`; clones share it.
///
/// Its calls move only while one of them is [waited](crate::Call::wait) for or polled, or by
/// [`turn`](InlineClient::turn). The first leaves at once; one that starts while others are under way leaves with the
/// next turn, so that a window of them costs one doorbell. As a future, a call that has not ended runs one turn each time it
/// is polled, and asks to be polled again.
#[derive(Clone)]
pub struct InlineClient {
    near: Rc<Near>,
}

impl fmt::Debug for InlineClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InlineClient({:?})", self.near)
    }
}

impl InlineClient {
    /// Connects; blocks, at most for the connect and handshake time-outs.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::with(Config::default(), url)
    }

    pub(crate) fn with(mut config: Config, url: &str) -> Result<Self, ConnectError> {
        // Its thread turns only while somebody waits for a call: silence between calls is no sign of death.
        config.engine.port.attended = false;
        Ok(Self { near: Rc::new(Near::connect(config, url, Mover::Poller)?) })
    }

    /// What the connection runs with.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        self.near.negotiated()
    }

    /// Returns a pipeline of calls of `method`, a raw one, each with `options`. A generated client has a method for this
    /// beside each raw one.
    #[must_use]
    pub fn pipeline(&self, method: &'static Method, options: &CallOptions) -> Pipeline {
        Pipeline::new(&self.near, method, options)
    }

    /// One bounded turn of the worker; returns how much it did.
    pub fn turn(&self) -> usize {
        self.near.turns().turn()
    }

    /// A turn; when it found nothing, idles by the configured strategy, at most for `limit`: where that is to spin, a few
    /// turns more.
    pub fn idle(&self, limit: Duration) -> usize {
        self.near.turns().idle(limit)
    }

    /// Counters of this client.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.near.stats()
    }

    /// Says goodbye and waits for the answer, at most `timeout`. Returns whether it came; `false` too while clones
    /// are left.
    #[must_use]
    pub fn close(self, timeout: Duration) -> bool {
        let conn = self.near.conn;
        let mut turns = self.near.turns();
        turns.with(|_, io| io.close(conn));
        let until = turns.now().plus(timeout);
        while turns.now() < until {
            turns.idle(Duration::from_millis(1));
            if turns.with(|_, io| io.negotiated(conn).is_none()) {
                return true;
            }
        }
        false
    }
}

impl Channel for InlineClient {
    type Ticket = Local;

    #[inline]
    fn start<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        loan: Option<Loan>,
        arguments: &A,
    ) -> Local {
        self.near.start(method, options, loan, arguments)
    }

    fn start_streams<A: Compose + ?Sized>(
        &self,
        method: &'static Method,
        options: &CallOptions,
        lanes: Lanes,
        arguments: &A,
    ) -> Local {
        self.near.start_beside(method, options, None, Some(Box::new(lanes)), arguments)
    }

    fn drive(&self, idle: Duration) -> bool {
        let mut turns = self.near.turns();
        if idle.is_zero() {
            turns.turn();
        } else {
            turns.idle(idle);
        }
        true
    }

    fn loan(&self, bytes: usize) -> Result<Loan, LoanError> {
        self.near.loan(bytes)
    }

    fn lend(&self, bytes: &UserBytes) -> Result<Loan, LoanError> {
        self.near.lend(bytes)
    }
}
