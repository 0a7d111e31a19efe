//! The client: says where its buffers are, and waits.

use anyhow::{Context as _, ensure};
use gimmal_rdma::cm::{
    Access, Buffer, CmAddress, CmError, ConnectParam, Connection, Depth, DialOptions, Operation, QpPlan,
    Resolve, Span, dial,
};

use crate::{
    args::Args,
    wire::{INFO_BYTES, encode},
};

struct Buffers {
    source: Buffer,
    sink: Buffer,
    out: Buffer,
    inbox: Buffer,
}

/// Pings until the count, or until the server ends.
///
/// # Errors
/// Of the connection, and bytes that came back different.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let node = args.address.as_deref().context("-c needs -a ADDRESS")?;
    let mut question = Resolve::to(node, args.port);
    if let Some(ip) = args.source {
        question.source = Some(CmAddress::Ip((ip, 0).into()));
    }
    let options = DialOptions {
        timeout: args.step(),
        plan: QpPlan { send_entries: 16, recv_entries: 2, maker: args.maker() },
        ..DialOptions::default()
    };
    let param = ConnectParam {
        responder_resources: Depth::AtMost(1),
        initiator_depth: Depth::AtMost(1),
        ..ConnectParam::default()
    };
    let (mut connection, buffers) = dial(&question.run()?, &options, &param, |endpoint| {
        let buffers = Buffers {
            source: endpoint.add_buffer(args.size, Access::RemoteRead)?,
            sink: endpoint.add_buffer(args.size, Access::RemoteWrite)?,
            out: endpoint.add_buffer(INFO_BYTES, Access::Local)?,
            inbox: endpoint.add_buffer(INFO_BYTES, Access::Local)?,
        };
        endpoint.post_receive(buffers.inbox.all(), 0)?;
        Ok(buffers)
    })?;
    let mut pings = 0;
    while args.count.is_none_or(|count| pings < count) {
        match ping(&mut connection, &buffers, args, pings) {
            Ok(()) => pings += 1,
            Err(error) if args.count.is_none() && is_closed(&error) => break,
            Err(error) => return Err(error.context(format!("ping {pings}"))),
        }
    }
    let valid = if args.validate { ", all valid" } else { "" };
    println!("{pings} pings of {} bytes over {}{valid}", args.size, connection.device());
    connection.disconnect()?;
    Ok(())
}

fn is_closed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CmError::Closed))
}

fn ping(connection: &mut Connection, buffers: &Buffers, args: &Args, number: u64) -> anyhow::Result<()> {
    let data = data(args.size, number);
    connection.write(buffers.source.all(), &data)?;
    tell(connection, buffers, args, buffers.source.all())?;
    tell(connection, buffers, args, buffers.sink.all())?;
    if args.validate {
        let mut back = vec![0; args.size];
        connection.read(buffers.sink.all(), &mut back)?;
        ensure!(back == data, "what came back is not what was sent");
    }
    if args.verbose {
        println!("ping data: {}", String::from_utf8_lossy(&data[..args.size - 1]));
    }
    Ok(())
}

/// Tells where `span` is, and waits until the server did its part.
fn tell(connection: &mut Connection, buffers: &Buffers, args: &Args, span: Span) -> anyhow::Result<()> {
    let info = encode(&connection.expose(span)?);
    connection.write(buffers.out.all(), &info)?;
    connection.post_send(buffers.out.all(), 0)?;
    let (mut sent, mut answered) = (false, false);
    while !(sent && answered) {
        match connection.completion(args.step())?.operation {
            Operation::Receive => {
                answered = true;
                connection.post_receive(buffers.inbox.all(), 0)?;
            }
            _ => sent = true,
        }
    }
    Ok(())
}

/// Text and the letters A to z, from another letter each time; ends with a NUL, as rping's does.
fn data(size: usize, number: u64) -> Vec<u8> {
    let mut data = format!("rdma-ping-{number}: ").into_bytes();
    data.truncate(size);
    let mut letters = (b'A'..=b'z').cycle().skip(usize::try_from(number % 58).unwrap_or(0));
    while data.len() < size {
        data.extend(letters.next());
    }
    data[size - 1] = 0;
    data
}
