//! What options and numbers of a connection do: each case fails when the call is left out.

use std::{fs, net::IpAddr, sync::Arc, time::Duration};

use gimmal_rdma::{
    DeviceError,
    cm::{
        Access, CmError, ConnectParam, Connection, Draft, Ece, Operation, PortSpace, QpMaker, QpPlan,
        RetryCount, SendFlags, Transfer,
    },
    id::{CmEvent, CmId, ConnectParams, EventChannel, EventKind, IdOption, OwnQp, QpRequest, QpType},
    verbs::{Cq, Flags, LocalBytes, Pd, SendList},
};
use gimmal_transport::Instant;

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, meet, pair, request};

/// A counter of rxe's port.
fn counter(name: &str) -> Result<u64, Failure> {
    // The kernel gives out numbers that are at most 10 ms old (`lifespan`).
    std::thread::sleep(Duration::from_millis(30));
    let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    Ok(fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?.trim().parse()?)
}

/// Flow control, both retry counts and the queue pair's number arrive as they were given.
pub(crate) fn exchanged(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let mut plan = Plan::default();
    plan.connect.flow_control = true;
    plan.connect.retry_count = RetryCount::new(5)?;
    plan.connect.rnr_retry_count = RetryCount::new(3)?;
    plan.accept.rnr_retry_count = RetryCount::new(2)?;
    let (client, (server, gid)) = meet(
        &mut listener,
        &target,
        &plan,
        |endpoint| Ok(endpoint.query()?.number),
        |request| {
            let gid = request.info().source_gid;
            Ok((request.endpoint(plan.plan)?.accept(&plan.accept, STEP)?, gid))
        },
    )?;
    let (client, number) = client?;
    if site.iwarp {
        return Ok(Some("MPA carries depths and private data alone".to_owned()));
    }
    let asked = server.peer_said();
    ensure!(asked.flow_control && asked.retry_count == 5 && asked.rnr_retry_count == 3, "{asked:?}");
    ensure!(asked.qp_num == number, "{} asked, it is {number}", asked.qp_num);
    let answered = client.peer_said();
    ensure!(!answered.flow_control && answered.rnr_retry_count == 2, "{answered:?}");
    ensure!(answered.qp_num == server.query()?.number, "{}", answered.qp_num);
    let (ours, theirs) = (client.query()?, server.query()?);
    ensure!((ours.retry_count, theirs.retry_count) == (5, 5), "{ours:?} {theirs:?}");
    ensure!((ours.rnr_retry, theirs.rnr_retry) == (2, 3), "{ours:?} {theirs:?}");
    let mapped = match site.host.parse()? {
        IpAddr::V4(host) => host.to_ipv6_mapped(),
        IpAddr::V6(host) => host,
    };
    let info = client.info();
    ensure!([gid, info.source_gid, info.destination_gid] == [mapped.octets(); 3], "{gid:?} {info:?}");
    ensure!(info.pkey == 0 && info.port_space == Some(PortSpace::Tcp), "{info:?}");
    ensure!(info.qp_type == Some(QpType::Rc) && info.srq == 0, "{info:?}");
    Ok(None)
}

/// The byte is in the route, and in what the queue pair puts on its packets.
pub(crate) fn type_of_service(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("the socket is the kernel's".to_owned()));
    }
    for tos in [None, Some(0x28u8)] {
        let draft = Draft::new(PortSpace::Tcp)?;
        if let Some(tos) = tos {
            draft.type_of_service(tos)?;
        }
        let routed = draft.resolve(None, site.address(29)?, STEP)?.resolve_route(STEP)?;
        let paths = routed.paths();
        ensure!(paths.len() == 1 && paths[0].traffic_class == tos.unwrap_or(0), "{paths:?}");
        ensure!(paths[0].pkey == 0xffff && paths[0].hop_limit > 0 && paths[0].mtu > 0, "{paths:?}");
        let (mut listener, target) = site.listen()?;
        let mut plan = Plan::default();
        plan.options.type_of_service = tos;
        let ((client, ()), _server) = pair(&mut listener, &target, &plan, |_| Ok(()))?;
        let seen = client.query()?.traffic_class;
        ensure!(seen == tos.unwrap_or(0), "{seen:#x} for {tos:?}");
    }
    Ok(None)
}

