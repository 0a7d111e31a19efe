//! ucmatose's client and server on the raw CM: N connections, messages both ways, then the server disconnects.
//!
//! `cmatose [-b ADDRESS]` serves, `cmatose -s ADDRESS` connects; `-c` connections, `-C` messages each way, `-S` bytes
//! of a message, `-p` port, `-t` type of service, `-a` ACK timeout exponent. The server sends first, as ucmatose's does, so over
//! iWARP there must be no messages (`-C 0`): MPA lets the active side send first (RFC 5044), and siw ends a
//! connection whose first data comes right behind the reply with EINVAL.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use gimmal_rdma::cm::{
    AcceptParam, Access, Buffer, CmError, ConnectParam, Connection, Depth, DialOptions, Draft, Endpoint,
    Operation, PortSpace, QpPlan, Resolve, RetryCount, dial,
};

/// For each step.
const STEP: Duration = Duration::from_secs(20);
/// How long the server waits for its clients.
const PATIENCE: Duration = Duration::from_secs(120);

/// Speaks the protocol of rdma-core's `ucmatose(1)`: serves, or connects to SERVER.
#[derive(Debug, Parser)]
#[command(about)]
struct Args {
    /// Connect to it.
    #[arg(short = 's')]
    server: Option<String>,
    /// Listen on this address.
    #[arg(short = 'b')]
    bind: Option<String>,
    /// Connections.
    #[arg(short = 'c', default_value_t = 1)]
    connections: usize,
    /// Messages each way on each connection; then the server disconnects.
    #[arg(short = 'C', default_value_t = 10)]
    messages: u32,
    /// Bytes of a message; 0: no messages, and the client disconnects, as cmtime's does.
    #[arg(short = 'S', default_value_t = 100)]
    size: usize,
    /// The server's port.
    #[arg(short = 'p', default_value_t = 7471)]
    port: u16,
    /// Type of service.
    #[arg(short = 't')]
    type_of_service: Option<u8>,
    /// Exponent of the ACK timeout.
    #[arg(short = 'a')]
    ack_timeout: Option<u8>,
}

impl Args {
    fn server_ends(&self) -> bool {
        self.size > 0
    }

    fn plan(&self) -> QpPlan {
        let entries = self.messages.max(1);
        QpPlan { send_entries: entries, recv_entries: entries, ..QpPlan::default() }
    }
}

/// A connection, and a buffer for each message in each direction.
struct Node {
    connection: Connection,
    out: Buffer,
}

impl Node {
    /// Makes the buffers and posts all receives.
    fn prepare(endpoint: &mut Endpoint, args: &Args) -> Result<Buffer, CmError> {
        let size = args.size.max(1);
        let inbox = endpoint.add_buffer(size * args.messages.max(1) as usize, Access::Local)?;
        for message in 0..args.messages as usize {
            endpoint.post_receive(inbox.range(message * size..(message + 1) * size), message as u64)?;
        }
        endpoint.add_buffer(size, Access::Local)
    }

    fn send(&mut self, args: &Args) -> anyhow::Result<()> {
        for message in 0..args.messages {
            self.connection.post_send(self.out.all(), message.into())?;
        }
        Ok(())
    }
}

/// Waits until every connection has `wanted` completions of each kind.
fn complete(nodes: &mut [Node], sends: u32, receives: u32, args: &Args) -> anyhow::Result<()> {
    for node in nodes {
        let (mut sent, mut received) = (0, 0);
        while sent < sends || received < receives {
            let done = node.connection.completion(STEP)?;
            match done.operation {
                Operation::Receive if done.span.len() == args.size => received += 1,
                Operation::Receive => bail!("a message of {} bytes", done.span.len()),
                _ => sent += 1,
            }
        }
    }
    Ok(())
}

fn serve(args: &Args) -> anyhow::Result<()> {
    let targets = Resolve::passive(args.bind.as_deref(), args.port).run()?;
    let address = targets[0].source.context("no address to listen on")?;
    let mut listener = Draft::new(PortSpace::Tcp)?.listen(address, 0)?;
    let mut nodes = Vec::new();
    for _ in 0..args.connections {
        let request = listener.request(PATIENCE)?.context("not enough clients came")?;
        let mut answering = request.endpoint(args.plan())?;
        if let Some(exponent) = args.ack_timeout {
            answering.ack_timeout(exponent)?;
        }
        let out = Node::prepare(&mut answering, args)?;
        nodes.push(Node { connection: answering.accept(&AcceptParam::default(), STEP)?, out });
    }
    for node in &mut nodes {
        node.send(args)?;
    }
    complete(&mut nodes, args.messages, args.messages, args)?;
    for node in nodes.iter_mut().filter(|_| args.server_ends()) {
        node.connection.disconnect()?;
    }
    for node in &mut nodes {
        node.connection.wait_closed(STEP)?;
    }
    println!("{} connections, {} messages each way", nodes.len(), args.messages);
    Ok(())
}

fn connect(args: &Args, server: &str) -> anyhow::Result<()> {
    let targets = Resolve::to(server, args.port).run()?;
    let options = DialOptions {
        type_of_service: args.type_of_service,
        ack_timeout: args.ack_timeout,
        timeout: STEP,
        plan: args.plan(),
    };
    let param = ConnectParam {
        responder_resources: Depth::AtMost(1),
        initiator_depth: Depth::AtMost(1),
        retry_count: RetryCount::new(5)?,
        ..ConnectParam::default()
    };
    let mut nodes = Vec::new();
    for _ in 0..args.connections {
        let (connection, out) = dial(&targets, &options, &param, |endpoint| Node::prepare(endpoint, args))?;
        nodes.push(Node { connection, out });
    }
    complete(&mut nodes, 0, args.messages, args)?;
    for node in &mut nodes {
        node.send(args)?;
    }
    complete(&mut nodes, args.messages, 0, args)?;
    for node in &mut nodes {
        if !args.server_ends() {
            node.connection.disconnect()?;
        }
        node.connection.wait_closed(STEP)?;
    }
    println!("{} connections, {} messages each way", nodes.len(), args.messages);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let mut args = Args::parse();
    if args.size == 0 {
        args.messages = 0;
    }
    match &args.server {
        Some(server) => connect(&args, server),
        None => serve(&args),
    }
}
