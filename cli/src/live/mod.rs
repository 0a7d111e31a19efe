//! A look at a live server: what it serves, what it does, and calls by hand.

mod call;
mod describe;
mod named;
mod read;
mod wire;
mod write;

use std::{
    error::Error,
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use gimmal_rpc::{
    CallError, Client, Code,
    reflect::{MethodInfo, ReflectionClient},
};

use crate::{credentials::Credentials, say::printable};

/// How to reach a server.
#[derive(Debug, clap::Args)]
pub(crate) struct Server {
    /// Server to ask: shm://name, tcp://host:port, tcp+tls://host:port, rdma://host:port or gimmal://host:port.
    url: String,
    #[command(flatten)]
    credentials: Credentials,
    /// Milliseconds that a call may take.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
}

pub(crate) type Done<T = ()> = Result<T, Box<dyn Error>>;

impl Server {
    pub(crate) fn connect(&self) -> Done<Client> {
        let builder = self.credentials.client(&[&self.url])?.deadline(Duration::from_millis(self.timeout_ms));
        Ok(builder.connect(&self.url)?)
    }
}

/// `gimmal call`: lists methods, or calls one.
pub(crate) fn call(
    server: &Server,
    method: Option<&str>,
    arguments: &[String],
    bulk: Option<&str>,
    is_whole: bool,
) -> Done {
    let client = server.connect()?;
    let reflection = ReflectionClient::new(client.clone());
    let methods = reflection.methods().wait().map_err(explain)?;
    let Some(wanted) = method else {
        return if is_whole {
            as_json(&methods)
        } else {
            Ok(write!(io::stdout(), "{}", printable(&listed(&methods)))?)
        };
    };
    let found = methods.iter().find(|method| format!("{}.{}", method.service, method.name) == wanted);
    let found = found.ok_or_else(|| format!("{wanted} is not served; there are\n{}", listed(&methods)))?;
    call::call(&client, found, &call::Given { arguments, bulk, is_whole })
}

/// An error of the server's reflection, with its likely cause.
pub(crate) fn explain<E: std::fmt::Display>(error: CallError<E>) -> String {
    match error.status().map(|status| status.code()) {
        Some(Code::Unimplemented) => format!("{error}; was the server built without reflection?"),
        _ => error.to_string(),
    }
}

fn listed(methods: &[MethodInfo]) -> String {
    let mut out = String::new();
    for method in methods {
        let MethodInfo { service, name, signature, codec, kind, .. } = method;
        let again = if method.is_idempotent { ", idempotent" } else { "" };
        let shape = if method.schema.is_none() { ", no shape" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(out, "{service}.{name}{signature} [{kind}, {codec}{again}{shape}]");
    }
    out
}

/// `gimmal describe`: prints the services as Rust traits, or the methods as JSON.
pub(crate) fn describe(server: &Server, json: bool) -> Done {
    let methods = ReflectionClient::new(server.connect()?).methods().wait().map_err(explain)?;
    if methods.iter().filter_map(|method| method.schema.as_ref()).any(|schema| !schema.is_walkable()) {
        return Err("its types are too many to be read here".into());
    }
    if json {
        return as_json(&methods);
    }
    Ok(write!(io::stdout(), "{}", printable(&describe::described(&methods)))?)
}

fn as_json(methods: &[MethodInfo]) -> Done {
    Ok(writeln!(io::stdout(), "{}", serde_json::to_string_pretty(methods)?)?)
}