/// A second id gets an address that another one has, when both say REUSEADDR, and only then.
pub(crate) fn reuse(site: &Site) -> Outcome {
    for (first, second) in [(false, false), (true, false), (false, true), (true, true)] {
        let channel = EventChannel::new()?;
        let bound = |reuse: bool, port: u16| -> Result<Result<CmId, i32>, Failure> {
            let id = CmId::new(&channel, PortSpace::Tcp).map_err(|errno| format!("errno {errno}"))?;
            if reuse {
                id.set(IdOption::ReuseAddress(true)).map_err(|errno| format!("errno {errno}"))?;
            }
            Ok(id.bind(site.address(port)?).map(|()| id))
        };
        let holder = bound(first, 0)?.map_err(|errno| format!("errno {errno}"))?;
        let port = holder.info().local_ip().ok_or("no address")?.port();
        let again = bound(second, port)?.err();
        let expected = (!(first && second)).then_some(98);
        ensure!(again == expected, "{first} and {second}: {again:?}, not {expected:?}");
    }
    Ok(None)
}

/// A sender without a receive tries as often as its peer said, then fails; 7 is for ever.
pub(crate) fn rnr_retries(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has no RNR".to_owned()));
    }
    for count in 0..=7 {
        let (mut listener, target) = site.listen()?;
        let mut plan = Plan::default();
        plan.connect.rnr_retry_count = RetryCount::new(count)?;
        let ((mut client, _), (mut server, from)) =
            pair(&mut listener, &target, &plan, |endpoint| endpoint.add_buffer(64, Access::Local))?;
        // 0.01 ms.
        client.set_rnr_timer(1)?;
        let before = counter("rcvd_rnr_err")?;
        server.post_send(from.all(), 1)?;
        if count == 7 {
            let until = Instant::now() + STEP;
            while counter("rcvd_rnr_err")? - before <= 8 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let end = server.completion(if count == 7 { Duration::from_millis(500) } else { STEP });
        let told = counter("rcvd_rnr_err")? - before;
        if count == 7 {
            ensure!(matches!(end, Err(CmError::Timeout { .. })) && told > 8, "{end:?} after {told}");
        } else {
            ensure!(matches!(end, Err(CmError::Work { status: 13, .. })), "{count}: {end:?}");
            ensure!(told == u64::from(count) + 1, "{count} retries, told {told} times");
        }
    }
    Ok(None)
}

/// A peer whose queue pair is in error answers nothing: the sender tries as often, and as long, as was set.
pub(crate) fn retransmissions(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has TCP's timers".to_owned()));
    }
    // 8 ms, 67 ms, and for ever. rxe takes 7 retries for any number of them.
    for (exponent, retries) in [(11, 6), (11, 2), (14, 3), (0, 3)] {
        let (mut listener, target) = site.listen()?;
        let mut plan = Plan::default();
        plan.connect.retry_count = RetryCount::new(retries)?;
        plan.accept.rnr_retry_count = RetryCount::new(0)?;
        let (client, (mut server, from)) = meet(
            &mut listener,
            &target,
            &plan,
            |endpoint| endpoint.add_buffer(64, Access::Local),
            |request| {
                let mut answering = request.endpoint(plan.plan)?;
                answering.ack_timeout(exponent)?;
                let from = answering.add_buffer(64, Access::Local)?;
                Ok((answering.accept(&plan.accept, STEP)?, from))
            },
        )?;
        let (mut client, ours) = client?;
        // Without a receive at the server, the client's queue pair goes into the error state; no CM says anything about it.
        client.post_send(ours.all(), 1)?;
        let refused = client.completion(STEP);
        ensure!(matches!(refused, Err(CmError::Work { status: 13, .. })), "{refused:?}");
        let (before, start) = (counter("completer_retry_err")?, Instant::now());
        server.post_send(from.all(), 2)?;
        let end = server.completion(if exponent == 0 { Duration::from_secs(2) } else { STEP });
        let (tries, took) = (counter("completer_retry_err")? - before, start.elapsed());
        println!("        timeout 2^{exponent}, {retries} retries: {tries} in {took:?}");
        if exponent == 0 {
            ensure!(matches!(end, Err(CmError::Timeout { .. })) && tries == 0, "{end:?} after {tries}");
            continue;
        }
        ensure!(matches!(end, Err(CmError::Work { status: 12, .. })), "{end:?}");
        ensure!(tries == u64::from(retries), "{tries} retransmissions, {retries} were set");
        let each = Duration::from_nanos(4096 << exponent);
        let least = each.checked_mul(u32::from(retries)).ok_or("too long")?;
        ensure!(took >= least && took < STEP, "it took {took:?}, at least {least:?} was set");
    }
    Ok(None)
}

