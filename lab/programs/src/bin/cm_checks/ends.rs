//! End points in one call, ids without a channel, contexts without an id, and what an older library lacks.

use std::time::Duration;

use gimmal_rdma::{
    cm::{Access, CmError, DialOptions, Family, Operation, PortSpace, QpPlan, QpType, Resolve, dial},
    id::{CmEvent, CmId, EventChannel, EventKind, Membership, PathRecord, QpRequest, SyncId},
    verbs::{Context, Cq, Pd},
};

use crate::{
    effects::{errno, next},
    rig::{Failure, Outcome, Plan, STEP, Site, ensure},
};

/// rdma_create_ep on both sides, rdma_get_request, and a message.
pub(crate) fn create_ep(site: &Site) -> Outcome {
    let passive = Resolve::passive(Some(&site.host), 0).run()?;
    let mut listener = passive[0].listen_ep(4)?;
    let port = listener.address().ok_or("no address")?.port();
    ensure!(listener.request(Duration::from_millis(50))?.is_none(), "a request from nowhere");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<_, Failure> {
            let request = listener.request(STEP)?.ok_or("no request came")?;
            let said = request.event().private()[..5].to_vec();
            let mut answering = request.endpoint(QpPlan::default())?;
            let inbox = answering.add_buffer(64, Access::Local)?;
            answering.post_receive(inbox.all(), 7)?;
            let mut connection = answering.accept(&Plan::default().accept, STEP)?;
            let done = connection.completion(STEP)?;
            ensure!((done.token, done.bytes) == (7, 5), "{done:?}");
            Ok((connection, said))
        });
        let active = Resolve::to(&site.host, port).run()?;
        let mut dialing = active[0].create_ep()?.endpoint(QpPlan::default())?;
        let out = dialing.add_buffer(64, Access::Local)?;
        let mut plan = Plan::default();
        plan.connect.private_data = gimmal_rdma::cm::ConnectData::new(b"hello")?;
        let mut connection = dialing.connect(&plan.connect, STEP)?;
        connection.post_send(out.range(0..5), 1)?;
        ensure!(connection.completion(STEP)?.operation == Operation::Send, "the send");
        let (_server, said) = server.join().map_err(|_| "the passive side panicked")??;
        ensure!(said == b"hello", "{said:?}");
        Ok::<_, Failure>(())
    })?;
    let nowhere = Resolve::to("192.0.2.1", 29).run()?[0].create_ep();
    ensure!(matches!(nowhere, Err(CmError::Device(_))), "{nowhere:?}");
    Ok(None)
}

/// Each call returns when its event has come; the id moves to a channel and back.
pub(crate) fn without_channel(site: &Site) -> Outcome {
    let id = SyncId::new(PortSpace::Tcp).map_err(errno("rdma_create_id"))?;
    id.resolve_address(None, site.address(29)?, STEP).map_err(errno("rdma_resolve_addr"))?;
    ensure!(id.info().device.is_some() && PathRecord::of(&id).is_empty(), "{:?}", id.info());
    id.resolve_route(STEP).map_err(errno("rdma_resolve_route"))?;
    ensure!(site.iwarp || PathRecord::of(&id).len() == 1, "{:?}", PathRecord::of(&id));
    let channel = EventChannel::new()?;
    let id = id.into_channel(&channel).map_err(errno("rdma_migrate_id"))?;
    let mut id = SyncId::from_channel(id).map_err(errno("rdma_migrate_id"))?;
    let no_request = id.request(Duration::ZERO);
    ensure!(matches!(no_request, Ok(None)), "{no_request:?}");
    let nobody = SyncId::new(PortSpace::Tcp).map_err(errno("rdma_create_id"))?;
    let failed = nobody.resolve_address(None, "192.0.2.1:29".parse::<std::net::SocketAddr>()?, STEP);
    ensure!(failed.is_err(), "an address without a device was resolved");
    Ok(None)
}

/// Every device is opened without an id, and a protection domain made on it.
pub(crate) fn contexts(site: &Site) -> Outcome {
    let device = if site.iwarp { "siw0" } else { "rxe0" };
    let all = Context::all()?;
    let context = all.iter().find(|context| context.name() == device).ok_or("it is not there")?;
    ensure!(context.query()?.iwarp == site.iwarp, "{:?}", context.query());
    let _pd = Pd::new(context)?;
    Ok(None)
}

/// A queue pair by the extended call; flags that the device lacks are refused by it.
pub(crate) fn extended(site: &Site) -> Outcome {
    let id = SyncId::new(PortSpace::Tcp).map_err(errno("rdma_create_id"))?;
    id.resolve_address(None, site.address(29)?, STEP).map_err(errno("rdma_resolve_addr"))?;
    let context = id.context()?.ok_or("no device")?;
    let (pd, queue) = (Pd::new(&context)?, Cq::new(&context, &context.query()?)?);
    let room = |create_flags| QpRequest {
        send_entries: 4,
        recv_entries: 4,
        pieces: 1,
        inline_bytes: 0,
        srq: None,
        kind: QpType::Rc,
        create_flags: Some(create_flags),
    };
    let mut id = id;
    let refused = id.create_qp(&pd, &queue, &queue, room(2)).err();
    println!("        multicast without loopback: errno {refused:?}");
    ensure!(refused.is_some(), "a software device has the flag");
    let qp = id.create_qp(&pd, &queue, &queue, room(0)).map_err(errno("rdma_create_qp_ex"))?;
    ensure!(qp.number() > 0 && id.info().qp != 0, "{qp:?}");
    id.destroy_qp(qp);
    ensure!(id.info().qp == 0, "it has a queue pair");
    let qp = id.create_qp(&pd, &queue, &queue, room(0)).map_err(errno("rdma_create_qp_ex"))?;
    let number = qp.number();
    // Both are leaked, or this would read memory that was freed.
    drop(id);
    ensure!(qp.number() == number, "{qp:?}");
    // What they use would be destroyed in vain.
    std::mem::forget((pd, queue));
    Ok(None)
}

