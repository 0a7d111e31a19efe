//! Events that only a broken peer, a silent host or a removed device sends.

use std::{process::Command, time::Duration};

use gimmal_rdma::{
    cm::{CmError, EventKind, PortSpace, Target, dial},
    id::{CmId, ConnectParams, EventChannel, OwnQp, QpRequest, QpType},
    verbs::{Cq, Pd},
};
use gimmal_transport::Instant;

use crate::{
    effects::{errno, next},
    rig::{Failure, Outcome, Plan, STEP, Site, ensure, pair},
};

/// A server that promises more READs than the client's device can serve: the client's queue pair cannot be made ready.
pub(crate) fn connect_error(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has no queue pairs of our own making".to_owned()));
    }
    let channel = EventChannel::new()?;
    // The library checks depths in the port space of TCP alone.
    let listener = CmId::new(&channel, PortSpace::Ib).map_err(errno("rdma_create_id"))?;
    listener.bind(site.address(0)?).map_err(errno("rdma_bind_addr"))?;
    listener.listen(1).map_err(errno("rdma_listen"))?;
    let address = listener.info().local.ok_or("no address")?;
    let target = Target { port_space: Some(PortSpace::Ib), ..Target::at(address) };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let plan = Plan::default();
            dial(std::slice::from_ref(&target), &plan.options, &plan.connect, |_| Ok(())).err()
        });
        let request = next(&channel)?.request.ok_or("no request")?;
        let context = request.context()?.ok_or("no device")?;
        let (pd, queue) = (Pd::new(&context)?, Cq::new(&context, &context.query()?)?);
        let room = QpRequest {
            send_entries: 1,
            recv_entries: 1,
            pieces: 1,
            inline_bytes: 0,
            srq: None,
            kind: QpType::Rc,
            create_flags: None,
        };
        let own = OwnQp::new(&request, &pd, &queue, &queue, room)?;
        own.ready(&request, 1, 1)?;
        let params = ConnectParams { qp_num: own.qp().number(), ..ConnectParams::new(Vec::new(), 200, 200) };
        request.accept(&params).map_err(errno("rdma_accept"))?;
        let failed = client.join().map_err(|_| "the active side panicked")?;
        let is_named =
            matches!(failed, Some(CmError::Event { event: "CONNECT_ERROR", status, .. }) if status < 0);
        ensure!(is_named, "{failed:?}");
        Ok(None)
    })
}

/// The kernel gives up after a minute, and says so by name.
pub(crate) fn unreachable(site: &Site) -> Outcome {
    let silent = site.silent.as_deref().ok_or("no silent address was given")?;
    let mut plan = Plan::default();
    plan.options.timeout = Duration::from_secs(180);
    let to = std::net::SocketAddr::new(silent.parse()?, 7471);
    let start = Instant::now();
    let failed = dial(&[Target::at(to)], &plan.options, &plan.connect, |_| Ok(())).err();
    println!("        {failed:?} after {:?}", start.elapsed());
    let is_named = matches!(failed, Some(CmError::Event { event: "UNREACHABLE", status: -110, .. }));
    ensure!(is_named, "{failed:?}");
    Ok(None)
}

/// Both ends of a connection are told that their device goes, and dropping them lets it go.
pub(crate) fn removal(site: &Site) -> Outcome {
    let device = site.name.as_deref().ok_or("no device was given")?;
    let (mut listener, target) = site.listen()?;
    let ((mut client, ()), (mut server, ())) = pair(&mut listener, &target, &Plan::default(), |_| Ok(()))?;
    ensure!(client.device() == device, "{} is on {}", site.host, client.device());
    let start = Instant::now();
    let mut command = Command::new("rdma").args(["link", "delete", device]).spawn()?;
    for connection in [&mut client, &mut server] {
        loop {
            ensure!(start.elapsed() < STEP, "no DEVICE_REMOVAL");
            // The kernel may end the connection before.
            match connection.next_event()?.map(|event| event.kind) {
                Some(EventKind::DeviceRemoval) => break,
                Some(EventKind::Disconnected) => {}
                None => std::thread::sleep(Duration::from_millis(2)),
                Some(other) => return Err(format!("{other:?}").into()),
            }
        }
        let told = loop {
            match connection.completion(STEP) {
                Err(CmError::Closed) => {}
                told => break told,
            }
        };
        ensure!(matches!(told, Err(CmError::Event { event: "DEVICE_REMOVAL", .. })), "{told:?}");
    }
    let told = listener.request(STEP).err();
    ensure!(matches!(told, Some(CmError::Event { event: "DEVICE_REMOVAL", .. })), "{told:?}");
    drop((client, server, listener));
    while command.try_wait()?.is_none() {
        ensure!(start.elapsed() < STEP, "`rdma link delete` still waits for us");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

/// A device that was used and is not any more can be deleted, while the process uses another one.
pub(crate) fn unused(site: &Site) -> Outcome {
    let device = site.name.as_deref().ok_or("no device was given")?;
    let other = Site::new(site.silent.as_deref().ok_or("no address of another device was given")?);
    let (mut kept, target) = other.listen()?;
    let _held = pair(&mut kept, &target, &Plan::default(), |_| Ok(()))?;
    let (mut listener, target) = site.listen()?;
    let used = pair(&mut listener, &target, &Plan::default(), |_| Ok(()))?;
    ensure!(used.0.0.device() == device, "{} is on {}", site.host, used.0.0.device());
    drop((used, listener));
    removed(device)?;
    Ok(None)
}

/// Deletes `device`, which waits until nothing on it is used.
pub(crate) fn removed(device: &str) -> Result<(), Failure> {
    let start = Instant::now();
    let mut command = Command::new("rdma").args(["link", "delete", device]).spawn()?;
    while command.try_wait()?.is_none() {
        ensure!(start.elapsed() < STEP, "`rdma link delete` still waits for us");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
