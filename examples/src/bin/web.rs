//! An axum router with layers of tower-http, served over shared memory instead of HTTP.

#![forbid(unsafe_code)]

use std::time::Duration;

use axum::{Router, extract::Path, routing::get};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use tower_http::{set_header::SetResponseHeaderLayer, timeout::TimeoutLayer};
use tower_service::Service as _;

fn router() -> Router {
    let slow = async || tokio::time::sleep(Duration::from_secs(60)).await;
    Router::new()
        .route("/hello/{name}", get(async |Path(name): Path<String>| format!("hello {name}")))
        .route("/slow", get(slow))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(100)))
        .layer(SetResponseHeaderLayer::overriding(header::SERVER, HeaderValue::from_static("gimmal")))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = format!("shm://web-{}", std::process::id());
    let server = gimmal::Server::builder()
        .runtime(gimmal::tokio::Tokio::current()?)
        .service(gimmal_http::Serve::new(router()))
        .listen(&url)?;

    let mut client = gimmal_http::Client::new(gimmal::Client::connect_async(&url).await?);
    for path in ["/hello/Ada", "/nothing", "/slow"] {
        let request = Request::get(path).body(Empty::<Bytes>::new())?;
        let response = client.call(request).await?;
        let (status, server) = (response.status(), response.headers().get(header::SERVER).cloned());
        let body = response.into_body().collect().await?.to_bytes();
        match server.filter(|_| status.is_success()) {
            Some(server) => println!("{status}, {} (served by {})", body.escape_ascii(), server.to_str()?),
            None => println!("{status}"),
        }
    }
    drop(server);
    Ok(())
}
