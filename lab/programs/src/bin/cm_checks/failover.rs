//! A bond that fails over under what is connected: ADDR_CHANGE is a hint, and nothing ends.

use std::{fs, time::Duration};

use gimmal_engine::{
    App, Config, Head, Idle, Inline, Io, Message,
    transport::{
        Address, CloseReason, ConnId, ConnectOptions, Connecting as _, Incoming as _, ListenOptions,
        Listener as _, Negotiated, Port, Provider as _, any::Any,
    },
};
use gimmal_rdma::{
    cm::{Access, CmError, EventKind, Operation},
    datagram::{Datagram, DatagramConfig, DatagramEvent, Membership},
};
use gimmal_transport::Instant;

use crate::rig::{Check, Failure, Outcome, Plan, STEP, Site, ensure, pair};

pub(crate) const CHECKS: &[Check] = &[
    ("a bond fails over under two ids", ids),
    ("a bond fails over under datagrams", datagrams),
    ("a bond fails over under a worker", worker),
];

/// Makes the bond's port of this number its active one. The bond takes that port's hardware address.
fn activate(site: &Site, port: usize) -> Result<(), Failure> {
    let bond = site.name.as_deref().ok_or("no bond was given")?;
    let file = |name: &str| format!("/sys/class/net/{bond}/{name}");
    let read =
        |name: &str| fs::read_to_string(file(name)).map_err(|error| format!("{}: {error}", file(name)));
    let (ports, before) = (read("bonding/slaves")?, read("address")?);
    let port = ports.split_whitespace().nth(port).ok_or("the bond has too few ports")?;
    if read("bonding/active_slave")?.trim() == port {
        return Ok(());
    }
    fs::write(file("bonding/active_slave"), port)?;
    ensure!(before != read("address")?, "the hardware address is still {before}");
    Ok(())
}

/// Begins where the device was made: siw knows its device by the hardware address of that time. The GIDs of rxe follow
/// a moment later.
fn begin(site: &Site) -> Result<(), Failure> {
    activate(site, 0)?;
    listens(site)
}

