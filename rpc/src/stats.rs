//! Counters of calls, one set for each worker, read from other threads.

use std::sync::Arc;

use crate::exposition::{Exposition, Kind};
pub(crate) use gimmal_engine::transport::sync::Counter;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of one worker. It alone writes them, with plain stores.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// What was counted so far. Each number is exact; together they may be a turn apart.
        ///
        /// ```
        #[doc = include_str!("doc/hello.txt")]
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let _server = gimmal::Server::builder().service(serve_hello(Greeter)).listen("mem://doc-stats")?;
        /// let client = gimmal::Client::connect("mem://doc-stats")?;
        /// # HelloClient::new(client.clone()).hello("world".into()).wait()?;
        /// let stats = client.stats(); // or those of a server
        /// assert_eq!((stats.calls, stats.failed), (1, 0));
        /// for (name, value) in stats.fields().into_iter().filter(|(_, value)| *value > 0) {
        ///     println!("{name} {value}");
        /// }
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Stats { $($(#[doc = $doc])* pub $name: u64,)* }

        impl Stats {
            /// Returns every number with its name.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Every number with its name and what it counts.
            fn explained(&self) -> Vec<(&'static str, u64, &'static str)> {
                vec![$((stringify!($name), self.$name, concat!($($doc),*)),)*]
            }
        }

        impl Counters {
            pub(crate) fn add_to(&self, stats: &mut Stats) { $(stats.$name += self.$name.get();)* }
        }
    };
}

counters! {
    /// Calls started here.
    calls,
    /// Requests that left.
    posted,
    /// One-way requests that left.
    one_way,
    /// Calls that ended with an answer or the method's error.
    answered,
    /// Calls that ended otherwise.
    failed,
    /// Calls whose deadline passed here.
    expired,
    /// Times that calls began to wait because calls with streams had every place of [`Config::window`](crate::Config::window). The first
    /// time on a connection is logged.
    behind_streams,
    /// Calls given up by dropping them.
    cancelled,
    /// Answers that came after their call had ended; dropped.
    late_answers,
    /// Requests that arrived.
    requests,
    /// Requests refused before dispatch: overload, no permission, unknown, mismatch, draining.
    refused,
    /// Requests refused, of those, because of a limit: as many served or pending as may be, or no memory for their bulk.
    overloaded,
    /// Requests refused, of those, because their caller had no permission.
    denied,
    /// Connections that ended because the peer broke the protocol.
    violations,
    /// Handlers that began.
    started,
    /// Answers that left, of every outcome.
    answers,
    /// Handlers dropped because the caller cancelled, or was gone.
    dropped,
    /// Handlers dropped at their deadline.
    overdue,
    /// Handlers that panicked.
    panics,
    /// Polls of handlers that blocked their worker for [`Config::slow_poll`](crate::Config::slow_poll) or longer.
    slow_polls,
    /// Workers that panicked: the connections of each ended, and another worker took its place.
    worker_panics,
    /// Calls being served now: running, or answered and waiting for room.
    serving,
    /// Answers that had to wait for credit.
    blocked_answers,
    /// Copies of a request's arguments, beside their encoding and decoding: one for each call that was handed off or had
    /// to wait for room, one for arguments beside a loan at the server. None for others.
    copied_requests,
    /// Copies of an answer, beside its encoding and decoding: one for each that a caller takes out of the ring, one for
    /// each of a raw or inline method that found no room in it. Statuses do not count.
    copied_answers,
    /// Requests and answers that left as bulk by themselves, because a message does not hold them.
    large,
    /// Bytes of those that were copied beside being encoded and decoded: answers of raw methods are, once.
    large_copied_bytes,
    /// Items of streams, and pieces of byte streams, that left as bulk: their readers have them where they were written or brought.
    large_items,
}

impl Stats {
    /// What several workers counted.
    pub(crate) fn sum(counters: &[Arc<Counters>]) -> Self {
        let mut stats = Self::default();
        counters.iter().for_each(|counters| counters.add_to(&mut stats));
        stats
    }

    /// Returns the counters in Prometheus' text format. `side` becomes a label: `client` or `server`, for instance.
    #[must_use]
    pub fn prometheus(&self, side: &str) -> String {
        let mut out = Exposition::default();
        for (name, value, help) in self.explained() {
            let (name, kind) = match name {
                // It goes down too.
                "serving" => (format!("gimmal_{name}"), Kind::Gauge),
                _ => (format!("gimmal_{name}_total"), Kind::Counter),
            };
            out.family(&name, kind, help);
            out.sample(&name, &[("side", side)], value);
        }
        out.into_text()
    }
}
