//! One trace over typed calls and tonic's, sent to a receiver of OpenTelemetry: `cargo run -p gimmal-tonic --example traced`.
//!
//! ```text
//!  main ─ typed call ─► front's handler ─ gRPC ─► health service
//!    └─ span ─────────────┴─ two spans ─────────────┴─ span ──► OTLP over HTTP, as JSON
//! ```
//! A receiver in this process checks that the spans are one trace. With `OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318` they go to a
//! collector instead.

#![allow(clippy::disallowed_types, reason = "spans have times of the wall clock")]

use std::{
    error::Error,
    fmt::Write as _,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gimmal::{CallOptions, Cx, Metadata, metadata::TRACEPARENT, tokio::Tokio};
use http::Request;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tonic::{Status, body::Body};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower_service::Service;

type BoxError = Box<dyn Error + Send + Sync>;

/// OpenTelemetry's kinds of spans.
const SERVER: u8 = 2;
const CLIENT: u8 = 3;

/// An operation of a trace. It ends, and is sent, when it is dropped.
struct Span {
    name: &'static str,
    kind: u8,
    trace: String,
    id: String,
    parent: Option<String>,
    began: SystemTime,
    out: mpsc::UnboundedSender<Value>,
}

/// So many digits of hexadecimal. A library of OpenTelemetry has better random numbers.
fn random_hex(digits: usize) -> String {
    let mut text = String::new();
    while text.len() < digits {
        let _ = write!(text, "{:016x}", RandomState::new().build_hasher().finish());
    }
    text.truncate(digits);
    text
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

impl Span {
    /// Begins an operation: a part of the one that `traceparent` (W3C Trace Context) names, else of a new trace.
    fn begin(
        out: &mpsc::UnboundedSender<Value>,
        name: &'static str,
        kind: u8,
        traceparent: Option<&str>,
    ) -> Self {
        let parts: Vec<&str> = traceparent.unwrap_or_default().split('-').collect();
        let (trace, parent) = match parts[..] {
            ["00", trace, parent, _] if trace.len() == 32 && parent.len() == 16 => {
                (trace.to_owned(), Some(parent.to_owned()))
            }
            _ => (random_hex(32), None),
        };
        Self { name, kind, trace, id: random_hex(16), parent, began: SystemTime::now(), out: out.clone() }
    }

    /// What the next operation is a part of.
    fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let mut span = json!({
            "traceId": self.trace, "spanId": self.id, "name": self.name, "kind": self.kind,
            "startTimeUnixNano": nanos(self.began), "endTimeUnixNano": nanos(SystemTime::now()),
        });
        if let Some(parent) = &self.parent {
            span["parentSpanId"] = json!(parent);
        }
        let _ = self.out.send(span);
    }
}

/// Sends `spans` to a receiver, as OTLP over HTTP has them.
async fn export(receiver: &str, spans: &[Value]) -> Result<(), BoxError> {
    let name = json!([{"key": "service.name", "value": {"stringValue": "gimmal-traced"}}]);
    let scope = json!([{"scope": {"name": "traced"}, "spans": spans}]);
    let body =
        json!({"resourceSpans": [{"resource": {"attributes": name}, "scopeSpans": scope}]}).to_string();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: {receiver}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(receiver).await?;
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 200") {
        Ok(())
    } else {
        Err(format!("{receiver} said {answer:?}").into())
    }
}

/// A receiver: keeps what it is sent.
async fn receive(listener: TcpListener, kept: Arc<Mutex<Vec<Value>>>) -> std::io::Result<()> {
    let take = async move |body: bytes::Bytes| {
        let Ok(traces) = serde_json::from_slice::<Value>(&body) else { return Err("not JSON") };
        let spans = traces.pointer("/resourceSpans/0/scopeSpans/0/spans").and_then(Value::as_array);
        let spans = spans.ok_or("not OTLP")?;
        kept.lock().map_err(|_| "poisoned")?.extend_from_slice(spans);
        Ok("{}")
    };
    axum::serve(listener, axum::Router::new().route("/v1/traces", axum::routing::post(take))).await
}

