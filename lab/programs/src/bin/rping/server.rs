//! The server: READs the client's source, WRITEs it to the client's sink.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gimmal_rdma::cm::{
    AcceptParam, Access, Buffer, CmError, Connection, Draft, Operation, PortSpace, QpPlan, RemoteBuffer,
    Resolve, Span,
};

use crate::{
    args::{Args, SIZE_MAX},
    wire::{INFO_BYTES, decode},
};

/// How long the server waits for its client.
const PATIENCE: Duration = Duration::from_secs(600);

struct Buffers {
    data: Buffer,
    out: Buffer,
    inbox: Buffer,
}

/// Serves one client until it disconnects.
///
/// # Errors
/// Of the connection, and a client that does not speak rping.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let targets = Resolve::passive(args.address.as_deref(), args.port).run()?;
    let address = targets[0].source.context("no address to listen on")?;
    let mut listener = Draft::new(PortSpace::Tcp)?.listen(address, 3)?;
    let request = listener.request(PATIENCE)?.context("nobody came")?;
    let plan = QpPlan { send_entries: 16, recv_entries: 2, maker: args.maker() };
    let mut answering = request.endpoint(plan)?;
    let buffers = Buffers {
        data: answering.add_buffer(SIZE_MAX, Access::ReadSink)?,
        out: answering.add_buffer(INFO_BYTES, Access::Local)?,
        inbox: answering.add_buffer(INFO_BYTES, Access::Local)?,
    };
    answering.post_receive(buffers.inbox.all(), 0)?;
    let mut connection = answering.accept(&AcceptParam::default(), args.step())?;
    let mut pings = 0u64;
    let end = loop {
        match pong(&mut connection, &buffers, args, pings) {
            Ok(()) => pings += 1,
            Err(error) => break error,
        }
    };
    println!("{pings} pings served over {}", connection.device());
    if matches!(end.downcast_ref(), Some(CmError::Closed)) { Ok(()) } else { Err(end) }
}

fn pong(connection: &mut Connection, buffers: &Buffers, args: &Args, number: u64) -> anyhow::Result<()> {
    let source = told(connection, buffers, PATIENCE)?;
    let bytes = usize::try_from(source.bytes)?;
    ensure!(bytes <= SIZE_MAX, "the client's buffer has {bytes} bytes, the limit is {SIZE_MAX}");
    let data = buffers.data.range(0..bytes);
    connection.post_read(data, source, 0)?;
    until(connection, Operation::Read, args.step())?;
    let mut text = vec![0; bytes];
    connection.read(data, &mut text)?;
    if args.verbose {
        println!("server ping data {number}: {}", String::from_utf8_lossy(&text));
    }
    connection.post_send(buffers.out.all(), 0)?;
    let sink = told(connection, buffers, args.step())?;
    // As rping: up to and with the first NUL.
    let len = text.iter().position(|&byte| byte == 0).map_or(bytes, |nul| nul + 1);
    connection.post_write(data.first(len), sink, 0)?;
    until(connection, Operation::Write, args.step())?;
    connection.post_send(buffers.out.all(), 0)?;
    Ok(())
}

/// The client's next message; the receive is posted again.
fn told(connection: &mut Connection, buffers: &Buffers, patience: Duration) -> anyhow::Result<RemoteBuffer> {
    let span = until(connection, Operation::Receive, patience)?;
    let mut info = vec![0; span.len()];
    connection.read(span, &mut info)?;
    connection.post_receive(buffers.inbox.all(), 0)?;
    decode(&info)
}

/// Waits for a completion of this kind; sends complete meanwhile.
fn until(connection: &mut Connection, wanted: Operation, patience: Duration) -> anyhow::Result<Span> {
    loop {
        let done = connection.completion(patience)?;
        if done.operation == wanted {
            return Ok(done.span);
        }
    }
}
