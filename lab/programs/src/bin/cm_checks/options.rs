//! Options where they are legal, and values that are not.

use std::{net::SocketAddr, time::Duration};

use gimmal_rdma::{
    DeviceError,
    cm::{CmError, Draft, EventKind, PortSpace, QpPlan, Target, dial},
};
use gimmal_transport::Instant;

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, meet, pair};

pub(crate) fn legal(site: &Site) -> Outcome {
    let draft = Draft::new(PortSpace::Tcp)?;
    draft.type_of_service(0x28)?;
    draft.reuse_address(true)?;
    let resolved = draft.resolve(None, site.address(29)?, STEP)?;
    resolved.type_of_service(0x28)?;
    ensure!(!resolved.device().is_empty(), "the device has no name");
    if site.iwarp {
        let refused = resolved.ack_timeout(14);
        ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
    } else {
        resolved.ack_timeout(14)?;
        let refused = resolved.ack_timeout(32);
        ensure!(matches!(refused, Err(CmError::Device(DeviceError::Limit { limit: 31, .. }))), "{refused:?}");
    }
    let routed = resolved.resolve_route(STEP)?;
    if !site.iwarp {
        routed.ack_timeout(0)?;
    }
    let refused = routed.endpoint(QpPlan { send_entries: 1 << 30, ..QpPlan::default() });
    ensure!(
        matches!(refused, Err(CmError::Device(DeviceError::Limit { field: "send_entries", .. }))),
        "{refused:?}"
    );
    Ok(None)
}

/// Each side's own, as the queue pair shows it.
pub(crate) fn ack_timeout(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has TCP's timers".to_owned()));
    }
    let (mut listener, target) = site.listen()?;
    let mut plan = Plan::default();
    plan.options.ack_timeout = Some(17);
    plan.options.type_of_service = Some(0x20);
    let (client, server) = meet(
        &mut listener,
        &target,
        &plan,
        |_| Ok(()),
        |request| {
            let answering = request.endpoint(plan.plan)?;
            answering.ack_timeout(19)?;
            Ok(answering.accept(&plan.accept, STEP)?)
        },
    )?;
    let (mut client, ()) = client?;
    let seen = (client.query()?.timeout, server.query()?.timeout);
    ensure!(seen == (17, 19), "the queue pairs have {seen:?}, set were 17 and 19");
    client.set_rnr_timer(12)?;
    let refused = client.set_rnr_timer(32);
    ensure!(matches!(refused, Err(CmError::Device(DeviceError::Limit { limit: 31, .. }))), "{refused:?}");
    let view = client.query()?;
    ensure!(view.min_rnr_timer == 12 && server.query()?.min_rnr_timer == 0, "{view:?}");
    ensure!((view.retry_count, view.rnr_retry, view.state) == (7, 7, 3), "{view:?}");
    Ok(None)
}

pub(crate) fn binding(site: &Site) -> Outcome {
    let (listener, target) = site.listen()?;
    let taken = target.destination.ok_or("no destination")?;
    let second = Draft::new(PortSpace::Tcp)?.listen(taken, 1);
    ensure!(matches!(second, Err(CmError::Device(DeviceError::System { errno: 98, .. }))), "{second:?}");
    drop(listener);
    let again = Draft::new(PortSpace::Tcp)?;
    again.reuse_address(true)?;
    let again = again.listen(taken, 1)?;
    ensure!(again.address() == Some(taken), "{:?}", again.address());
    drop(again);
    // With AFONLY both families can have the port; without, IPv6 takes both.
    let any6: SocketAddr = "[::]:0".parse()?;
    let one = Draft::new(PortSpace::Tcp)?;
    one.one_family(true)?;
    let one = one.listen(any6, 1)?;
    let port = one.address().ok_or("no address")?.port();
    let any4: SocketAddr = format!("0.0.0.0:{port}").parse()?;
    let other = Draft::new(PortSpace::Tcp)?.listen(any4, 1)?;
    drop((one, other));
    let both = Draft::new(PortSpace::Tcp)?;
    both.one_family(false)?;
    let both = both.listen(any6, 1)?;
    let port = both.address().ok_or("no address")?.port();
    let any4: SocketAddr = format!("0.0.0.0:{port}").parse()?;
    let refused = Draft::new(PortSpace::Tcp)?.listen(any4, 1);
    // EADDRNOTAVAIL: so the kernel says it when one of the two is a wildcard.
    ensure!(
        matches!(refused, Err(CmError::Device(DeviceError::System { errno: 98 | 99, .. }))),
        "{refused:?}"
    );
    Ok(None)
}

