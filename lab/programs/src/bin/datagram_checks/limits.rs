//! Cases of what is refused, lost, or ends at its deadline.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gimmal_rdma::datagram::{
    AnswerData, DatagramConfig, LookUpData, LookUpError, Membership, OpenError, SendError, SidrStatus,
};

use crate::side::{Answering, Failure, LIMIT, SMALL, Verdict, count_after_quiet, ensure, open, pair, take};

/// What anything may be late by in a guest that is emulated: more is a hang.
const SLACK: Duration = Duration::from_secs(5);

pub(crate) fn above_the_mtu(address: IpAddr) -> Result<(), Failure> {
    let (mut a, mut b, peer) = pair(address, &SMALL)?;
    let limit = a.info().message_bytes_max;
    for bytes in [limit + 1, limit * 2, 1 << 20] {
        let refused = a.send(&peer, &vec![1; bytes]);
        ensure(refused == Err(SendError::TooLarge { bytes, limit }), format!("{refused:?}"))?;
    }
    ensure(count_after_quiet(&mut b)? == 0, "something was sent")?;
    ensure(a.close(LIMIT).sent == 0, "something was counted")
}

/// A message that finds no receive is lost silently, and later messages are not disturbed.
pub(crate) fn more_messages_than_receives(address: IpAddr) -> Result<(), Failure> {
    let (mut a, mut b, peer) = pair(address, &DatagramConfig { receives: 4, ..SMALL })?;
    for number in 0..20_u8 {
        a.send(&peer, &[number; 16])?;
    }
    ensure(a.drain(LIMIT)?, "the device did not take them")?;
    // As many as there are receives, and what came while those were given back.
    let came = take(&mut b, 4)?.len() + count_after_quiet(&mut b)?;
    ensure((4..20).contains(&came), format!("{came} of 20 messages came to 4 receives"))?;
    a.send(&peer, b"later")?;
    ensure(take(&mut b, 1)? == [b"later"], "the ring is broken")?;
    let counters = b.counters();
    ensure(counters.receives_failed == 0 && counters.received == came as u64 + 1, format!("{counters:?}"))?;
    ensure(a.close(LIMIT).sent == 21, "sent means that the device took it")
}

pub(crate) fn nobody_listens(address: IpAddr) -> Result<(), Failure> {
    let mut asking = open(address)?;
    let start = Instant::now();
    match asking.look_up(SocketAddr::new(address, 9), &LookUpData::EMPTY, LIMIT) {
        Err(LookUpError::Refused { status: SidrStatus::NobodyListens, .. }) => {}
        other => return Err(format!("{other:?}").into()),
    }
    ensure(start.elapsed() < SLACK, format!("took {:?}", start.elapsed()))
}

pub(crate) fn silent_listener(address: IpAddr) -> Result<(), Failure> {
    let answering = Answering::start(open(address)?, |_| Verdict::Nothing)?;
    let mut asking = open(address)?;
    let (start, limit) = (Instant::now(), Duration::from_millis(300));
    let result = asking.look_up(answering.address, &LookUpData::EMPTY, limit);
    let took = start.elapsed();
    ensure(
        matches!(result, Err(LookUpError::Timeout { timeout, .. }) if timeout == limit),
        format!("{result:?}"),
    )?;
    ensure(
        took >= limit && took < limit.saturating_add(SLACK),
        format!("a limit of {limit:?} took {took:?}"),
    )?;
    // The unanswered requests go with their end point.
    let start = Instant::now();
    drop(answering.end()?);
    ensure(start.elapsed() < SLACK, "dropping took too long")
}

/// An address of the same network that nobody has.
fn nobody(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Ipv4Addr::new(a, b, c, 77).into()
        }
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() | 0x7777).into(),
    }
}