fn listens(site: &Site) -> Result<(), Failure> {
    let deadline = Instant::now() + STEP;
    while let Err(error) = site.listen() {
        ensure!(Instant::now() < deadline, "nothing listens there: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Both ids are told. A connection of siw goes on. The kernel takes the GIDs of a bond away and gives it new ones, so
/// that of rxe cannot send any more, and says so; its listener takes the next client.
fn ids(site: &Site) -> Outcome {
    begin(site)?;
    let (mut listener, target) = site.listen()?;
    let one = |endpoint: &mut gimmal_rdma::cm::Endpoint| endpoint.add_buffer(64, Access::Local);
    let ((mut client, ours), (mut server, theirs)) = pair(&mut listener, &target, &Plan::default(), one)?;
    activate(site, 1)?;
    let deadline = Instant::now() + STEP;
    for connection in [&mut client, &mut server] {
        let told = loop {
            ensure!(Instant::now() < deadline, "no ADDR_CHANGE");
            match connection.next_event()? {
                Some(event) => break event,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        ensure!(told.kind == EventKind::AddrChange && told.status == 0, "{told:?}");
    }
    server.post_receive(theirs.all(), 1)?;
    client.post_send(ours.all(), 2)?;
    if site.iwarp {
        let done = server.completion(STEP)?;
        ensure!((done.operation, done.bytes) == (Operation::Receive, 64), "{done:?}");
        return Ok(None);
    }
    let end = client.completion(STEP);
    println!("        {:?}", end.as_ref().err());
    ensure!(matches!(end, Err(CmError::Work { token: 2, .. })), "{end:?}");
    listens(site)?;
    let _next = pair(&mut listener, &target, &Plan::default(), one)?;
    Ok(None)
}

/// The end point is told, and joins a group and sends as before.
fn datagrams(site: &Site) -> Outcome {
    if site.iwarp {
        return Ok(Some("iWARP has no datagrams".to_owned()));
    }
    begin(site)?;
    let mut endpoint = Datagram::bind(site.address(0)?, &DatagramConfig::default())?;
    activate(site, 1)?;
    let deadline = Instant::now() + STEP;
    let told = loop {
        ensure!(Instant::now() < deadline, "no ADDR_CHANGE");
        match endpoint.event()? {
            Some(event) => break event,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    ensure!(matches!(told, DatagramEvent::AddressChanged), "{told:?}");
    listens(site)?;
    let group = endpoint.join("239.77.8.8".parse()?, Membership::Full, STEP)?;
    endpoint.send(group.peer(), b"again")?;
    let mut arrived = 0;
    while arrived == 0 {
        ensure!(endpoint.wait(STEP)?, "its message to the group did not come");
        arrived = endpoint.receive(|_| {})?;
    }
    Ok(None)
}

/// Sends back what arrives, or counts it.
#[derive(Debug, Default)]
struct Echo {
    is_server: bool,
    open: Option<ConnId>,
    echoes: u32,
    closed: Option<CloseReason>,
}

impl App for Echo {
    type Command = ();

    fn opened<P: Port>(&mut self, _: &mut Io<'_, P>, conn: ConnId, _: &Negotiated) {
        self.open = Some(conn);
    }

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        self.echoes += 1;
        if self.is_server {
            let _ = io.send(conn, message.head, 8, |_| Some(8));
        }
    }

    fn closed<P: Port>(&mut self, _: &mut Io<'_, P>, _: ConnId, reason: &CloseReason) {
        self.closed = Some(reason.clone());
    }
}

/// Two workers on this thread.
struct Both([Inline<Any, Echo>; 2]);

impl Both {
    fn open(site: &Site, any: &Any) -> Result<Self, Failure> {
        // No heartbeat is due while this runs.
        let config = Config { heartbeat_ms: 3_600_000, idle: Idle::Event, ..Config::default() };
        let plan = config.validate()?;
        let side = |is_server| Inline::new(any, &plan, Echo { is_server, ..Echo::default() });
        let mut both = Self([side(false)?, side(true)?]);
        let url: Address = format!("rdma://{}:0", site.url_host()).parse()?;
        let mut listener = any.listen(&url, &ListenOptions::default())?;
        let handles = both.0.each_ref().map(Inline::handle);
        let mut connecting =
            any.connect(&listener.address(), handles[0].gate(), &ConnectOptions::default())?;
        let incoming = listener.accept(STEP)?.ok_or("no request")?;
        both.0[1].adopt(incoming.accept(handles[1].gate())?);
        both.0[0].adopt(connecting.poll(STEP).ok_or("no outcome")??);
        both.turn_until("it did not open", |both| both.0.iter().all(|side| side.app().open.is_some()))?;
        Ok(both)
    }

    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + STEP;
        while !done(self) {
            for side in &mut self.0 {
                side.idle(Duration::from_millis(1));
            }
            ensure!(Instant::now() < deadline, "{what}");
        }
        Ok(())
    }

    /// Frames that either side sent.
    fn sent(&mut self) -> [u64; 2] {
        let sent = |side: &mut Inline<Any, Echo>| {
            side.with(|app, io| app.open.map_or(0, |conn| io.port_counters(conn).frames_sent))
        };
        self.0.each_mut().map(sent)
    }

    /// Those, once nothing was sent for a while.
    fn settled(&mut self) -> Result<[u64; 2], Failure> {
        let deadline = Instant::now() + STEP;
        loop {
            let (before, quiet) = (self.sent(), Instant::now() + Duration::from_millis(500));
            self.turn_until("time stands still", |_| Instant::now() >= quiet)?;
            if self.sent() == before {
                return Ok(before);
            }
            ensure!(Instant::now() < deadline, "frames leave for nothing");
        }
    }
}

/// A worker asks its peer at once, an hour before the heartbeat. On siw the peer answers and the connection goes on. On
/// rxe nothing can be sent, so that the connection ends at once.
fn worker(site: &Site) -> Outcome {
    begin(site)?;
    let any = Any::new();
    let mut both = Both::open(site, &any)?;
    let before = both.settled()?;
    activate(site, 1)?;
    if !site.iwarp {
        both.turn_until("nobody asked", |both| both.0.iter().all(|side| side.app().closed.is_some()))?;
        println!("        {:?}", both.0.each_ref().map(|side| side.app().closed.clone()));
        return Ok(None);
    }
    // A question and an answer from each.
    both.turn_until("nobody asked", |both| {
        both.sent().iter().zip(before).all(|(now, then)| *now >= then + 2)
    })?;
    println!("        frames sent before {before:?}, after {:?}", both.sent());
    let conn = both.0[0].app().open.ok_or("not open")?;
    both.0[0].with(|_, io| io.send(conn, Head { kind: 0, aux: 0 }, 8, |_| Some(8)))?;
    both.turn_until("no echo", |both| both.0[0].app().echoes == 1)?;
    Ok(None)
}