/// What librdmacm 44 lacks is refused by its name, and nothing is done in its place.
pub(crate) fn newer(site: &Site) -> Outcome {
    let channel = EventChannel::new()?;
    let id = CmId::new(&channel, PortSpace::Tcp).map_err(errno("rdma_create_id"))?;
    let dns = Resolve { dns: true, ..Resolve::to(&site.host, 7471) };
    for (question, flag) in [(dns, "RAI_DNS"), (Resolve::service_record("gimmal"), "RAI_SA")] {
        let refused = question.run();
        ensure!(matches!(refused, Err(CmError::Unsupported { what, .. }) if what == flag), "{refused:?}");
    }
    let refused = Resolve::to(&site.host, 7471).start(&id);
    ensure!(
        matches!(refused, Err(CmError::Unsupported { what: "rdma_resolve_addrinfo", .. })),
        "{refused:?}"
    );
    let refused = Resolve::answer(&id);
    ensure!(matches!(refused, Err(CmError::Unsupported { what: "rdma_query_addrinfo", .. })), "{refused:?}");
    ensure!(CmEvent::write(&id, EventKind::User, 0, 5) == Err(95), "rdma_write_cm_event");
    Ok(None)
}

/// Questions with hints alone, of datagrams, and by the name of a service.
pub(crate) fn questions(site: &Site) -> Outcome {
    let (_listener, target) = site.listen()?;
    let known = target.destination.ok_or("no destination")?;
    let found = Resolve::address(known).run()?;
    ensure!(found.len() == 1 && found[0].destination == Some(known), "{found:?}");
    ensure!(found[0].port_space == Some(PortSpace::Tcp) && found[0].routes.is_empty(), "{found:?}");
    ensure!(found[0].destination_name.is_none() && found[0].connect_data.is_empty(), "{found:?}");
    for (port_space, qp_type) in [(PortSpace::Tcp, QpType::Rc), (PortSpace::Udp, QpType::Ud)] {
        let found = Resolve { port_space, qp_type, ..Resolve::to(&site.host, 7471) }.run()?;
        ensure!((found[0].port_space, found[0].qp_type) == (Some(port_space), Some(qp_type)), "{found:?}");
    }
    for (port_space, qp_type) in [(PortSpace::Tcp, QpType::Ud), (PortSpace::Udp, QpType::Rc)] {
        let refused = Resolve { port_space, qp_type, ..Resolve::to(&site.host, 7471) }.run();
        println!("        {port_space:?} of {qp_type:?}: {refused:?}");
    }
    let path = gimmal_rdma::cm::PathData::from_record(&[0; 64]).ok_or("64 bytes")?;
    let found = Resolve { routes: vec![path, path], ..Resolve::to(&site.host, 7471) }.run()?;
    ensure!(found[0].destination == Some((site.address(7471)?).into()), "{found:?}");
    let family = if site.host.contains(':') { Family::V6 } else { Family::V4 };
    let named = Resolve { family: Some(family), ..Resolve::to(&site.host, "gimmal-test") }.run()?;
    ensure!(named[0].destination == Some((site.address(9666)?).into()), "{named:?}");
    let passive = Resolve::passive(Some(&site.host), "gimmal-test").run()?;
    ensure!(passive[0].source == Some((site.address(9666)?).into()), "{passive:?}");
    let unknown = Resolve::to(&site.host, "no-such-service-here").run();
    ensure!(
        matches!(&unknown, Err(CmError::Resolve { why, .. }) if why.contains("EAI_SERVICE")),
        "{unknown:?}"
    );
    let datagrams = Resolve { port_space: PortSpace::Udp, qp_type: QpType::Ud, ..Resolve::to(&site.host, 1) };
    let refused = dial(&datagrams.run()?, &DialOptions::default(), &Plan::default().connect, |_| Ok(()));
    ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
    Ok(None)
}

/// An id without a queue pair joins a group and leaves it; the event has everything to send there.
pub(crate) fn join(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has no datagrams".to_owned()));
    }
    let channel = EventChannel::new()?;
    let id = CmId::new(&channel, PortSpace::Udp).map_err(errno("rdma_create_id"))?;
    id.bind(site.address(0)?).map_err(errno("rdma_bind_addr"))?;
    let group: std::net::SocketAddr = "239.9.9.9:0".parse()?;
    for membership in [Membership::Full, Membership::SendOnly] {
        membership.join(&id, group, 77).map_err(errno("rdma_join_multicast"))?;
        let event = next(&channel)?;
        ensure!(event.kind == EventKind::MulticastJoin && event.status == 0, "{event:?}");
        let peer = event.datagram_peer().ok_or("no way to the group")?;
        ensure!(
            (event.join, peer.qp_num, peer.qkey, peer.port) == (77, 0xff_ffff, 0x0123_4567, 1),
            "{peer:?}"
        );
        ensure!(peer.gid.is_some_and(|gid| gid.ends_with(&[239, 9, 9, 9])), "{peer:?}");
        Membership::leave(&id, group).map_err(errno("rdma_leave_multicast"))?;
    }
    ensure!(Membership::leave(&id, group).is_err(), "left twice");
    Ok(None)
}
