//! A host that does not answer: every connect ends at its own deadline.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use gimmal_rdma::cm::{CmError, Target, dial};
use gimmal_transport::{
    Address, ConnectError, ConnectOptions, Connecting, Instant, Port, PortConfig, Provider, verbs::Verbs,
};

use crate::rig::{Check, Failure, Outcome, Plan, Site, ensure};

pub(crate) const CHECKS: &[Check] = &[
    ("r2 raw connect to a silent host ends at its deadline", raw),
    ("r2 our connect to a silent host ends at its deadline", ours),
    ("r2 connect to a TCP server that never speaks MPA ends at its deadline", no_mpa),
];

const DEADLINE: Duration = Duration::from_millis(1200);
/// How much later is still at the deadline.
const GRACE: Duration = Duration::from_millis(500);
/// A guest's processor can stand still for a second: of so many attempts one must be in time.
const ATTEMPTS: u32 = 3;

/// Runs `connect` until one attempt ends at its deadline; none may end before it.
fn in_time(mut connect: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    let mut times = Vec::new();
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        connect()?;
        let took = start.elapsed();
        ensure!(took >= DEADLINE, "it ended after {took:?}, before its deadline of {DEADLINE:?}");
        if took <= DEADLINE.saturating_add(GRACE) {
            return Ok(());
        }
        times.push(took);
    }
    Err(format!("they took {times:?}, the deadline was {DEADLINE:?}").into())
}

fn raw_to(to: SocketAddr) -> Result<(), Failure> {
    let mut plan = Plan::default();
    plan.options.timeout = DEADLINE;
    in_time(|| match dial(&[Target::at(to)], &plan.options, &plan.connect, |_| Ok(())) {
        Err(error @ CmError::Timeout { .. }) => {
            println!("        {error}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    })
}

fn ours_to(to: SocketAddr) -> Result<(), Failure> {
    let provider = Verbs::new();
    let port = provider.open_port(&PortConfig::default())?;
    let address: Address = format!("rdma://{to}").parse()?;
    let options = ConnectOptions { connect_timeout: DEADLINE, ..ConnectOptions::default() };
    in_time(|| {
        let mut connecting = provider.connect(&address, &port.gate(), &options)?;
        match connecting.poll(DEADLINE.saturating_mul(4)) {
            Some(Err(error @ ConnectError::Timeout { .. })) => {
                println!("        {error}");
                Ok(())
            }
            other => Err(format!("{other:?}").into()),
        }
    })
}

fn silent(site: &Site) -> Result<SocketAddr, Failure> {
    let host = site.silent.as_deref().ok_or("no silent address was given")?;
    Ok(SocketAddr::new(host.parse()?, 7471))
}

fn raw(site: &Site) -> Outcome {
    raw_to(silent(site)?)?;
    Ok(None)
}

fn ours(site: &Site) -> Outcome {
    ours_to(silent(site)?)?;
    Ok(None)
}

fn no_mpa(site: &Site) -> Outcome {
    if !site.iwarp {
        return Ok(Some("only iWARP connects over TCP".to_owned()));
    }
    let server = TcpListener::bind(site.address(0)?)?;
    raw_to(server.local_addr()?)?;
    ours_to(server.local_addr()?)?;
    Ok(None)
}
