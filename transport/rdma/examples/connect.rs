//! Connects two ids, sends a message each way, and ends: `connect ADDRESS`, an address of an RDMA device of this machine.

use std::{error::Error, net::IpAddr, process::ExitCode, time::Duration};

use gimmal_rdma::cm::{
    AcceptParam, Access, CmAddress, ConnectParam, Connection, DialOptions, Draft, Listener, Operation,
    PortSpace, QpPlan, Span, Target, dial,
};

type Failure = Box<dyn Error + Send + Sync>;

/// Bounds every step.
const LIMIT: Duration = Duration::from_secs(10);
const ROOM: usize = 64;

/// The next message that arrives in `inbox`.
fn receive(connection: &mut Connection, inbox: Span) -> Result<String, Failure> {
    loop {
        let done = connection.completion(LIMIT)?;
        if done.operation == Operation::Receive {
            let mut bytes = vec![0; done.span.len()];
            connection.read(inbox.first(bytes.len()), &mut bytes)?;
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Sends `text` from `outbox`, and returns when the device has sent it.
fn send(connection: &mut Connection, outbox: Span, text: &str) -> Result<(), Failure> {
    let span = outbox.first(text.len());
    connection.write(span, text.as_bytes())?;
    connection.post_send(span, 0)?;
    while connection.completion(LIMIT)?.operation != Operation::Send {}
    Ok(())
}

/// Accepts one connection, and sends back what arrives.
fn serve(mut listener: Listener) -> Result<(), Failure> {
    let request = listener.request(LIMIT)?.ok_or("nobody asked to connect")?;
    let mut answering = request.endpoint(QpPlan::default())?;
    let inbox = answering.add_buffer(ROOM, Access::Local)?.all();
    let outbox = answering.add_buffer(ROOM, Access::Local)?.all();
    // Posted before the accept: the peer may send as soon as it is connected.
    answering.post_receive(inbox, 0)?;
    let mut connection = answering.accept(&AcceptParam::default(), LIMIT)?;
    let text = receive(&mut connection, inbox)?;
    send(&mut connection, outbox, &text)?;
    connection.wait_closed(LIMIT)?;
    Ok(())
}

/// Connects to `address`, sends a message, and waits for its echo. On iWARP the connecting side must send first.
fn ask(address: CmAddress) -> Result<String, Failure> {
    let options = DialOptions { timeout: LIMIT, ..DialOptions::default() };
    let (mut connection, (inbox, outbox)) =
        dial(&[Target::at(address)], &options, &ConnectParam::default(), |endpoint| {
            let inbox = endpoint.add_buffer(ROOM, Access::Local)?.all();
            let outbox = endpoint.add_buffer(ROOM, Access::Local)?.all();
            endpoint.post_receive(inbox, 0)?;
            Ok((inbox, outbox))
        })?;
    println!("connected by {}, READ depth {}", connection.device(), connection.depths().initiator_depth);
    connection.write(outbox.first(4), b"ping")?;
    connection.post_send(outbox.first(4), 0)?;
    let echo = receive(&mut connection, inbox)?;
    connection.disconnect()?;
    Ok(echo)
}

fn run() -> Result<(), Failure> {
    let address: IpAddr = std::env::args().nth(1).ok_or("usage: connect ADDRESS")?.parse()?;
    let listener = Draft::new(PortSpace::Tcp)?.listen(std::net::SocketAddr::new(address, 0), 1)?;
    let target = listener.address().ok_or("the listener has no address")?;
    let server = std::thread::spawn(move || serve(listener));
    let echo = ask(target)?;
    server.join().map_err(|_| "the server panicked")??;
    if echo == "ping" {
        println!("{echo} came back");
        Ok(())
    } else {
        Err(format!("'{echo}' came back").into())
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
