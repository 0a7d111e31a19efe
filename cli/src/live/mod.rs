//! A look at a live server: what it serves, what it does, and calls by hand.

mod value;

use std::{
    error::Error,
    fmt::Write as _,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use gimmal_rpc::{
    CallError, CallOptions, Channel, Client, Code, Key, Method, MethodKind,
    channel::{Beside, Ticket},
    reflect::{MethodInfo, ReflectionClient},
    response::{Body, ResponseStatus},
};
use value::{Type, signature};

/// How to reach a server.
#[derive(Debug, clap::Args)]
pub(crate) struct Server {
    /// The server: shm://name, rdma://host:port or gimmal://host:port.
    url: String,
    /// A file with the shared key, mode 0600.
    #[arg(long)]
    key: Option<PathBuf>,
    /// Milliseconds that a call may take.
    #[arg(long, default_value_t = 5000)]
    timeout_ms: u64,
}

pub(crate) type Done<T = ()> = Result<T, Box<dyn Error>>;

impl Server {
    pub(crate) fn connect(&self) -> Done<Client> {
        let mut builder = Client::builder().deadline(Duration::from_millis(self.timeout_ms));
        if let Some(path) = &self.key {
            builder = builder.key(Key::from_file(path)?);
        }
        Ok(builder.connect(&self.url)?)
    }
}

/// `gimmal call`: lists methods, or calls one.
pub(crate) fn call(server: &Server, method: Option<&str>, arguments: &[String]) -> Done {
    let client = server.connect()?;
    let reflection = ReflectionClient::new(client.clone());
    let methods = reflection.methods().wait().map_err(explain)?;
    let Some(wanted) = method else {
        write!(io::stdout(), "{}", listed(&methods))?;
        return Ok(());
    };
    let found = methods.iter().find(|method| format!("{}.{}", method.service, method.name) == wanted);
    let found = found.ok_or_else(|| format!("{wanted} is not served; there are\n{}", listed(&methods)))?;
    writeln!(io::stdout(), "{}", answer(&client, found, arguments)?)?;
    Ok(())
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
        // Writing to a string does not fail.
        let _ = writeln!(out, "{service}.{name}{signature} [{kind}, {codec}{again}]");
    }
    out
}

fn answer(client: &Client, method: &MethodInfo, arguments: &[String]) -> Done<String> {
    if !method.is_plain {
        return Err("bulk and streams need a program with the service's trait".into());
    }
    let is_raw = method.kind == "raw";
    if !is_raw && method.codec != "postcard" {
        return Err(format!("only postcard is spoken here, and it has {}", method.codec).into());
    }
    let mut body = Vec::new();
    let mut result = None;
    if is_raw {
        body.extend_from_slice(arguments.join(" ").as_bytes());
    } else {
        let (types, spelled) = signature(&method.signature).ok_or("its signature cannot be read")?;
        if types.len() != arguments.len() {
            let (wanted, given) = (types.len(), arguments.len());
            return Err(format!("{} takes {wanted} arguments, {given} were given", method.signature).into());
        }
        for (ty, given) in types.iter().zip(arguments) {
            Type::parse(ty)?.encode_argument(given, &mut body)?;
        }
        result = Type::parse(spelled).ok();
    }
    let kind = if is_raw { MethodKind::Raw } else { MethodKind::Async };
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let (service, name) = (leak(&method.service), leak(&method.name));
    // A method lives as long as the process: this one makes one call.
    let spoken = Method::new(service, name, leak(&method.signature), leak(&method.codec), kind);
    let spoken = if method.kind == "one-way" { spoken.one_way() } else { spoken };
    let spoken: &'static Method = Box::leak(Box::new(spoken));
    // Not through a typed call: whether bytes are the method's error is seen here.
    let response = client.start(spoken, &CallOptions::default(), Beside::default(), &body[..]).wait();
    match (response.status, response.body, response.lent) {
        (ResponseStatus::Failed(failure), ..) => Err(failure.to_string().into()),
        (ResponseStatus::Ok, Body::Owned(body), None) if is_raw => {
            Ok(String::from_utf8_lossy(&body).into_owned())
        }
        (ResponseStatus::Ok, Body::Owned(body), None) => Ok(shown(result.as_ref(), &body)),
        (ResponseStatus::Error, Body::Owned(body), None) => {
            let ty = match &result {
                Some(Type::Result(_, error)) => error.as_deref(),
                _ => None,
            };
            Err(format!("the method failed: {}", shown(ty, &body)).into())
        }
        _ => Err("the answer is too large to be shown here".into()),
    }
}

/// Formats an answer as JSON, or as bytes if its type is unknown.
fn shown(ty: Option<&Type>, bytes: &[u8]) -> String {
    let json = ty.and_then(|ty| ty.decode_all(bytes));
    json.map_or_else(
        || bytes.iter().fold("0x".to_owned(), |hex, byte| format!("{hex}{byte:02x}")),
        |value| value.to_string(),
    )
}
