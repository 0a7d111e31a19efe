//! RDMA READs: none without a depth, and never more in flight than was granted.

use std::time::Duration;

use gimmal_rdma::cm::{Access, CmError, Connection, Depth, QpPlan, RemoteBuffer, SendFlags, Span, Transfer};
use gimmal_transport::Instant;

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, pair};

/// 0 on either side turns READs off, with an error that says so.
pub(crate) fn none(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    // siw raises what its passive side gives to what the active side asks.
    let pairs: &[(u8, u8)] = if site.iwarp { &[(0, 16)] } else { &[(0, 16), (16, 0)] };
    for &(ours, theirs) in pairs {
        let mut plan = Plan::default();
        plan.connect.initiator_depth = Depth::AtMost(ours);
        plan.accept.responder_resources = Depth::AtMost(theirs);
        let ((mut client, sink), (server, source)) =
            pair(&mut listener, &target, &plan, |endpoint| endpoint.add_buffer(64, Access::RemoteRead))?;
        let from = server.expose(source.all())?;
        match client.post_read(sink.all(), from, 1) {
            Err(error @ CmError::NoReads { .. }) => {
                ensure!(error.to_string().contains("initiator_depth was granted as 0"), "{error}");
            }
            other => return Err(format!("asked {ours}, given {theirs}: {other:?}").into()),
        }
    }
    Ok(None)
}

/// A SEND behind a READ may complete first. Each completes once, and nobody has the READ's memory before it does.
pub(crate) fn overtaken(site: &Site) -> Outcome {
    const BYTES: usize = 1 << 20;
    let (mut listener, target) = site.listen()?;
    let ((mut client, sink), (mut server, source)) =
        pair(&mut listener, &target, &Plan::default(), |endpoint| {
            endpoint.add_buffer(BYTES, Access::RemoteRead)
        })?;
    let note = client.add_buffer(8, Access::Local)?;
    let sink = if site.iwarp { client.add_buffer(BYTES, Access::ReadSink)? } else { sink };
    let inbox = server.add_buffer(8, Access::Local)?;
    let from = server.expose(source.all())?;
    let mut first = 0;
    for _ in 0..10 {
        server.post_receive(inbox.all(), 3)?;
        client.post_read(sink.all(), from, 1)?;
        client.post_send(note.all(), 2)?;
        let done = client.completion(STEP)?.token;
        if done == 2 {
            first += 1;
            let touched = client.write(sink.all(), b"too soon");
            ensure!(matches!(touched, Err(CmError::Posted { .. })), "{touched:?}");
        }
        let tokens = [done, client.completion(STEP)?.token];
        ensure!(tokens == [1, 2] || tokens == [2, 1], "{tokens:?}");
        client.write(sink.all(), b"is ours.")?;
        server.completion(STEP)?;
    }
    println!("        {first} of 10 SENDs completed before the READ");
    if site.iwarp {
        let silent = SendFlags { signalled: false, ..SendFlags::default() };
        let refused = client.post(Transfer::Read(from), &[sink.all()], silent, 1);
        ensure!(
            matches!(refused, Err(CmError::Unsupported { what: "an unsignalled READ", .. })),
            "{refused:?}"
        );
    }
    Ok(None)
}

/// On a path whose round trip is long: N READs take one of it together, and one more is refused.
pub(crate) fn in_flight(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    // More than 10 would need a second round trip for TCP's first window.
    for depth in [1, 3, 8] {
        let size = QpPlan { send_entries: 64, recv_entries: 1, ..QpPlan::default() };
        let mut plan = Plan { plan: size, ..Plan::default() };
        plan.options.plan = size;
        plan.connect.initiator_depth = Depth::AtMost(depth);
        let ((mut client, sink), (server, source)) =
            pair(&mut listener, &target, &plan, |endpoint| endpoint.add_buffer(4096, Access::RemoteRead))?;
        let from = server.expose(source.range(0..8))?;
        let granted = client.depths().initiator_depth.granted as usize;
        ensure!(granted == usize::from(depth), "granted {granted}, asked {depth}");
        let mut round_trip = STEP;
        for _ in 0..3 {
            let start = Instant::now();
            read(&mut client, sink.range(0..8), from)?;
            client.completion(STEP)?;
            round_trip = round_trip.min(start.elapsed());
        }
        if round_trip < Duration::from_millis(50) {
            return Ok(Some(format!("the path takes {round_trip:?}: too short to tell READs apart")));
        }
        let mut took = STEP;
        for _ in 0..3 {
            let start = Instant::now();
            for at in 0..granted {
                read(&mut client, sink.range(8 * at..8 * at + 8), from)?;
            }
            let more = client.post_read(sink.range(8 * granted..8 * granted + 8), from, 0);
            ensure!(more == Err(CmError::ReadsFull { granted: depth.into() }), "{more:?}");
            for _ in 0..granted {
                client.completion(STEP)?;
            }
            took = took.min(start.elapsed());
        }
        let trips = took.as_secs_f64() / round_trip.as_secs_f64();
        println!("        depth {depth}: {granted} READs took {trips:.2} round trips of {round_trip:?}");
        // One after the other they would take N; all were in flight at a time.
        ensure!(depth == 1 || trips < 1.5, "{granted} READs took {trips:.2} round trips");
        read(&mut client, sink.range(0..8), from)?;
        client.completion(STEP)?;
    }
    Ok(None)
}

fn read(client: &mut Connection, into: Span, from: RemoteBuffer) -> Result<(), Failure> {
    Ok(client.post_read(into, from, 0)?)
}
