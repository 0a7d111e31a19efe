//! Cases of groups.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use gimmal_rdma::datagram::{
    Datagram, DatagramConfig, Group, JoinError, LookUpData, Membership, QpNumber, SendError,
};

use crate::side::{Answering, Failure, LIMIT, SMALL, Verdict, count_after_quiet, ensure, open, take};

fn group_of(address: IpAddr) -> Result<IpAddr, Failure> {
    Ok(if address.is_ipv4() { "239.77.5.5".parse()? } else { "ff12::77:5555".parse()? })
}

fn member(address: IpAddr, membership: Membership) -> Result<(Datagram, Group), Failure> {
    let mut endpoint = open(address)?;
    let group = endpoint.join(group_of(address)?, membership, LIMIT)?;
    ensure(group.peer().qp() == QpNumber::MULTICAST, format!("{group:?}"))?;
    ensure(group.peer().gid().ip() == group_of(address)?, format!("{group:?}"))?;
    Ok((endpoint, group))
}

fn numbered(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|number| vec![number; 100]).collect()
}

fn publish(endpoint: &mut Datagram, group: &Group, count: u8) -> Result<(), Failure> {
    for message in numbered(count) {
        match endpoint.send(group.peer(), &message) {
            Err(SendError::Full) => {
                endpoint.drain(LIMIT)?;
                endpoint.send(group.peer(), &message)?;
            }
            other => other?,
        }
    }
    ensure(endpoint.drain(LIMIT)?, "the device did not take every message")
}

pub(crate) fn two_subscribers(address: IpAddr) -> Result<(), Failure> {
    let (mut first, _one) = member(address, Membership::Full)?;
    let (mut second, _two) = member(address, Membership::Full)?;
    let mut outsider = open(address)?;
    let (mut publisher, group) = member(address, Membership::Full)?;
    publish(&mut publisher, &group, 40)?;
    ensure(take(&mut first, 40)? == numbered(40), "the first subscriber got something else")?;
    ensure(take(&mut second, 40)? == numbered(40), "the second subscriber got something else")?;
    ensure(count_after_quiet(&mut outsider)? == 0, "an outsider got something")?;
    // A header names the group, so that one end point can tell several apart.
    publish(&mut publisher, &group, 1)?;
    let mut grh = None;
    while grh.is_none() {
        ensure(first.wait(LIMIT)?, "nothing came")?;
        first.receive(|received| grh = Some(received.source))?;
    }
    let grh = grh.and_then(|source| source.grh()).ok_or("no header")?;
    ensure(grh.destination.ip() == group_of(address)? && grh.source.ip() == address, format!("{grh:?}"))
}

pub(crate) fn leaving_stops_delivery(address: IpAddr) -> Result<(), Failure> {
    let (mut stays, _group) = member(address, Membership::Full)?;
    let (mut leaves, group) = member(address, Membership::Full)?;
    let (mut publisher, to) = member(address, Membership::Full)?;
    publish(&mut publisher, &to, 3)?;
    ensure(take(&mut leaves, 3)? == numbered(3), "not delivered before")?;
    leaves.leave(group)?;
    publish(&mut publisher, &to, 3)?;
    take(&mut stays, 6)?;
    ensure(count_after_quiet(&mut leaves)? == 0, "delivered after leaving")?;
    let group = leaves.join(group_of(address)?, Membership::Full, LIMIT)?;
    publish(&mut publisher, &to, 3)?;
    ensure(take(&mut leaves, 3)? == numbered(3), "not delivered after joining again")?;
    leaves.leave(group)?;
    Ok(())
}

pub(crate) fn send_only(address: IpAddr) -> Result<(), Failure> {
    let (mut subscriber, _group) = member(address, Membership::Full)?;
    let (mut publisher, group) = member(address, Membership::SendOnly)?;
    let (mut full, _other) = member(address, Membership::Full)?;
    publish(&mut publisher, &group, 5)?;
    ensure(take(&mut subscriber, 5)? == numbered(5), "not delivered")?;
    ensure(take(&mut full, 5)? == numbered(5), "a full member missed it")?;
    ensure(count_after_quiet(&mut full)? == 0, "a full member got more")?;
    ensure(count_after_quiet(&mut publisher)? == 0, "delivered to a send-only member")?;
    publisher.leave(group)?;
    Ok(())
}