/// A service in a span for each call, for tonic's and every other service of HTTP.
#[derive(Clone)]
struct Traced<S>(S, mpsc::UnboundedSender<Value>);

impl<S> Service<Request<Body>> for Traced<S>
where
    S: Service<Request<Body>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let theirs = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let span = Span::begin(&self.1, "health", SERVER, theirs);
        let answer = self.0.call(request);
        Box::pin(async move {
            let _span = span;
            answer.await
        })
    }
}

#[gimmal::service]
trait Front {
    /// Whether the service behind is healthy.
    async fn is_well(&self, cx: &Cx) -> bool;
}

struct Fronting {
    health: HealthClient<gimmal_tonic::Channel>,
    spans: mpsc::UnboundedSender<Value>,
}

impl Front for Fronting {
    async fn is_well(&self, cx: &Cx) -> bool {
        let metadata = cx.metadata();
        let theirs = metadata.as_ref().and_then(|metadata| metadata.text(TRACEPARENT));
        let serving = Span::begin(&self.spans, "is_well", SERVER, theirs);
        let asking = Span::begin(&self.spans, "check", CLIENT, Some(&serving.traceparent()));
        let mut request = tonic::Request::new(HealthCheckRequest::default());
        let Ok(value) = asking.traceparent().parse() else { return false };
        request.metadata_mut().insert(TRACEPARENT, value);
        let answer: Result<_, Status> = self.health.clone().check(request).await;
        answer.is_ok_and(|answer| answer.into_inner().status == 1)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> Result<(), BoxError> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let collector = std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
    let receiver = match &collector {
        Some(url) => url.trim_start_matches("http://").trim_end_matches('/').to_owned(),
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?.to_string();
            tokio::spawn(receive(listener, Arc::clone(&kept)));
            address
        }
    };
    let (out, mut spans) = mpsc::unbounded_channel();

    let (_, health) = tonic_health::server::health_reporter();
    let layered = out.clone();
    let behind = gimmal_tonic::Server::builder()
        .layer(tower_layer::layer_fn(move |inner| Traced(inner, layered.clone())))
        .add_service(health)
        .listen(&format!("shm://traced-health-{}", std::process::id()))?;
    let health = HealthClient::new(gimmal_tonic::connect(&behind.address().to_string()).await?);
    let front = gimmal::Server::builder()
        .runtime(Tokio::current()?)
        .service(serve_front(Fronting { health, spans: out.clone() }))
        .listen(&format!("shm://traced-front-{}", std::process::id()))?;
    let client = FrontClient::new(gimmal::Client::connect_async(&front.address().to_string()).await?);

    let asking = Span::begin(&out, "front", CLIENT, None);
    let mut metadata = Metadata::new();
    metadata.insert(TRACEPARENT, asking.traceparent())?;
    let options = CallOptions::default().timeout(Duration::from_secs(10)).metadata(metadata);
    let is_well = client.with_options(options).is_well().await?;
    drop(asking);

    let mut ended = Vec::new();
    while ended.len() < 4 {
        ended.extend(spans.recv().await);
    }
    export(&receiver, &ended).await?;
    println!("healthy: {is_well}; {} spans sent to {receiver}", ended.len());
    if collector.is_none() {
        let kept = std::mem::take(&mut *kept.lock().map_err(|_| "poisoned")?);
        println!("{}", one_trace(&kept)?);
    }
    Ok(())
}

/// The spans' names, each behind the one that it is a part of, if they are one trace.
fn one_trace(spans: &[Value]) -> Result<String, BoxError> {
    let (mut line, mut parent) = (String::from("one trace:"), None);
    while let Some(next) = spans.iter().find(|span| span.get("parentSpanId") == parent) {
        if next["traceId"] != spans[0]["traceId"] {
            return Err(format!("two traces: {spans:?}").into());
        }
        let _ = write!(line, " {}", next["name"].as_str().unwrap_or_default());
        parent = next.get("spanId");
    }
    let names = line.split(' ').count() - 2;
    if names == spans.len() { Ok(line) } else { Err(format!("not one line of spans: {spans:?}").into()) }
}