/// The vendor's options go there with the request; what the other side took of them comes back.
pub(crate) fn ece(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has no queue pairs of our own making".to_owned()));
    }
    let (mut listener, target) = site.listen()?;
    let size = QpPlan { maker: QpMaker::Us, ..QpPlan::default() };
    let mut plan = Plan { plan: size, ..Plan::default() };
    plan.options.plan = size;
    let [ours, theirs] =
        [(0x123, 0x55), (0x123, 0x11)].map(|(vendor_id, options)| Ece { vendor_id, options });
    let (client, (_server, asked)) = meet(
        &mut listener,
        &target,
        &plan,
        |endpoint| endpoint.set_local_ece(ours),
        |request| {
            let asked = request.remote_ece()?;
            let mut answering = request.endpoint(plan.plan)?;
            answering.set_local_ece(theirs)?;
            Ok((answering.accept(&plan.accept, STEP)?, asked))
        },
    )?;
    let (client, ()) = client?;
    ensure!(asked == Some(ours), "{asked:?}");
    let answered = client.remote_ece()?;
    ensure!(answered == Some(theirs), "{answered:?}");
    Ok(None)
}

pub(crate) fn errno(step: &'static str) -> impl Fn(i32) -> Failure {
    move |errno| format!("{step}: errno {errno}").into()
}

/// The next event of a channel.
pub(crate) fn next(channel: &Arc<EventChannel>) -> Result<CmEvent, Failure> {
    let deadline = Instant::now() + STEP;
    loop {
        ensure!(Instant::now() < deadline, "no event");
        match CmEvent::next(channel).map_err(errno("rdma_get_cm_event"))? {
            Some(event) => return Ok(event),
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// The client never says that it is established: its data does, by `rdma_notify` on the passive side.
pub(crate) fn notify(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has no CONNECT_RESPONSE".to_owned()));
    }
    let (mut listener, target) = site.listen()?;
    let to = target.destination.ok_or("no destination")?;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<_, Failure> {
            let mut answering = request(&mut listener)?.endpoint(QpPlan::default())?;
            let inbox = answering.add_buffer(64, Access::Local)?;
            answering.post_receive(inbox.all(), 7)?;
            Ok(answering.accept(&Plan::default().accept, STEP)?)
        });
        let channel = EventChannel::new()?;
        let wait = |wanted: EventKind| -> Result<(), Failure> {
            let event = next(&channel)?;
            ensure!(event.kind == wanted && event.status == 0, "{event:?}, not {}", wanted.name());
            Ok(())
        };
        let id = CmId::new(&channel, PortSpace::Tcp).map_err(errno("rdma_create_id"))?;
        id.resolve_address(None, to, STEP).map_err(errno("rdma_resolve_addr"))?;
        wait(EventKind::AddrResolved)?;
        id.resolve_route(STEP).map_err(errno("rdma_resolve_route"))?;
        wait(EventKind::RouteResolved)?;
        let context = id.context()?.ok_or("no device")?;
        let limits = context.query()?;
        let pd = Pd::new(&context)?;
        let [sends, receives] = [Cq::new(&context, &limits)?, Cq::new(&context, &limits)?];
        let room = QpRequest {
            send_entries: 4,
            recv_entries: 4,
            pieces: 1,
            inline_bytes: 0,
            srq: None,
            kind: QpType::Rc,
            create_flags: None,
        };
        let own = OwnQp::new(&id, &pd, &sends, &receives, room)?;
        let params = ConnectParams { qp_num: own.qp().number(), ..ConnectParams::new(Vec::new(), 1, 1) };
        id.connect(&params).map_err(errno("rdma_connect"))?;
        wait(EventKind::ConnectResponse)?;
        own.ready(&id, 1, 1)?;
        let mut list = SendList::new(1);
        list.send(1u64, LocalBytes::NONE, Flags { signalled: true, inline: false });
        list.post(own.qp()).map_err(|error| errno("ibv_post_send")(error.errno))?;
        let mut server = server.join().map_err(|_| "the passive side panicked")??;
        let done = server.completion(STEP)?;
        ensure!((done.token, done.bytes) == (7, 0), "{done:?}");
        // The CM was told: it makes ESTABLISHED of that by itself.
        let established = |server: &mut Connection| {
            server.next_event().map(|event| event.is_some_and(|event| event.kind == EventKind::Established))
        };
        let deadline = Instant::now() + STEP;
        while !established(&mut server)? {
            ensure!(Instant::now() < deadline, "rdma_notify had no effect: no ESTABLISHED");
        }
        // The queue of sends has the send, that of receives nothing.
        let mut harvest = gimmal_rdma::verbs::Harvest::new();
        ensure!(receives.poll(&mut harvest).map_err(errno("ibv_poll_cq"))? == 0, "a receive completed");
        while sends.poll(&mut harvest).map_err(errno("ibv_poll_cq"))? == 0 {
            ensure!(Instant::now() < deadline, "no completion of the send");
        }
        ensure!(harvest.take().is_some_and(|done| done.status == 0), "the send failed");
        Ok(None)
    })
}