/// A port behind connections in TIME_WAIT is free at once, with REUSEADDR and without.
pub(crate) fn time_wait(site: &Site) -> Outcome {
    for reuse in [false, true] {
        let (mut listener, target) = site.listen()?;
        let taken = target.destination.ok_or("no destination")?;
        let ((mut client, ()), (mut server, ())) =
            pair(&mut listener, &target, &Plan::default(), |_| Ok(()))?;
        // The side that ends first waits.
        server.disconnect()?;
        client.wait_closed(STEP)?;
        drop(listener);
        let again = Draft::new(PortSpace::Tcp)?;
        if reuse {
            again.reuse_address(true)?;
        }
        let again = again.listen(taken, 1)?;
        ensure!(again.address() == Some(taken), "{:?}", again.address());
        if site.iwarp {
            // Its connections are the kernel's TCP connections, whose TIME_WAIT begins when they are let go.
            drop((client, server));
            ensure!(waits(taken.port())?, "no TIME_WAIT of port {}", taken.port());
            drop(again);
            Draft::new(PortSpace::Tcp)?.listen(taken, 1)?;
            continue;
        }
        while let Some(event) = server.next_event()? {
            ensure!(event.kind != EventKind::TimewaitExit, "TIME_WAIT was over");
        }
    }
    Ok(None)
}

/// Whether a TCP connection from `port` comes to TIME_WAIT.
fn waits(port: u16) -> Result<bool, Failure> {
    let deadline = Instant::now() + STEP;
    let (local, state) = (format!(":{port:04X}"), "06");
    while Instant::now() < deadline {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let table = std::fs::read_to_string(table)?;
            let mut words = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            if words.any(|words| words.len() > 3 && words[1].ends_with(&local) && words[3] == state) {
                return Ok(true);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(false)
}

/// So many at once ask a listener that fetches nothing.
const CLIENTS: usize = 5;

/// Requests that nobody fetched, up to the backlog. More are not answered: the client's CM asks again after 4 s.
pub(crate) fn backlog(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("siw's own reference counts break when its backlog overflows".to_owned()));
    }
    // A machine with other things to do may hold up the requests themselves until the clients have given up.
    let mut rounds = Vec::new();
    while rounds.len() < 3 {
        let (fetched, outcomes) = unfetched(site)?;
        let waiting = outcomes.iter().filter(|end| matches!(end, Err(CmError::Timeout { .. }))).count();
        if fetched == 2 && waiting == CLIENTS {
            return Ok(None);
        }
        ensure!(fetched < 2, "{fetched} fetched, {waiting} waited, {outcomes:?}");
        rounds.push((fetched, outcomes));
    }
    Err(format!("{rounds:?}").into())
}

/// The clients of a listener with a backlog of 2: how many requests it has in the end, and what they were told.
fn unfetched(site: &Site) -> Result<(usize, Vec<Result<(), CmError>>), Failure> {
    let mut listener = Draft::new(PortSpace::Tcp)?.listen(site.address(0)?, 2)?;
    let target = Target::at(listener.address().ok_or("no address")?);
    let mut plan = Plan::default();
    plan.options.timeout = Duration::from_millis(3500);
    let outcomes = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    dial(std::slice::from_ref(&target), &plan.options, &plan.connect, |_| Ok(())).map(drop)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
    });
    let mut fetched = Vec::new();
    while let Some(request) = listener.request(Duration::from_millis(100))? {
        fetched.push(request);
    }
    Ok((fetched.len(), outcomes))
}
