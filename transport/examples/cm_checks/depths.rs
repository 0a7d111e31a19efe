//! Both depths: asked, offered, granted, and what the device made of it.

use gimmal_transport::{
    Address, ConnectOptions, Connecting, Event, Incoming, ListenOptions, Listener, Port, PortConfig,
    Provider, Time,
    cm::{CmError, Connection, Depth, QpMaker, QpPlan},
    verbs::Verbs,
};

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, pair};

const ASKED: [u8; 6] = [0, 1, 3, 16, 128, 255];

/// rxe rounds up to a power of two; siw's `query_qp` says nothing about it.
fn shown(granted: u32) -> u32 {
    if granted == 0 { 0 } else { granted.next_power_of_two() }
}

fn compare(site: &Site, name: &str, connection: &Connection, wanted: (u32, u32)) -> Result<(), Failure> {
    let depths = connection.depths();
    let granted = (depths.responder_resources.granted, depths.initiator_depth.granted);
    ensure!(granted == wanted, "{name}: granted {granted:?}, should be {wanted:?}");
    if !site.iwarp {
        let view = connection.query()?;
        let seen = (u32::from(view.max_dest_rd_atomic), u32::from(view.max_rd_atomic));
        let rounded = (shown(wanted.0), shown(wanted.1));
        ensure!(seen == rounded, "{name}: the queue pair has {seen:?}, granted are {wanted:?}");
    }
    Ok(())
}

fn every_pair(site: &Site, maker: QpMaker) -> Result<(), Failure> {
    let (mut listener, target) = site.listen()?;
    for active in ASKED {
        for passive in ASKED {
            let size = QpPlan { send_entries: 1, recv_entries: 1, maker };
            let mut plan = Plan { plan: size, ..Plan::default() };
            plan.options.plan = size;
            // The active side asks for n both ways, the passive one too, with the other as the limit of each.
            plan.connect.responder_resources = Depth::from(active);
            plan.connect.initiator_depth = Depth::from(active);
            plan.accept.responder_resources = Depth::from(passive);
            plan.accept.initiator_depth = Depth::from(passive);
            let ((client, ()), (server, ())) = pair(&mut listener, &target, &plan, |_| Ok(()))
                .map_err(|error| format!("{active} against {passive}: {error}"))?;
            let device = client.device_depths();
            let least = u32::from(active.min(passive));
            let wanted =
                (least.min(device.responder_resources.into()), least.min(device.initiator_depth.into()));
            compare(site, &format!("active {active} against {passive}"), &client, wanted)?;
            compare(site, &format!("passive {passive} against {active}"), &server, wanted)?;
        }
    }
    Ok(())
}

pub(crate) fn granted(site: &Site) -> Outcome {
    every_pair(site, QpMaker::Cm)?;
    Ok(None)
}

/// CONNECT_RESPONSE, `rdma_init_qp_attr`, `rdma_establish`; on iWARP a typed refusal.
pub(crate) fn own_queue_pair(site: &Site) -> Outcome {
    if !site.iwarp {
        every_pair(site, QpMaker::Us)?;
        return Ok(None);
    }
    let (mut listener, target) = site.listen()?;
    let mut plan = Plan::default();
    plan.options.plan.maker = QpMaker::Us;
    match gimmal_transport::cm::dial(&[target], &plan.options, &plan.connect, |_| Ok(())) {
        Err(CmError::Unsupported { why, .. }) if why.contains("CONNECT_RESPONSE") => {}
        other => return Err(format!("on iWARP: {other:?}").into()),
    }
    ensure!(listener.request(std::time::Duration::from_millis(100))?.is_none(), "a packet was sent");
    Ok(None)
}

/// Our own connections say the same in `Negotiated`.
pub(crate) fn negotiated(site: &Site) -> Outcome {
    for (ours, theirs) in [(0, 16), (3, 16), (16, 3), (200, 255), (1, 0)] {
        let depth = |depth: u8| PortConfig {
            initiator_depth: depth,
            responder_resources: depth,
            connections: 2,
            ring_bytes: 64 << 10,
            ..PortConfig::default()
        };
        let provider = Verbs::new();
        let mut active = provider.open_port(&depth(ours))?;
        let mut passive = provider.open_port(&depth(theirs))?;
        let address: Address = format!("rdma://{}:0", site.url_host()).parse()?;
        let mut listener = provider.listen(&address, &ListenOptions::default())?;
        let mut connecting =
            provider.connect(&listener.address(), &active.gate(), &ConnectOptions::default())?;
        let incoming = listener.accept(STEP)?.ok_or("no request")?;
        let there = incoming.accept(&passive.gate())?;
        let here = connecting.poll(STEP).ok_or("no outcome")??;
        let start = std::time::Instant::now();
        let now = || Time(0).plus(start.elapsed());
        active.adopt(here, now())?;
        passive.adopt(there, now())?;
        let mut batch = gimmal_transport::Batch::new(64);
        let mut terms = Vec::new();
        while terms.len() < 2 {
            ensure!(start.elapsed() < STEP, "it never opened");
            for port in [&mut active, &mut passive] {
                port.poll(now(), &mut batch);
                for event in batch.drain() {
                    if let Event::Opened { negotiated, .. } = event {
                        terms.push(negotiated);
                    }
                }
            }
        }
        for terms in &terms {
            let granted = terms.initiator_depth.granted;
            let least = u32::from(ours.min(theirs)).min(128);
            ensure!(granted == least, "{ours} against {theirs}: granted {}", terms.initiator_depth);
            let term = terms.initiator_depth;
            let clamped = term.granted < term.asked;
            ensure!(
                clamped == (term.clamp != gimmal_transport::Clamp::None),
                "{ours} against {theirs}: {term}"
            );
        }
    }
    Ok(None)
}