/// Steps that fail say by which event: ADDR_ERROR for an address that nobody has, ROUTE_ERROR where there is no subnet
/// administrator.
pub(crate) fn errors_by_name(site: &Site) -> Outcome {
    let channel = EventChannel::new()?;
    let nobody: IpAddr = match site.host.parse()? {
        IpAddr::V4(host) => [host.octets()[0], host.octets()[1], host.octets()[2], 99].into(),
        IpAddr::V6(host) => (u128::from(host) + 0x99).to_be_bytes().into(),
    };
    let id = CmId::new(&channel, PortSpace::Tcp).map_err(errno("rdma_create_id"))?;
    id.resolve_address(None, std::net::SocketAddr::new(nobody, 29), Duration::from_millis(300))
        .map_err(errno("rdma_resolve_addr"))?;
    let event = next(&channel)?;
    ensure!(event.kind == EventKind::AddrError && event.status < 0, "{event:?}");
    println!("        ADDR_ERROR with status {} for {nobody}", event.status);
    // Without a route at all the call itself says so.
    let refused =
        Draft::new(PortSpace::Tcp)?.resolve(None, "192.0.2.1:29".parse::<std::net::SocketAddr>()?, STEP);
    ensure!(matches!(refused, Err(CmError::Device(DeviceError::System { errno: 101, .. }))), "{refused:?}");
    Ok(None)
}

/// Port spaces and types that this API does not serve are refused by name, and nothing else is made of them.
pub(crate) fn refused_by_name(site: &Site) -> Outcome {
    for space in [PortSpace::Udp, PortSpace::IpOib] {
        let refused = Draft::new(space);
        ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
    }
    let (_listener, target) = site.listen()?;
    for kind in [QpType::Uc, QpType::Ud] {
        let target = gimmal_rdma::cm::Target { qp_type: Some(kind), ..target.clone() };
        let plan = Plan::default();
        let refused =
            gimmal_rdma::cm::dial(std::slice::from_ref(&target), &plan.options, &plan.connect, |_| Ok(()));
        ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
        let refused = target.create_ep();
        ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
    }
    // The port space of InfiniBand's services, with IP addresses.
    let ib = |param: &ConnectParam| -> Result<(), Failure> {
        let mut listener = Draft::new(PortSpace::Ib)?.listen(site.address(0)?, 1)?;
        let at = listener.address().ok_or("no address")?;
        let target =
            gimmal_rdma::cm::Target { port_space: Some(PortSpace::Ib), ..gimmal_rdma::cm::Target::at(at) };
        let plan = Plan { connect: param.clone(), ..Plan::default() };
        let ((mut client, ours), (mut server, _)) = pair(&mut listener, &target, &plan, |endpoint| {
            let buffer = endpoint.add_buffer(64, Access::Local)?;
            endpoint.post_receive(buffer.range(0..32), 1)?;
            Ok(buffer)
        })?;
        client.post(Transfer::Send, &[ours.range(32..64)], SendFlags::default(), 2)?;
        ensure!(server.completion(STEP)?.operation == Operation::Receive, "no message");
        Ok(())
    };
    ib(&ConnectParam::default())?;
    let many = Draft::new(PortSpace::Tcp)?.resolve(None, site.address(29)?, STEP)?.resolve_route(STEP)?;
    let refused = many.endpoint(QpPlan { pieces: 1000, ..QpPlan::default() });
    ensure!(
        matches!(refused, Err(CmError::Device(DeviceError::Limit { field: "pieces", .. }))),
        "{refused:?}"
    );
    Ok(None)
}
