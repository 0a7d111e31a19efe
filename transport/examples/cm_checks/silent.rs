//! A host that does not answer: every connect ends at its own deadline.

use std::{
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use gimmal_transport::{
    Address, ConnectError, ConnectOptions, Connecting, Port, PortConfig, Provider,
    cm::{CmError, Target, dial},
    verbs::Verbs,
};

use crate::{
    Check,
    rig::{Failure, Outcome, Plan, Site, ensure},
};

pub(crate) const CHECKS: &[Check] = &[
    ("raw connect to a silent host ends at its deadline", raw),
    ("our connect to a silent host ends at its deadline", ours),
    ("connect to a TCP server that never speaks MPA ends at its deadline", no_mpa),
];

const DEADLINE: Duration = Duration::from_millis(1200);
/// How much later is still at the deadline: a guest is slow.
const GRACE: Duration = Duration::from_millis(800);

fn in_time(start: Instant) -> Result<(), Failure> {
    let took = start.elapsed();
    ensure!(took >= DEADLINE && took <= DEADLINE + GRACE, "it took {took:?}, the deadline was {DEADLINE:?}");
    Ok(())
}

fn raw_to(to: SocketAddr) -> Result<(), Failure> {
    let mut plan = Plan::default();
    plan.options.timeout = DEADLINE;
    let start = Instant::now();
    let outcome = dial(&[Target::at(to)], &plan.options, &plan.connect, |_| Ok(()));
    in_time(start)?;
    match outcome {
        Err(error @ CmError::Timeout { .. }) => {
            println!("        {error}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn ours_to(to: SocketAddr) -> Result<(), Failure> {
    let provider = Verbs::new();
    let port = provider.open_port(&PortConfig::default())?;
    let address: Address = format!("rdma://{to}").parse()?;
    let options = ConnectOptions { connect_timeout: DEADLINE, ..ConnectOptions::default() };
    let start = Instant::now();
    let mut connecting = provider.connect(&address, &port.gate(), &options)?;
    let outcome = connecting.poll(DEADLINE * 4).ok_or("no outcome")?;
    in_time(start)?;
    match outcome {
        Err(error @ ConnectError::Timeout { .. }) => {
            println!("        {error}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
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
