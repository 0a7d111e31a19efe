//! What a client or server is told beyond the engine's configuration.

use std::time::Duration;

use gimmal_engine::{ConfigError, Plan, transport::ConnectOptions};

use crate::stream::{self, Budget};

/// How calls are made and served. Every field has a section in `tuning.md`.
///
/// ```
/// use std::time::Duration;
///
/// use gimmal_rpc::Config;
///
/// let config = Config { deadline: Duration::from_secs(2), window: 256, ..Config::default() };
/// let client = gimmal_rpc::Client::builder().config(config); // and `ServerBuilder::config`
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Workers, rings, idling.
    pub engine: gimmal_engine::Config,
    /// Deadline of a call that is given none, 1 us or more; zero: no limit. Calls with streams have none unless it is given. Default
    /// 10 s.
    pub deadline: Duration,
    /// Calls that may be in flight at once on a connection, 1 to 16,384; one with streams is in flight until it ends. More wait in the
    /// client. Default 64.
    pub window: usize,
    /// Calls that may wait in the client on a connection; one more is refused, not run. Default 1024.
    pub waiting_max: usize,
    /// Calls a peer may have in flight on a connection, 1 to 16,384; one more is refused, not run. As many one-way handlers of it may
    /// be pending besides. Default 256.
    pub serving_max: usize,
    /// How a [`Client`](crate::Client) comes back when its connection ended; `None`: it does not. A
    /// [`LocalClient`](crate::LocalClient) without a runtime never does.
    pub reconnect: Option<Reconnect>,
    /// Handlers that may be pending on a worker, over all connections, 1 to 2^20; one more is refused, not run. One-way handlers,
    /// which outlive their connection, may be half of them. Default 4096.
    pub tasks_max: usize,
    /// In a server with a [`runtime`](crate::ServerBuilder::runtime), a handler that keeps its worker longer than this in one poll is
    /// counted and logged with its method, to some 10 ms; zero: none is. Inline and raw methods are not watched. Default 100 ms.
    pub slow_poll: Duration,
    /// Largest arguments or answer, encoded, that travel by themselves as bulk because a message does not hold them,
    /// bytes; 0: none do. At most 1 GiB. Larger ones are refused. Default 16 MiB.
    pub message_bytes_max: usize,
    /// Bytes of a stream that may be on their way to its reader, or lie before it, at first: 4 KiB to 4 MiB. It doubles, up to 4 MiB,
    /// while the reader keeps up. Default 1.25 MiB: what a message of 1 MiB and its head cost.
    pub stream_window: u32,
    /// What the windows of all streams of a connection come to, bytes. A stream begins with at most a 64th of what is left, and with 4 KiB
    /// at least. Default 128 MiB.
    pub stream_budget: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: gimmal_engine::Config::default(),
            deadline: Duration::from_secs(10),
            window: 64,
            waiting_max: 1024,
            serving_max: 256,
            reconnect: Some(Reconnect::default()),
            tasks_max: 4096,
            slow_poll: Duration::from_millis(100),
            message_bytes_max: 16 << 20,
            stream_window: 5 << 18,
            stream_budget: 128 << 20,
        }
    }
}

/// When a client tries to connect again. Every wait is drawn between half of what it says and all of it, so that
/// the clients of a server that comes back do not come at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconnect {
    /// The wait before the first attempt, 1 ms or more; doubled for each next one. Default 10 ms.
    pub first: Duration,
    /// The longest wait, at most 1 h. Default 1 s.
    pub max: Duration,
    /// How long one attempt may take, 10 ms or more, at most `connect.connect_timeout`: a request that was sent while the network was
    /// down is not sent again by the CM for 4 s, so it is better given up. Default 1 s.
    pub attempt: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(10),
            max: Duration::from_secs(1),
            attempt: Duration::from_secs(1),
        }
    }
}

impl Reconnect {
    /// How one attempt is made.
    pub(crate) fn options(&self, options: &ConnectOptions) -> ConnectOptions {
        ConnectOptions {
            connect_timeout: options.connect_timeout.min(self.attempt),
            handshake_timeout: options.handshake_timeout.min(self.attempt),
            ..options.clone()
        }
    }

    /// The field that cannot be, its value, and the rule.
    pub(crate) fn flaw(&self) -> Option<(&'static str, Duration, &'static str)> {
        if self.max > Duration::from_secs(3600) {
            return Some(("reconnect.max", self.max, "at most 1 h"));
        }
        if self.first < Duration::from_millis(1) || self.first > self.max {
            return Some(("reconnect.first", self.first, "at least 1 ms and at most reconnect.max"));
        }
        let is_short = self.attempt < Duration::from_millis(10);
        is_short.then_some(("reconnect.attempt", self.attempt, "at least 10 ms"))
    }
}

