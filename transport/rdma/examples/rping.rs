//! Speaks the protocol of rdma-core's `rping(1)`: `rping -s|-c -a ADDRESS [-p PORT] [-C COUNT] [-S SIZE] [-q]`.
//!
//! The client tells where its data is, which the server READs; then where its sink is, which the server WRITEs. The
//! client compares the two. With `-q` this program makes the queue pair, instead of the CM.

use std::{error::Error, time::Duration};

use gimmal_rdma::cm::{
    AcceptParam, Access, CmError, ConnectParam, Connection, DialOptions, Endpoint, Operation, QpMaker,
    QpPlan, RemoteBuffer, Resolve, SendFlags, Span, Transfer, dial,
};

const LIMIT: Duration = Duration::from_secs(10);
const SIZE_MAX: usize = 64 << 10;

/// Data, where it comes back, and the 16 bytes of a message in each direction.
type Buffers = [Span; 4];

fn prepare(endpoint: &mut Endpoint, size: usize, data: Access) -> Result<Buffers, CmError> {
    let mut add = |bytes, access| Ok::<_, CmError>(endpoint.add_buffer(bytes, access)?.all());
    let [data, sink] = [add(size, data)?, add(size, Access::RemoteWrite)?];
    let [outbox, inbox] = [add(16, Access::Local)?, add(16, Access::Local)?];
    endpoint.post_receive(inbox, 0)?;
    Ok([data, sink, outbox, inbox])
}

/// Waits for work of one kind. A receive is posted again; its message is a buffer of the peer's, if it names one.
fn until(to: &mut Connection, inbox: Span, wanted: Operation) -> Result<RemoteBuffer, CmError> {
    while to.completion(LIMIT)?.operation != wanted {}
    let mut info = [0; 16];
    if wanted == Operation::Receive {
        to.read(inbox, &mut info)?;
        to.post_receive(inbox, 0)?;
    }
    let number = |part: &[u8]| part.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let rkey = u32::try_from(number(&info[8..12])).unwrap_or(0);
    Ok(RemoteBuffer { address: number(&info[..8]), rkey, bytes: number(&info[12..]) })
}

fn client(to: &mut Connection, buffers: Buffers, size: usize, count: u32) -> Result<(), Box<dyn Error>> {
    let [source, sink, outbox, inbox] = buffers;
    for number in 0..count {
        let data = format!("{:.<width$}\0", format!("rdma-ping-{number}: "), width = size - 1).into_bytes();
        to.write(source, &data)?;
        for span in [source, sink] {
            let at = to.expose(span)?;
            let (address, bytes) = (at.address.to_be_bytes(), u32::try_from(at.bytes)?.to_be_bytes());
            to.write(outbox, &[&address[..], &at.rkey.to_be_bytes(), &bytes].concat())?;
            to.post(Transfer::Send, &[outbox], SendFlags { inline: true, ..SendFlags::default() }, 0)?;
            until(to, inbox, Operation::Receive)?;
        }
        let mut back = vec![0; size];
        to.read(sink, &mut back)?;
        if back != data {
            return Err(format!("ping {number}: what came back is not what was sent").into());
        }
    }
    println!("{count} pings of {size} bytes over {}, all valid", to.device());
    Ok(to.disconnect()?)
}

fn pong(to: &mut Connection, [data, _, outbox, inbox]: Buffers) -> Result<(), CmError> {
    let from = until(to, inbox, Operation::Receive)?;
    let data = data.first(usize::try_from(from.bytes).unwrap_or(0));
    to.post_read(data, from, 0)?;
    until(to, inbox, Operation::Read)?;
    to.post_send(outbox, 0)?;
    let sink = until(to, inbox, Operation::Receive)?;
    to.post_write(data, sink, 0)?;
    until(to, inbox, Operation::Write)?;
    to.post_send(outbox, 0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let at = |flag: &str| words.iter().position(|word| word == flag);
    let value = |flag, default| at(flag).and_then(|at| words.get(at + 1)).map_or(default, String::as_str);
    let (address, port) = (value("-a", "127.0.0.1"), value("-p", "7174"));
    let maker = if at("-q").is_some() { QpMaker::Us } else { QpMaker::Cm };
    let plan = QpPlan { maker, inline_bytes: 16, ..QpPlan::default() };
    if at("-s").is_some() {
        let mut listener = Resolve::passive(Some(address), port).run()?[0].listen_ep(1)?;
        let mut answering = listener.request(LIMIT)?.ok_or("nobody came")?.endpoint(plan)?;
        let buffers = prepare(&mut answering, SIZE_MAX, Access::ReadSink)?;
        let mut to = answering.accept(&AcceptParam::default(), LIMIT)?;
        let end = std::iter::repeat_with(|| pong(&mut to, buffers)).find_map(Result::err);
        return end.filter(|end| *end != CmError::Closed).map_or(Ok(()), |end| Err(end.into()));
    }
    let size = value("-S", "64").parse::<usize>()?.clamp(24, SIZE_MAX);
    let (targets, options) =
        (Resolve::to(address, port).run()?, DialOptions { plan, ..DialOptions::default() });
    let (mut to, buffers) = dial(&targets, &options, &ConnectParam::default(), |endpoint| {
        prepare(endpoint, size, Access::RemoteRead)
    })?;
    client(&mut to, buffers, size, value("-C", "10").parse()?)
}
