use std::time::Duration;

use gimmal_rdma::cm::{AcceptParam, Access, CmError, Operation, QpPlan, Resolve};

const LIMIT: Duration = Duration::from_secs(5);

fn main() -> Result<(), CmError> {
    let address = std::env::args().nth(1);
    // Without an address on every one of this host.
    let mut listener = Resolve::passive(address.as_deref(), 7471).run()?[0].listen_ep(8)?;
    while let Some(request) = listener.request(LIMIT)? {
        let mut answering = request.endpoint(QpPlan::default())?;
        let inbox = answering.add_buffer(16, Access::Local)?.all();
        let outbox = answering.add_buffer(16, Access::Local)?.all();
        // Before accepting: the peer may send at once.
        answering.post_receive(inbox, 0)?;
        let mut connection = answering.accept(&AcceptParam::default(), LIMIT)?;
        while connection.completion(LIMIT)?.operation != Operation::Receive {}
        let mut question = [0; 16];
        connection.read(inbox, &mut question)?;
        connection.write(outbox, &question)?;
        connection.post_send(outbox, 1)?;
        connection.wait_closed(LIMIT)?;
    }
    Ok(())
}