/// The part that is the RPC layer's, proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) deadline: Option<Duration>,
    pub(crate) window: usize,
    pub(crate) waiting_max: usize,
    pub(crate) serving_max: usize,
    pub(crate) tasks_max: usize,
    pub(crate) slow_poll: Duration,
    pub(crate) message_bytes_max: usize,
    pub(crate) stream_window: u32,
    pub(crate) stream_budget: usize,
    /// What users may keep of a connection's bulk that they read of streams.
    pub(crate) kept_max: usize,
}

impl Limits {
    /// Of a connection's streams.
    pub(crate) fn budget(&self) -> Budget {
        Budget::of(self.stream_window, self.stream_budget, self.message_bytes_max).keeping(self.kept_max)
    }

    /// Handlers of one-way requests that may be pending on a worker.
    pub(crate) const fn one_way_max(&self) -> usize {
        self.tasks_max.div_ceil(2)
    }
}

/// Most calls of a window: a server keeps a word and a slot for each.
pub(crate) const WINDOW_MAX: usize = 16_384;

impl Config {
    /// Proves it.
    ///
    /// # Errors
    /// Names the first field that cannot be.
    pub(crate) fn validate(self) -> Result<(Plan, Limits), ConfigError> {
        let field = |field, value: usize, rule| Err(ConfigError::Field { field, value: value as u64, rule });
        if !(1..=WINDOW_MAX).contains(&self.window) {
            return field("window", self.window, "1 to 16,384");
        }
        if !(1..=WINDOW_MAX).contains(&self.serving_max) {
            return field("serving_max", self.serving_max, "1 to 16,384");
        }
        if !(1..=1 << 20).contains(&self.tasks_max) {
            return field("tasks_max", self.tasks_max, "1 to 1,048,576");
        }
        if self.waiting_max > 1 << 20 {
            return field("waiting_max", self.waiting_max, "at most 1,048,576");
        }
        if self.message_bytes_max > 1 << 30 {
            return field("message_bytes_max", self.message_bytes_max, "at most 1,073,741,824");
        }
        if !(stream::WINDOW_MIN..=stream::WINDOW_MAX).contains(&self.stream_window) {
            return field("stream_window", self.stream_window as usize, "4,096 to 4,194,304");
        }
        if let Some((field, value, rule)) = self.reconnect.as_ref().and_then(Reconnect::flaw) {
            return Err(ConfigError::Time { field, value, rule });
        }
        if !self.deadline.is_zero() && self.deadline < Duration::from_micros(1) {
            let (field, value) = ("deadline", self.deadline);
            return Err(ConfigError::Time { field, value, rule: "0 (no limit), or at least 1 us" });
        }
        let limits = Limits {
            deadline: (!self.deadline.is_zero()).then_some(self.deadline),
            window: self.window,
            waiting_max: self.waiting_max,
            serving_max: self.serving_max,
            tasks_max: self.tasks_max,
            slow_poll: self.slow_poll,
            message_bytes_max: self.message_bytes_max,
            stream_window: self.stream_window,
            stream_budget: self.stream_budget,
            // The rest is for what was not read.
            kept_max: usize::try_from(self.engine.port.loan_bytes_max / 4).unwrap_or(usize::MAX),
        };
        Ok((self.engine.validate()?, limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_fields_are_named() {
        assert!(Config::default().validate().is_ok());
        type Change = fn(&mut Config);
        let changes: [(Change, &str); 8] = [
            (|c| c.window = 0, "window is 0"),
            (|c| c.serving_max = 16_385, "serving_max is 16385"),
            (|c| c.tasks_max = 0, "tasks_max is 0"),
            (|c| c.waiting_max = usize::MAX, "waiting_max is"),
            (|c| c.message_bytes_max = usize::MAX, "message_bytes_max is"),
            (|c| c.stream_window = 0, "stream_window is 0"),
            (|c| c.engine.batch = 0, "batch is 0"),
            (
                |c| c.reconnect = Some(Reconnect { attempt: Duration::ZERO, ..Reconnect::default() }),
                "reconnect.attempt is 0",
            ),
        ];
        for (change, message) in changes {
            let mut config = Config::default();
            change(&mut config);
            assert!(config.validate().unwrap_err().to_string().starts_with(message));
        }
    }
}
