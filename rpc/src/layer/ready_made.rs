//! Layers that most clients want one of.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{Ended, Layer, ServerLayer};
use crate::{
    channel::CallOptions,
    cx::Cx,
    exposition::{self, Exposition, Kind},
    method::Method,
    response::Response,
    status::{Code, Status},
};
use gimmal_engine::transport::Instant;

/// A layer of clients: no call takes longer than this, those with streams included. A shorter time-out of the call's options stays.
/// It takes the place of the client's default deadline, also of a shorter one.
#[derive(Clone, Copy, Debug)]
pub struct Timeout(pub Duration);

impl Layer for Timeout {
    type Seen = ();

    fn before(&self, _: &'static Method, options: &mut CallOptions) -> Result<(), Status> {
        *options = std::mem::take(options).timeout_at_most(self.0);
        Ok(())
    }
}

/// A layer of clients and of services: at most so many calls at once. One more is refused at once, not run, with `resource
/// exhausted`. Clones share the count.
#[derive(Clone, Debug)]
pub struct Limit {
    most: usize,
    under_way: Arc<AtomicUsize>,
}

impl Limit {
    /// Allows `most` calls at once; 0 refuses all.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, under_way: Arc::default() }
    }
}

/// One of the calls that may be in flight.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limit {
    fn permit(&self) -> Result<Permit, Status> {
        let permit = Permit(Arc::clone(&self.under_way));
        if self.under_way.fetch_add(1, Ordering::Relaxed) < self.most {
            return Ok(permit);
        }
        let text = format!("{} calls are in flight already, the limit", self.most);
        Err(Status::refused(Code::ResourceExhausted, text))
    }
}

impl Layer for Limit {
    type Seen = Permit;

    fn before(&self, _: &'static Method, _: &mut CallOptions) -> Result<Permit, Status> {
        self.permit()
    }
}

/// At most so many handlers of the service at once.
impl ServerLayer for Limit {
    type Seen = Permit;

    fn before(&self, _: &Cx, _: &'static Method) -> Result<Permit, Status> {
        self.permit()
    }
}

/// A layer of clients and of services: at most so many calls a second, and a burst. One more is refused at once, not run, with
/// `resource exhausted`. Clones share the count. Takes a lock for each call.
#[derive(Clone, Debug)]
pub struct Rate {
    each: Duration,
    burst: u32,
    /// When the bucket would be empty: the time of the last call that was let through, moved on by one share each.
    spent: Arc<Mutex<Option<Instant>>>,
}

impl Rate {
    /// Allows `per_second` calls a second on average, `burst` of them at once. 0 counts as 1. Above 10^9 a second nothing is
    /// refused.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let each = Duration::from_nanos(1_000_000_000 / u64::from(per_second.max(1)));
        Self { each, burst: burst.max(1), spent: Arc::default() }
    }
}

impl Rate {
    fn spend(&self) -> Result<(), Status> {
        let now = Instant::now();
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let base = spent.map_or(now, |spent| spent.max(now));
        if base - now > self.each.saturating_mul(self.burst - 1) {
            let text = format!("more than one call each {:?}, with bursts of {}", self.each, self.burst);
            return Err(Status::refused(Code::ResourceExhausted, text));
        }
        *spent = Some(base + self.each);
        Ok(())
    }
}

impl Layer for Rate {
    type Seen = ();

    fn before(&self, _: &'static Method, _: &mut CallOptions) -> Result<(), Status> {
        self.spend()
    }
}

/// At most so many handlers of the service a second.
impl ServerLayer for Rate {
    type Seen = ();

    fn before(&self, _: &Cx, _: &'static Method) -> Result<(), Status> {
        self.spend()
    }
}

/// A layer of clients and of services: an event of `tracing` for every call, within a span of its own. Around a client it is
/// `debug` for an answered call and `warn` for another one; around a service it is `debug`. Nothing is done when nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Layer for Log {
    type Seen = Option<(tracing::Span, Instant)>;

    fn before(&self, method: &'static Method, _: &mut CallOptions) -> Result<Self::Seen, Status> {
        let span = tracing::debug_span!("call", service = method.service, method = method.name);
        let is_heard = !span.is_disabled() || tracing::enabled!(tracing::Level::WARN);
        Ok(is_heard.then(|| (span, Instant::now())))
    }

    fn after(&self, method: &'static Method, seen: Self::Seen, response: &Response) {
        let Some((span, started)) = seen else { return };
        let _entered = span.enter();
        let took = started.elapsed();
        match response.failure() {
            Some(error) => tracing::warn!(%method, ?took, %error, "call failed"),
            None => tracing::debug!(%method, ?took, "call answered"),
        }
    }
}

/// An event for every handler that began.
impl ServerLayer for Log {
    type Seen = Option<(tracing::Span, Instant)>;

    fn before(&self, cx: &Cx, method: &'static Method) -> Result<Self::Seen, Status> {
        let span = tracing::debug_span!(
            "serve",
            service = method.service,
            method = method.name,
            peer = cx.peer().name
        );
        Ok((!span.is_disabled()).then(|| (span, Instant::now())))
    }

