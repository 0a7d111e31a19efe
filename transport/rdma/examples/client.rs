use std::time::Duration;

use gimmal_rdma::cm::{Access, CmError, ConnectParam, DialOptions, Operation, Resolve, dial};

fn main() -> Result<(), CmError> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "server".to_owned());
    // A name or an address, and a port. Every address of a name is tried in order.
    let targets = Resolve::to(&server, 7471).run()?;
    let (options, param) = (DialOptions::default(), ConnectParam::default());
    let (mut connection, (inbox, outbox)) = dial(&targets, &options, &param, |endpoint| {
        let inbox = endpoint.add_buffer(16, Access::Local)?.all();
        let outbox = endpoint.add_buffer(16, Access::Local)?.all();
        // Before connecting: the peer may send at once.
        endpoint.post_receive(inbox, 0)?;
        Ok((inbox, outbox))
    })?;
    connection.write(outbox, b"ping over verbs.")?;
    connection.post_send(outbox, 1)?;
    while connection.completion(Duration::from_secs(5))?.operation != Operation::Receive {}
    let mut answer = [0; 16];
    connection.read(inbox, &mut answer)?;
    println!("{}", String::from_utf8_lossy(&answer));
    connection.disconnect()
}
