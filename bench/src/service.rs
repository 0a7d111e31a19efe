//! The service that is measured, its server and its clients.

use std::fmt;

use gimmal::{
    Client, Cx, Server,
    config::{Idle, Placement},
    local::{LocalClient, LocalServer},
    raw::ResponseWriter,
};
use gimmal_engine::transport::Address;

use crate::{
    error::BenchError,
    items::{Source, serve_streams},
    plan::{Mode, Plan, engine_config},
};

/// What is called.
#[gimmal::service]
pub(crate) trait Bench {
    /// Sends the request back.
    #[raw]
    fn echo(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
    /// Echoes a vector through the codec.
    async fn typed(&self, cx: &Cx, body: Vec<u8>) -> Vec<u8>;
}

#[derive(Debug)]
struct Mirror;

impl Bench for Mirror {
    fn echo(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) {
        answer.write(request);
    }

    async fn typed(&self, _: &Cx, body: Vec<u8>) -> Vec<u8> {
        body
    }
}

fn config(plan: &Plan, ring_bytes: u32, idle: Idle) -> gimmal::Config {
    let default = gimmal::Config::default();
    gimmal::Config {
        engine: engine_config(plan.bytes + 64, ring_bytes, idle),
        window: plan.window.max(default.window),
        serving_max: plan.window.max(default.serving_max),
        ..default
    }
}

/// The server of `plan`, on the calling thread, beside the one at `address`.
///
/// # Errors
/// [`BenchError::Rpc`].
pub(crate) fn serve(address: &Address, plan: &Plan, ring_bytes: u32) -> Result<LocalServer, BenchError> {
    let beside = match address {
        Address::Shm { path } => format!("shm://{}-rpc", path.display()),
        Address::Rdma { host, via, .. } => {
            Address::Rdma { host: host.clone(), port: 0, via: via.clone() }.to_string()
        }
        Address::Tcp { host, tls, .. } => Address::Tcp { host: host.clone(), port: 0, tls: *tls }.to_string(),
        Address::Mem { name } => format!("mem://{name}-rpc"),
    };
    let idle = if plan.mode == Mode::Asleep { Idle::Event } else { Idle::default() };
    let services = Server::builder().service(serve_bench(Mirror)).service(serve_streams(Source));
    let builder = services.config(config(plan, ring_bytes, idle));
    builder.listen_local(&beside).map_err(|error| BenchError::Rpc(error.to_string()))
}

/// A client whose thread is its worker.
pub(crate) fn inline(url: &str, plan: &Plan, ring_bytes: u32) -> Result<LocalClient, BenchError> {
    let config = config(plan, ring_bytes, plan.mode.idle());
    let connected = Client::builder().config(config).connect_local(url);
    connected.map_err(|error| BenchError::Rpc(error.to_string()))
}

/// A client with a worker on the client's core.
pub(crate) fn handed_off(url: &str, plan: &Plan, ring_bytes: u32) -> Result<Client, BenchError> {
    let mut config = config(plan, ring_bytes, Idle::default());
    config.engine.placement = Placement::Cores(vec![plan.client_core]);
    config.engine.inbox = config.engine.inbox.max(plan.window);
    let connected = Client::builder().config(config).connect(url);
    connected.map_err(|error| BenchError::Rpc(error.to_string()))
}

pub(crate) fn failed(error: impl fmt::Display) -> BenchError {
    BenchError::Rpc(error.to_string())
}
