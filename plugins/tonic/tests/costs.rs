//! What a call over gimmal allocates above what tonic's own code does, counted on one thread that has both ends.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{DemoServer, Note, Seen, demo::demo_client::DemoClient, note};
use gimmal::tokio::{LocalClient, Tokio, serve_until};
use gimmal_tonic::{Channel, Server};
use tokio::{runtime::LocalRuntime, sync::oneshot, task::spawn_local};
use tonic::{body::Body, client::GrpcService};

const CALLS: u32 = 1000;

/// Allocations of a call of 64 bytes.
fn each<C>(runtime: &LocalRuntime, channel: C) -> f64
where
    C: GrpcService<Body, Error: std::fmt::Debug> + Clone,
    C::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <C::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let calls = |count: u32| {
        let mut client = DemoClient::new(channel.clone());
        runtime.block_on(async move {
            for _ in 0..count {
                let asked = Note { data: Bytes::from_static(&[7; 64]), ..note("echo") };
                assert_eq!(client.unary(asked.clone()).await.unwrap().into_inner(), asked);
            }
        });
    };
    calls(CALLS);
    let counted = allocation_counter::measure(|| calls(CALLS));
    f64::from(u32::try_from(counted.count_total).unwrap()) / f64::from(CALLS)
}

#[test]
fn a_call_takes_8_allocations_above_those_of_tonic() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
    let alone = each(&runtime, DemoServer::new(Seen::default()));
    let (stop, stopped) = oneshot::channel::<()>();
    let (channel, serving) = runtime.block_on(async {
        let service = Server::builder().add_service(DemoServer::new(Seen::default())).into_service();
        let builder = gimmal::Server::builder().runtime(Tokio::current().unwrap()).service(service);
        let server = builder.listen_local(&common::url("shm")).unwrap();
        let url = server.address().to_string();
        let serving = spawn_local(serve_until(server, stopped, Duration::from_secs(10)));
        let client = LocalClient::connect(&url).await.unwrap();
        (Channel::new(gimmal_http::Client::new(client)), serving)
    });
    let over = each(&runtime, channel);
    println!("{over:.2} allocations a call, of which tonic's own code has {alone:.2}");
    assert!(alone > 10.0, "{alone} allocations of tonic's own");
    // The blocks of small messages are a few in all calls together.
    let above = over - alone;
    assert!((7.9..8.1).contains(&above), "{above}: docs/grpc.md says how many, and of what");
    stop.send(()).unwrap();
    assert!(runtime.block_on(serving).unwrap().unwrap());
}
