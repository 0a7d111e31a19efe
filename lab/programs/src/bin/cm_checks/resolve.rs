//! Resolution: lists in order, what must come first, and what these devices have not.

use gimmal_rdma::cm::{
    CmAddress, CmError, Draft, Family, PathData, PortSpace, QpType, Resolve, Target, dial,
};
use gimmal_transport::{
    Address, ConnectError, ConnectOptions, Connecting, Incoming, ListenOptions, Listener, Port, PortConfig,
    Provider, RejectReason, verbs::Verbs,
};

use crate::{
    refusals,
    rig::{Outcome, Plan, STEP, Site, ensure, pair},
};

/// The first two targets lead nowhere.
pub(crate) fn in_order(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let nobody = Target::at(site.address(29)?);
    let no_device = Target::at("127.0.0.1:29".parse::<std::net::SocketAddr>()?);
    let targets = [no_device.clone(), nobody.clone(), target];
    let plan = Plan::default();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let connected = dial(&targets, &plan.options, &plan.connect, |_| Ok(()));
            connected.map(|(connection, ())| connection.peer_address())
        });
        let request = listener.request(STEP)?.ok_or("the third target was not tried")?;
        let _server = request.endpoint(plan.plan)?.accept(&plan.accept, STEP)?;
        let peer = client.join().map_err(|_| "the client panicked")??;
        ensure!(peer == targets[2].destination, "{peer:?}");
        Ok::<_, crate::rig::Failure>(())
    })?;
    // The error is that of the last one.
    let failed = dial(&[no_device, nobody], &plan.options, &plan.connect, |_| Ok(()));
    ensure!(matches!(&failed, Err(CmError::Rejected { .. })), "{failed:?}");
    let none = dial(&[], &plan.options, &plan.connect, |_| Ok(()));
    ensure!(matches!(&none, Err(CmError::Resolve { .. })), "{none:?}");
    Ok(None)
}

/// 16 bytes fit before our hello, and our own listener finds it behind them.
pub(crate) fn connect_data(site: &Site) -> Outcome {
    for len in [0, 1, 15, 16] {
        refusals::hello_behind(site, &vec![0xee; len])?;
    }
    Ok(None)
}

/// The list has all addresses of a name, and our own connect goes through it.
pub(crate) fn several(site: &Site) -> Outcome {
    let name = site.name.as_deref().ok_or("no name was given")?;
    let found = Resolve::to(name, 7471).run()?;
    ensure!(found.len() == 2, "{found:?}");
    ensure!(found[1].destination == Some(CmAddress::Ip(site.address(7471)?)), "{found:?}");
    let provider = Verbs::new();
    let address: Address = format!("rdma://{}:0", site.url_host()).parse()?;
    let mut listener = provider.listen(&address, &ListenOptions::default())?;
    let Address::Rdma { port, .. } = listener.address() else { return Err("not an rdma:// address".into()) };
    let gate = provider.open_port(&PortConfig::default())?;
    let options = ConnectOptions { type_of_service: Some(0x20), ..ConnectOptions::default() };
    let address: Address = format!("rdma://{name}:{port}").parse()?;
    let mut connecting = provider.connect(&address, &gate.gate(), &options)?;
    let incoming = listener.accept(STEP)?.ok_or("the second address was not tried")?;
    incoming.reject(RejectReason::Application { code: 5 });
    let outcome = connecting.poll(STEP).ok_or("no outcome")?.err().ok_or("it connected")?;
    let told =
        matches!(&outcome, ConnectError::Rejected { reason: RejectReason::Application { code: 5 }, .. });
    ensure!(told, "{outcome}");
    Ok(None)
}

pub(crate) fn addresses(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let port = target.destination.ok_or("no destination")?.port();
    let found = Resolve { numeric_host: true, ..Resolve::to(&site.host, port) }.run()?;
    ensure!(found[0].destination == target.destination, "{found:?}");
    ensure!((found[0].port_space, found[0].qp_type) == (Some(PortSpace::Tcp), Some(QpType::Rc)), "{found:?}");
    let passive = Resolve { no_route: true, ..Resolve::passive(Some(&site.host), 7471) }.run()?;
    ensure!(passive[0].destination.is_none(), "{passive:?}");
    ensure!(passive[0].source == Some(CmAddress::Ip(site.address(7471)?)), "{passive:?}");
    let both = Resolve::passive(None, 7471).run()?;
    ensure!(both.len() == 2, "{both:?}");
    let mut plan = Plan::default();
    plan.options.timeout = STEP;
    // From a source of our choice.
    let source = Some(CmAddress::Ip(site.address(0)?));
    let from = Resolve { source, ..Resolve::to(&site.host, port) }.run()?;
    let ((client, ()), (server, ())) = pair(&mut listener, &from[0], &plan, |_| Ok(()))?;
    let ends =
        |local: Option<CmAddress>, peer: Option<CmAddress>| (local.map(|a| a.ip()), peer.map(|a| a.ip()));
    let (ours, theirs) = (
        ends(client.local_address(), client.peer_address()),
        ends(server.peer_address(), server.local_address()),
    );
    ensure!(client.peer_address() == target.destination, "{:?}", client.peer_address());
    // iWARP's connect has a TCP port that the CM's id does not know.
    if site.iwarp {
        ensure!(ours.1 == theirs.1, "{ours:?} {theirs:?}");
    } else {
        ensure!(ours == theirs, "{ours:?} {theirs:?}");
    }
    Ok(None)
}

/// What needs InfiniBand is refused by name: routes to AF_IB addresses, and IB_PATH.
pub(crate) fn not_here(site: &Site) -> Outcome {
    let found = Resolve { family: Some(Family::Ib), ..Resolve::to("fe80::1", 7471) }.run()?;
    let Some(CmAddress::Ib(ib)) = found[0].destination else {
        return Err(format!("not AF_IB: {found:?}").into());
    };
    ensure!(ib.service_id == (0x0106 << 16) + 7471 && ib.gid[0] == 0xfe, "{ib:?}");
    // RoCE ports say that they have AF_IB, so an address may be resolved; there is no route then.
    let routed = Draft::new(PortSpace::Tcp)?
        .resolve(None, CmAddress::Ib(ib), STEP)
        .and_then(|resolved| resolved.resolve_route(STEP));
    println!("        AF_IB: {:?}", routed.as_ref().err());
    ensure!(routed.is_err(), "an AF_IB address has a route");
    let resolved = Draft::new(PortSpace::Tcp)?.resolve(None, site.address(29)?, STEP)?;
    let path = PathData::from_bytes(&[0; 72]).ok_or("72 bytes")?;
    let routed = resolved.use_route(&[path], STEP);
    println!("        IB_PATH: {:?}", routed.as_ref().err());
    ensure!(
        matches!(routed, Err(CmError::Device(gimmal_rdma::DeviceError::System { .. }))),
        "a path record was taken off InfiniBand"
    );
    Ok(None)
}
