//! A device that is deleted while end points use it.

use std::{
    net::IpAddr,
    process::Command,
    time::{Duration, Instant},
};

use gimmal_rdma::datagram::{DatagramEvent, JoinError, LookUpData, LookUpError, Membership, SendError};

use crate::side::{Failure, LIMIT, SMALL, ensure, open, pair};

/// The end point must be told, must refuse everything with a name, and dropping it must let the device go.
pub(crate) fn removed_under_load(device: &str, address: &str) -> Result<(), Failure> {
    let address: IpAddr = address.parse()?;
    let (mut a, mut b, peer) = pair(address, &SMALL)?;
    let on = a.info().device;
    ensure(on == device, format!("{address} is on {on}"))?;
    let group = a.join("239.77.9.9".parse()?, Membership::Full, LIMIT)?;
    let start = Instant::now();
    let mut command = Command::new("rdma").args(["link", "delete", device]).spawn()?;
    let mut sent = 0;
    loop {
        // Until the event is read, the device takes messages or says no in its own words.
        match a.send(if sent % 2 == 0 { &peer } else { group.peer() }, b"load") {
            Ok(()) => sent += 1,
            Err(SendError::Full) => drop(a.drain(Duration::from_millis(10))),
            Err(error) => println!("        after {sent} messages: {error}"),
        }
        match a.event()? {
            Some(DatagramEvent::DeviceRemoved) => break,
            Some(other) => println!("        {other:?}"),
            None => ensure(start.elapsed() < LIMIT, "no DEVICE_REMOVAL")?,
        }
    }
    println!("        DEVICE_REMOVAL after {sent} messages and {:?}", start.elapsed());
    ensure(a.send(&peer, b"?") == Err(SendError::DeviceGone), "a message was taken")?;
    let joined = a.join("239.77.9.10".parse()?, Membership::Full, LIMIT);
    ensure(matches!(joined, Err(JoinError::DeviceGone)), format!("{joined:?}"))?;
    let found = a.look_up((address, 1).into(), &LookUpData::EMPTY, LIMIT);
    ensure(matches!(found, Err(LookUpError::DeviceGone)), format!("{found:?}"))?;
    let told = loop {
        // Its messages are there too.
        while b.receive(|_| {})? > 0 {}
        if let Some(event) = b.event()? {
            break event;
        }
        ensure(start.elapsed() < LIMIT, "the second end point was not told")?;
        b.wait(Duration::from_millis(20))?;
    };
    ensure(matches!(told, DatagramEvent::DeviceRemoved), format!("{told:?}"))?;
    let dropped = Instant::now();
    drop((peer, group, a, b));
    while command.try_wait()?.is_none() {
        ensure(dropped.elapsed() < LIMIT, "`rdma link delete` still waits for us")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("        `rdma link delete` returned after {:?}", start.elapsed());
    let refused = open(address);
    ensure(refused.is_err(), "an end point on a device that is gone")
}