    fn after(&self, method: &'static Method, seen: Self::Seen, ended: Ended) {
        let Some((span, started)) = seen else { return };
        let _entered = span.enter();
        tracing::debug!(%method, took = ?started.elapsed(), ?ended, "handler ended");
    }
}

/// Upper bounds of the buckets of [`Metrics`], microseconds.
const BUCKETS_US: [u64; 12] = [2, 5, 10, 25, 50, 100, 250, 1000, 5000, 25_000, 100_000, 1_000_000];

/// What became of one method's calls, as [`Metrics`] counted it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MethodMetrics {
    /// Calls that ended with an answer or the method's own error.
    pub answered: u64,
    /// Calls that ended otherwise.
    pub failed: u64,
    /// Time of all that ended.
    pub total: Duration,
    /// How many ended within 2, 5, 10, 25, 50, 100, 250 us, 1, 5, 25, 100 ms and 1 s; the last ones took longer.
    pub buckets: [u64; 13],
}

/// A layer of clients and of services that counts calls and their time, by method. Clones share it. It takes a lock and reads the
/// clock for each call.
///
/// ```
#[doc = include_str!("../doc/hello.txt")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gimmal::layer::{Guarded, Metrics};
///
/// let metrics = Metrics::default();
/// let service = Guarded::new(serve_hello(Greeter), metrics.clone()); // for a client: `Layered::new(channel, metrics.clone())`
/// let server = gimmal::Server::builder().service(service).listen("mem://doc-metrics")?;
/// # let client = HelloClient::new(gimmal::Client::connect("mem://doc-metrics")?);
/// # client.hello("world".into()).wait()?;
/// // Give this text to whatever serves `/metrics`.
/// let text = Metrics::joined(&[metrics.prometheus("server"), server.stats().prometheus("server")]);
/// assert!(text.contains("gimmal_call_seconds"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    methods: Arc<Mutex<BTreeMap<(&'static str, &'static str), MethodMetrics>>>,
}

impl Metrics {
    /// Returns what was counted so far, by service and method.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<(&'static str, &'static str), MethodMetrics> {
        self.methods.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the metrics in Prometheus' text format. `side` becomes a label: `client` or `server`, for instance.
    #[must_use]
    pub fn prometheus(&self, side: &str) -> String {
        const SECONDS: &str = "gimmal_call_seconds";
        const FAILED: &str = "gimmal_call_failed_total";
        let methods = self.snapshot();
        let mut out = Exposition::default();
        out.family(SECONDS, Kind::Histogram, "Time of calls that ended, in seconds.");
        for ((service, method), seen) in &methods {
            let labels = [("side", side), ("service", *service), ("method", *method)];
            let mut sum = 0;
            for (at, count) in seen.buckets.iter().enumerate() {
                sum += count;
                let bound = |us: &u64| Duration::from_micros(*us).as_secs_f64().to_string();
                let le = BUCKETS_US.get(at).map_or_else(|| "+Inf".to_owned(), bound);
                let labels = [labels[0], labels[1], labels[2], ("le", &*le)];
                out.sample(&format!("{SECONDS}_bucket"), &labels, sum);
            }
            out.sample(&format!("{SECONDS}_sum"), &labels, seen.total.as_secs_f64());
            out.sample(&format!("{SECONDS}_count"), &labels, sum);
        }
        out.family(
            FAILED,
            Kind::Counter,
            "Calls that ended with neither an answer nor the method's own error.",
        );
        for ((service, method), seen) in &methods {
            out.sample(FAILED, &[("side", side), ("service", *service), ("method", *method)], seen.failed);
        }
        out.into_text()
    }

    /// Joins texts of [`Metrics::prometheus`] and [`Stats::prometheus`](crate::Stats::prometheus) into one. A family
    /// that several of them have becomes one group, as the format demands.
    #[must_use]
    pub fn joined(parts: &[String]) -> String {
        exposition::joined(parts)
    }
}

impl Metrics {
    fn note(&self, method: &'static Method, started: Instant, is_answered: bool) {
        let took = started.elapsed();
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.iter().position(|bound| us <= *bound).unwrap_or(BUCKETS_US.len());
        let mut methods = self.methods.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = methods.entry((method.service, method.name)).or_default();
        seen.answered += u64::from(is_answered);
        seen.failed += u64::from(!is_answered);
        seen.total = seen.total.saturating_add(took);
        seen.buckets[bucket] += 1;
    }
}

/// Handlers by method. One that was dropped counts as failed: it panicked, or nobody waited for it any more.
impl ServerLayer for Metrics {
    type Seen = Instant;

    fn before(&self, _: &Cx, _: &'static Method) -> Result<Instant, Status> {
        Ok(Instant::now())
    }

    fn after(&self, method: &'static Method, started: Instant, ended: Ended) {
        self.note(method, started, matches!(ended, Ended::Answered | Ended::Error));
    }
}

impl Layer for Metrics {
    type Seen = Instant;

    fn before(&self, _: &'static Method, _: &mut CallOptions) -> Result<Instant, Status> {
        Ok(Instant::now())
    }

    fn after(&self, method: &'static Method, started: Instant, response: &Response) {
        self.note(method, started, response.failure().is_none());
    }
}
