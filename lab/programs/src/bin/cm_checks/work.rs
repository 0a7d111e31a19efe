//! Work: whose bytes are whose, failures in words, deadlines.

use std::time::Duration;

use gimmal_rdma::{
    DeviceError,
    cm::{Access, CmError, Operation},
};
use gimmal_transport::Instant;

use crate::rig::{Outcome, Plan, STEP, Site, ensure, pair};

pub(crate) fn posted_memory(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let mut plan = Plan::default();
    plan.options.plan.recv_entries = 2;
    plan.plan.recv_entries = 2;
    let ((mut client, ours), (mut server, theirs)) = pair(&mut listener, &target, &plan, |endpoint| {
        let buffer = endpoint.add_buffer(4096, Access::Local)?;
        endpoint.post_receive(buffer.range(0..64), 11)?;
        Ok(buffer)
    })?;
    let mut bytes = [0; 64];
    let touched = server.read(theirs.range(0..64), &mut bytes);
    ensure!(matches!(touched, Err(CmError::Posted { start: 0, end: 64 })), "{touched:?}");
    let touched = server.write(theirs.range(63..65), b"ab");
    ensure!(matches!(touched, Err(CmError::Posted { .. })), "{touched:?}");
    let twice = server.post_receive(theirs.range(32..96), 12);
    ensure!(matches!(twice, Err(CmError::Posted { .. })), "{twice:?}");
    server.post_receive(theirs.range(64..128), 12)?;
    let full = server.post_receive(theirs.range(128..192), 13);
    ensure!(full == Err(CmError::Full), "{full:?}");
    server.write(theirs.range(128..192), &[1; 64])?;
    let outside = client.write(ours.range(4000..5000), b"x");
    ensure!(matches!(outside, Err(CmError::Device(DeviceError::Limit { limit: 4096, .. }))), "{outside:?}");
    let foreign = client.write(theirs.all(), b"x");
    ensure!(matches!(foreign, Err(CmError::Unsupported { .. })), "{foreign:?}");
    let secret = client.expose(ours.all());
    ensure!(matches!(secret, Err(CmError::Unsupported { .. })), "{secret:?}");

    client.write(ours.range(128..160), &[7; 32])?;
    client.post_send(ours.range(128..160), 21)?;
    let touched = client.write(ours.range(130..131), b"x");
    ensure!(matches!(touched, Err(CmError::Posted { .. })), "{touched:?}");
    client.read(ours.range(128..160), &mut bytes[..32])?;
    let done = client.completion(STEP)?;
    ensure!((done.operation, done.token) == (Operation::Send, 21), "{done:?}");
    client.write(ours.range(130..131), b"x")?;
    let done = server.completion(STEP)?;
    ensure!((done.operation, done.token, done.span.len()) == (Operation::Receive, 11, 32), "{done:?}");
    server.read(done.span, &mut bytes[..32])?;
    ensure!(bytes[..32] == [7; 32], "{bytes:?}");
    client.disconnect()?;
    server.wait_closed(STEP)?;
    let over = server.completion(STEP);
    ensure!(over == Err(CmError::Closed), "{over:?}");
    Ok(None)
}

pub(crate) fn wrong_key(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let ((mut client, ours), (server, theirs)) =
        pair(&mut listener, &target, &Plan::default(), |endpoint| {
            endpoint.add_buffer(64, Access::RemoteWrite)
        })?;
    let mut to = server.expose(theirs.all())?;
    to.rkey ^= 0x5500;
    let long = client.post_write(ours.all(), gimmal_rdma::cm::RemoteBuffer { bytes: 8, ..to }, 5);
    ensure!(matches!(long, Err(CmError::Device(DeviceError::Limit { limit: 8, .. }))), "{long:?}");
    client.post_write(ours.all(), to, 5)?;
    let mut end = client.completion(STEP);
    if site.iwarp && end.is_ok() {
        // iWARP completes a WRITE when it has left; the peer's Terminate then ends the connection.
        end = client.completion(STEP);
    }
    let error = end.err().ok_or("a WRITE with a wrong key went through")?;
    println!("        {error}");
    // On iWARP a Terminate that overtakes the completion fails the WRITE with siw's own status.
    ensure!(
        matches!(error, CmError::Work { status: 10, token: 5, .. })
            || (site.iwarp && matches!(error, CmError::Work { token: 5, .. } | CmError::Closed)),
        "{error:?}"
    );
    Ok(None)
}

pub(crate) fn deadline(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let ((mut client, ()), _server) = pair(&mut listener, &target, &Plan::default(), |_| Ok(()))?;
    let start = Instant::now();
    let nothing = client.completion(Duration::from_millis(300));
    let took = start.elapsed();
    ensure!(matches!(nothing, Err(CmError::Timeout { .. })), "{nothing:?}");
    ensure!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "it took {took:?}");
    ensure!(client.try_completion()?.is_none(), "a completion from nowhere");
    Ok(None)
}
