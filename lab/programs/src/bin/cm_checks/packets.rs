//! What is on the wire: a packet socket sees what this host sends.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    os::fd::OwnedFd,
};

use gimmal_rdma::cm::{Access, Operation, Target, dial};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket};

use crate::rig::{Failure, Outcome, Plan, STEP, Site, ensure, pair};

/// `ETH_P_ALL`, in network order.
const EVERYTHING: u32 = 0x0300;
/// Of RoCE v2.
const ROCE_PORT: u16 = 4791;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A socket that has a copy of each packet, without its link header.
struct Capture(OwnedFd);

impl Capture {
    fn new() -> Result<Self, Failure> {
        let everything = NonZeroU32::new(EVERYTHING).map(Protocol::from_raw);
        Ok(Self(socket(AddressFamily::PACKET, SocketType::DGRAM, everything)?))
    }

    /// The types of service of the packets so far that go to a port of `to`.
    fn seen(&self, to: Ipv4Addr, protocol: u8, port: u16) -> Result<BTreeSet<u8>, Failure> {
        let (mut seen, mut packet) = (BTreeSet::new(), vec![0u8; 65_536]);
        loop {
            let bytes = match recv(&self.0, packet.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => bytes,
                Err(rustix::io::Errno::AGAIN) => return Ok(seen),
                Err(error) => return Err(error.into()),
            };
            let packet = &packet[..bytes];
            let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            let is_ours = packet.len() >= header + 4
                && packet[0] >> 4 == 4
                && (packet[9], &packet[16..20]) == (protocol, &to.octets()[..])
                && packet[header + 2..header + 4] == port.to_be_bytes();
            // The lowest two bits are the network's own (ECN).
            seen.extend(is_ours.then(|| packet[1] & !3));
        }
    }
}

/// A server on another guest: the byte is on every packet of RoCE that goes there, and none without the option.
pub(crate) fn of_roce(site: &Site) -> Outcome {
    let peer = site.silent.as_deref().ok_or("no peer was given")?;
    let IpAddr::V4(to) = peer.parse()? else { return Err("not IPv4".into()) };
    for tos in [None, Some(0x28u8)] {
        let mut plan = Plan::default();
        plan.options.type_of_service = tos;
        let target = Target::at(SocketAddr::new(to.into(), 7471));
        let capture = Capture::new()?;
        let (mut connection, (out, inbox)) = dial(&[target], &plan.options, &plan.connect, |endpoint| {
            let buffer = endpoint.add_buffer(32, Access::Local)?;
            endpoint.post_receive(buffer.range(16..32), 1)?;
            Ok((buffer.range(0..16), buffer.range(16..32)))
        })?;
        // Those of the CM's handshake are counted too.
        let mut seen = capture.seen(to, UDP, ROCE_PORT)?;
        let handshake = seen.clone();
        connection.post_send(out, 2)?;
        while connection.completion(STEP)?.operation != Operation::Receive {}
        let mut answer = [0; 16];
        connection.read(inbox, &mut answer)?;
        seen = capture.seen(to, UDP, ROCE_PORT)?;
        println!("        {tos:?}: {handshake:?} of the handshake, {seen:?} of the data");
        ensure!(seen == BTreeSet::from([tos.unwrap_or(0)]), "{seen:?} for {tos:?}");
        connection.disconnect()?;
    }
    Ok(None)
}

/// On iWARP the byte is on the packets of the TCP connection, where the driver passes it on.
pub(crate) fn of_iwarp(site: &Site) -> Outcome {
    let IpAddr::V4(host) = site.host.parse()? else { return Ok(Some("it looks at IPv4".to_owned())) };
    if !site.iwarp {
        return Ok(Some("rxe sends nothing to itself by the network; two guests show it".to_owned()));
    }
    let mut both = Vec::new();
    for tos in [None, Some(0x28u8)] {
        let (mut listener, target) = site.listen()?;
        let port = target.destination.ok_or("no destination")?.port();
        let mut plan = Plan::default();
        plan.options.type_of_service = tos;
        let capture = Capture::new()?;
        let (_client, _server) = pair(&mut listener, &target, &plan, |_| Ok(()))?;
        both.push(capture.seen(host, TCP, port)?);
    }
    println!("        {both:?}");
    ensure!(both[0] == BTreeSet::from([0]), "{both:?}");
    if both[1] == both[0] {
        return Ok(Some("siw does not give its sockets the type of service".to_owned()));
    }
    ensure!(both[1] == BTreeSet::from([0x28]), "{both:?}");
    Ok(None)
}