pub(crate) fn no_group_of_ours(address: IpAddr) -> Result<(), Failure> {
    let (mut endpoint, group) = member(address, Membership::Full)?;
    let other = if address.is_ipv4() { "ff12::1" } else { "239.1.1.1" };
    for wrong in [address, other.parse()?] {
        let refused = endpoint.join(wrong, Membership::Full, LIMIT);
        ensure(matches!(refused, Err(JoinError::NotAGroup { .. })), format!("{refused:?}"))?;
    }
    let twice = endpoint.join(group.address(), Membership::SendOnly, LIMIT);
    ensure(matches!(twice, Err(JoinError::Twice { .. })), format!("{twice:?}"))?;
    let mut stranger = open(address)?;
    let refused = stranger.leave(group);
    ensure(matches!(refused, Err(JoinError::NotJoined { .. })), format!("{refused:?}"))
}

pub(crate) fn given_up(address: IpAddr) -> Result<(), Failure> {
    let mut endpoint = open(address)?;
    for _ in 0..20 {
        match endpoint.join(group_of(address)?, Membership::Full, Duration::ZERO) {
            Ok(group) => endpoint.leave(group)?,
            Err(JoinError::Timeout { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let group = endpoint.join(group_of(address)?, Membership::Full, LIMIT)?;
    publish(&mut endpoint, &group, 2)?;
    ensure(take(&mut endpoint, 2)? == numbered(2), "its own messages do not come back to a full member")?;
    let counters = endpoint.counters();
    ensure(counters.events_dropped == 0, format!("{counters:?}"))
}

/// rxe attaches 56 queue pairs to a group; the next join fails by name and leaves nothing behind.
pub(crate) fn more_members_than_attach(address: IpAddr) -> Result<(), Failure> {
    let config = DatagramConfig { receives: 1, sends: 1, ..SMALL };
    let mut members = Vec::new();
    for _ in 0..80 {
        let mut endpoint = Datagram::bind(SocketAddr::new(address, 0), &config)?;
        match endpoint.join(group_of(address)?, Membership::Full, LIMIT) {
            Ok(_) => members.push(endpoint),
            Err(error @ JoinError::Refused { .. }) => {
                println!("        member {}: {error}", members.len() + 1);
                members.pop();
                endpoint.join(group_of(address)?, Membership::Full, LIMIT)?;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!("        the device attached all 80");
    Ok(())
}

pub(crate) fn fifty_lives(address: IpAddr) -> Result<(), Failure> {
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    let life = || -> Result<(), Failure> {
        let (mut asking, group) = member(address, Membership::Full)?;
        let answering = Answering::start(open(address)?, |_| Verdict::Accept(Default::default()))?;
        let peer = asking.look_up(answering.address, &LookUpData::EMPTY, LIMIT)?;
        asking.send(&peer, b"once")?;
        let mut answered = answering.end()?;
        ensure(take(&mut answered, 1)? == [b"once"], "not delivered")?;
        asking.leave(group)?;
        asking.close(LIMIT);
        Ok(())
    };
    life()?;
    let before = descriptors()?;
    for _ in 0..50 {
        life()?;
    }
    let after = descriptors()?;
    ensure(after == before, format!("{before} descriptors before, {after} after"))
}

/// The zero address asks a subnet administrator for a group: RoCE has none, and refuses it.
pub(crate) fn zero_address(address: IpAddr) -> Result<(), Failure> {
    let zero: IpAddr = if address.is_ipv4() { "0.0.0.0".parse()? } else { "::".parse()? };
    let joined = open(address)?.join(zero, Membership::Full, LIMIT);
    println!("        {joined:?}");
    ensure(matches!(joined, Err(JoinError::Refused { status, .. }) if status < 0), format!("{joined:?}"))
}
