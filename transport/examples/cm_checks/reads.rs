//! RDMA READs: none without a depth, and never more in flight than was granted.

use std::time::{Duration, Instant};

use gimmal_transport::cm::{Access, CmError, Connection, Depth, QpPlan, RemoteBuffer, Span};

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, pair};

/// 0 on either side turns READs off, with an error that says so.
pub(crate) fn none(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    for (ours, theirs) in [(0, 16), (16, 0)] {
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

/// Posts 2 N READs on a path whose round trip is long. After one and a half of it, exactly N have completed.
pub(crate) fn in_flight(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    for depth in [1, 3, 16] {
        let size = QpPlan { send_entries: 64, recv_entries: 1, ..QpPlan::default() };
        let mut plan = Plan { plan: size, ..Plan::default() };
        plan.options.plan = size;
        plan.connect.initiator_depth = Depth::AtMost(depth);
        let ((mut client, sink), (server, source)) =
            pair(&mut listener, &target, &plan, |endpoint| endpoint.add_buffer(4096, Access::RemoteRead))?;
        let from = server.expose(source.range(0..8))?;
        let granted = client.depths().initiator_depth.granted as usize;
        ensure!(granted == usize::from(depth), "granted {granted}, asked {depth}");
        let start = Instant::now();
        read(&mut client, sink.range(0..8), from)?;
        client.completion(STEP)?;
        let round_trip = start.elapsed();
        if round_trip < Duration::from_millis(50) {
            return Ok(Some(format!("the path takes {round_trip:?}: too short to tell READs apart")));
        }
        let start = Instant::now();
        for at in 0..2 * granted {
            read(&mut client, sink.range(8 * at..8 * at + 8), from)?;
        }
        let half = start + round_trip * 3 / 2;
        let mut done = 0;
        while client.completion(half.saturating_duration_since(Instant::now())).is_ok() {
            done += 1;
        }
        ensure!(done == granted, "{done} READs within one round trip, granted are {granted}");
        while done < 2 * granted {
            client.completion(STEP)?;
            done += 1;
        }
        let trips = start.elapsed().as_secs_f64() / round_trip.as_secs_f64();
        println!(
            "        depth {depth}: {} READs took {trips:.2} round trips of {round_trip:?}",
            2 * granted
        );
        ensure!(trips > 1.8, "2 N READs in {trips:.2} round trips");
    }
    Ok(None)
}

fn read(client: &mut Connection, into: Span, from: RemoteBuffer) -> Result<(), Failure> {
    Ok(client.post_read(into, from, 0)?)
}
