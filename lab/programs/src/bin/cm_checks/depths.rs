//! Both depths: asked, offered, granted, and what the device made of it.

use std::sync::Arc;

use gimmal_rdma::cm::{CmError, Connection, Depth, QpMaker, QpPlan};
use gimmal_transport::{
    Address, Batch, Clamp, ConnId, ConnectOptions, Connecting, Event, Gate, Incoming, Instant, ListenOptions,
    Listener, Negotiated, Port, PortConfig, Provider, Refused, Time, Transfer,
    verbs::{Verbs, VerbsPort},
};

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, pair};

const ASKED: [u8; 6] = [0, 1, 3, 16, 128, 255];

/// rxe rounds up to a power of two; siw's `query_qp` says nothing about it.
fn shown(granted: u8) -> u8 {
    if granted == 0 { 0 } else { granted.checked_next_power_of_two().unwrap_or(u8::MAX) }
}

fn compare(site: &Site, name: &str, connection: &Connection, wanted: (u8, u8)) -> Result<(), Failure> {
    let depths = connection.depths();
    let granted = (depths.responder_resources.granted, depths.initiator_depth.granted);
    ensure!(granted == wanted, "{name}: granted {granted:?}, should be {wanted:?}");
    if !site.iwarp {
        let view = connection.query()?;
        let seen = (view.max_dest_rd_atomic, view.max_rd_atomic);
        let rounded = (shown(wanted.0), shown(wanted.1));
        ensure!(seen == rounded, "{name}: the queue pair has {seen:?}, granted are {wanted:?}");
    }
    Ok(())
}

fn every_pair(site: &Site, maker: QpMaker) -> Result<(), Failure> {
    let (mut listener, target) = site.listen()?;
    for active in ASKED {
        for passive in ASKED {
            let size = QpPlan { send_entries: 1, recv_entries: 1, maker, ..QpPlan::default() };
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
            let least = active.min(passive);
            let wanted = (least.min(device.responder_resources), least.min(device.initiator_depth));
            // siw raises what its passive side gives to what the active side asks, and tells nobody.
            let reads = if site.iwarp { active.min(device.initiator_depth) } else { wanted.1 };
            compare(site, &format!("active {active} against {passive}"), &client, (wanted.0, reads))?;
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
    match gimmal_rdma::cm::dial(&[target], &plan.options, &plan.connect, |_| Ok(())) {
        Err(CmError::Unsupported { why, .. }) if why.contains("CONNECT_RESPONSE") => {}
        other => return Err(format!("on iWARP: {other:?}").into()),
    }
    ensure!(listener.request(std::time::Duration::from_millis(100))?.is_none(), "a packet was sent");
    Ok(None)
}

/// Our own connections say the same in `Negotiated`.
pub(crate) fn negotiated(site: &Site) -> Outcome {
    for (ours, theirs) in [(0, 16), (3, 16), (16, 3), (200, 255), (1, 0)] {
        let pair = Ours::open(site, &config(ours), &config(theirs))?;
        for terms in &pair.terms {
            let term = terms.initiator_depth;
            let least = u32::from(ours.min(theirs)).min(128);
            ensure!(term.granted == least, "{ours} against {theirs}: granted {term}");
            let clamped = term.granted < term.asked;
            ensure!(clamped == (term.clamp != Clamp::None), "{ours} against {theirs}: {term}");
        }
    }
    Ok(None)
}

fn config(depth: u8) -> PortConfig {
    PortConfig {
        initiator_depth: depth,
        responder_resources: depth,
        connections: 2,
        ring_bytes: 64 << 10,
        bulk_piece_bytes: 4 << 10,
        ..PortConfig::default()
    }
}

/// Bulk of 64 pieces over a depth of 3: never more than 3 READs at a time, and on a device that does not move the
/// bytes inside the post, 3 of them.
pub(crate) fn bulk_keeps_the_depth(site: &Site) -> Outcome {
    for (ours, theirs) in [(1, 16), (3, 16), (16, 3)] {
        let mut pair = Ours::open(site, &config(ours), &config(theirs))?;
        let loan = pair.ports[1].gate().allocate(pair.conns[1], 256 << 10)?;
        let offer = pair.ports[1].offer(pair.conns[1], &loan)?;
        pair.ports[0].pull(pair.conns[0], offer, 1)?;
        let mut arrived = false;
        pair.until(|_, event| arrived |= matches!(event, Event::Pulled { result: Ok(_), .. }))?;
        ensure!(arrived, "the bulk did not arrive");
        let counters = pair.ports[0].counters(pair.conns[0]);
        let granted = u64::from(ours.min(theirs));
        ensure!(counters.reads == 64, "{counters:?}");
        ensure!(counters.reads_peak <= granted, "{} READs at a time, granted {granted}", counters.reads_peak);
        ensure!(!site.iwarp || counters.reads_peak == granted, "{} of {granted}", counters.reads_peak);
    }
    let mut pair = Ours::open(site, &config(0), &config(16))?;
    let loan = pair.ports[1].gate().allocate(pair.conns[1], 64)?;
    let offer = pair.ports[1].offer(pair.conns[1], &loan)?;
    let refused = pair.ports[0].pull(pair.conns[0], offer, 1);
    ensure!(matches!(refused, Err(Refused::NoReads)), "{refused:?}");
    ensure!(Refused::NoReads.to_string().contains("initiator_depth"), "{}", Refused::NoReads);
    Ok(None)
}

/// A connection of ours, both ends in this process.
struct Ours {
    ports: [VerbsPort; 2],
    conns: [ConnId; 2],
    terms: Vec<Arc<Negotiated>>,
    start: Instant,
}

impl Ours {
    fn open(site: &Site, ours: &PortConfig, theirs: &PortConfig) -> Result<Self, Failure> {
        let provider = Verbs::new();
        let mut ports = [provider.open_port(ours)?, provider.open_port(theirs)?];
        let address: Address = format!("rdma://{}:0", site.url_host()).parse()?;
        let mut listener = provider.listen(&address, &ListenOptions::default())?;
        let gate = ports[0].gate();
        let mut connecting = provider.connect(&listener.address(), &gate, &ConnectOptions::default())?;
        let incoming = listener.accept(STEP)?.ok_or("no request")?;
        let there = incoming.accept(&ports[1].gate())?;
        let here = connecting.poll(STEP).ok_or("no outcome")??;
        let conns = [ports[0].adopt(here, Time(0))?, ports[1].adopt(there, Time(0))?];
        let mut pair = Self { ports, conns, terms: Vec::new(), start: Instant::now() };
        let mut terms = Vec::new();
        while terms.len() < 2 {
            pair.until(|_, event| {
                if let Event::Opened { negotiated, .. } = event {
                    terms.push(negotiated);
                }
            })?;
        }
        pair.terms = terms;
        Ok(pair)
    }

    /// Polls both ports until something came.
    fn until(&mut self, mut take: impl FnMut(usize, Event)) -> Result<(), Failure> {
        let mut batch = Batch::new(64);
        let limit = Instant::now() + STEP;
        loop {
            ensure!(Instant::now() < limit, "nothing came");
            let mut came = false;
            for (side, port) in self.ports.iter_mut().enumerate() {
                port.poll(Time(0).plus(self.start.elapsed()), &mut batch);
                for event in batch.drain() {
                    came = true;
                    take(side, event);
                }
            }
            if came {
                return Ok(());
            }
        }
    }
}