pub(crate) fn no_such_host(address: IpAddr) -> Result<(), Failure> {
    let mut asking = open(address)?;
    let (start, limit) = (Instant::now(), Duration::from_millis(600));
    let result = asking.look_up(SocketAddr::new(nobody(address), 7174), &LookUpData::EMPTY, limit);
    let took = start.elapsed();
    let expected = matches!(result, Err(LookUpError::Timeout { .. } | LookUpError::Resolve { .. }));
    ensure(expected, format!("{result:?}"))?;
    ensure(took < limit.saturating_add(SLACK), format!("a limit of {limit:?} took {took:?}"))
}

pub(crate) fn more_look_ups_than_asked_for(address: IpAddr) -> Result<(), Failure> {
    let one = DatagramConfig { requests: 1, ..SMALL };
    let endpoint = gimmal_rdma::datagram::Datagram::bind(SocketAddr::new(address, 0), &one)?;
    let has_come = Arc::new(AtomicBool::new(false));
    let comes = Arc::clone(&has_come);
    let answering = Answering::start(endpoint, move |_| {
        comes.store(true, Ordering::Relaxed);
        Verdict::Nothing
    })?;
    let mut asking = open(address)?;
    let to = answering.address;
    // The first that comes there has the place. In a guest that is held up none may have left in that time.
    let (start, limit) = (Instant::now(), Duration::from_millis(300));
    let mut found = asking.look_up(to, &LookUpData::EMPTY, limit);
    ensure(matches!(found, Err(LookUpError::Timeout { .. })), format!("{found:?}"))?;
    while !has_come.load(Ordering::Relaxed) && matches!(found, Err(LookUpError::Timeout { .. })) {
        ensure(start.elapsed() < LIMIT, "no request came")?;
        found = asking.look_up(to, &LookUpData::EMPTY, limit);
    }
    if matches!(found, Err(LookUpError::Timeout { .. })) {
        found = asking.look_up(to, &LookUpData::EMPTY, LIMIT);
    }
    match found {
        Err(LookUpError::Refused { status: SidrStatus::Rejected, .. }) => {}
        other => return Err(format!("the second look-up: {other:?}").into()),
    }
    let counters = answering.end()?.counters();
    ensure(counters.requests_dropped == 1, format!("{counters:?}"))
}

pub(crate) fn somebody_elses_peer(address: IpAddr) -> Result<(), Failure> {
    let (a, b, peer) = pair(address, &SMALL)?;
    let mut other = open(address)?;
    ensure(other.send(&peer, b"?") == Err(SendError::Foreign), "a foreign address handle was used")?;
    drop((a, b));
    // The peer outlives its end points and destroys its handle by itself.
    drop(peer);
    Ok(())
}

pub(crate) fn a_port_twice(address: IpAddr) -> Result<(), Failure> {
    let (mut a, mut b) = (open(address)?, open(address)?);
    let taken = a.listen(0, 1)?;
    match b.listen(taken.port(), 1) {
        Err(OpenError::Address { why, .. }) => ensure(why.contains("taken"), why)?,
        other => return Err(format!("{other:?}").into()),
    }
    drop(a);
    ensure(b.listen(taken.port(), 1)? == taken, "another address")
}

pub(crate) fn dropped_while_messages_fly(address: IpAddr) -> Result<(), Failure> {
    let group = if address.is_ipv4() { "239.5.5.6" } else { "ff12::5556" };
    for _ in 0..5 {
        let (mut a, mut b, peer) = pair(address, &SMALL)?;
        let group = a.join(group.parse()?, Membership::Full, LIMIT)?;
        let _ = b.join(group.address(), Membership::Full, LIMIT)?;
        for number in 0..32_u8 {
            let to = if number % 2 == 0 { &peer } else { group.peer() };
            a.send(to, &[number; 512])?;
        }
        let start = Instant::now();
        drop(a);
        drop(b);
        drop((peer, group));
        ensure(start.elapsed() < SLACK, format!("dropping took {:?}", start.elapsed()))?;
    }
    let answering = Answering::start(open(address)?, |_| Verdict::Accept(AnswerData::EMPTY))?;
    let mut again = open(address)?;
    again.look_up(answering.address, &LookUpData::EMPTY, LIMIT)?;
    drop(answering.end()?);
    Ok(())
}
