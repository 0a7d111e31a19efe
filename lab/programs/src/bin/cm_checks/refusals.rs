//! Refusals: what the client is told, by whom and why.

use gimmal_rdma::cm::{CmError, ConnectData, RejectData, Rejection, Target};
use gimmal_transport::{
    Address, ConnectError, ConnectOptions, Connecting, Hello, Incoming, ListenOptions, Listener, Port,
    PortConfig, Provider, Refusal, RejectReason,
    hello::{Feature, VERSION},
    refusal::REFUSAL_DATA_BYTES,
    verbs::{Verbs, VerbsListener},
};

use crate::{
    events::removed,
    rig::{Failure, Outcome, Plan, STEP, Site, ensure, meet},
};

const HELLO: Hello = Hello {
    features: Feature(0),
    ring_bytes: 64 << 10,
    slot_bytes: 4096,
    arrivals: 16,
    responder_resources: 1,
    initiator_depth: 1,
    lane: 0,
    service: 0,
    nonce: 7,
};

fn rejection<T: std::fmt::Debug>(result: Result<T, CmError>) -> Result<Rejection, Failure> {
    match result {
        Err(CmError::Rejected { rejection }) => Ok(*rejection),
        other => Err(format!("not rejected: {other:?}").into()),
    }
}

fn dial(target: Target, private_data: &[u8]) -> Result<Rejection, Failure> {
    let mut plan = Plan::default();
    plan.connect.private_data = ConnectData::new(private_data)?;
    rejection(gimmal_rdma::cm::dial(&[target], &plan.options, &plan.connect, |_| Ok(())))
}

pub(crate) fn nobody_listens(site: &Site) -> Outcome {
    let seen = dial(Target::at(site.address(29)?), b"")?;
    ensure!(seen.is_nobody_listening(), "{seen:?}");
    ensure!(seen.advice.contains("start the server"), "{seen}");
    println!("        {seen}");
    Ok(None)
}

fn our_listener(site: &Site) -> Result<(Verbs, VerbsListener), Failure> {
    let provider = Verbs::new();
    let address: Address = format!("rdma://{}:0", site.url_host()).parse()?;
    let listener = provider.listen(&address, &ListenOptions::default())?;
    Ok((provider, listener))
}

fn target_of(site: &Site, listener: &VerbsListener) -> Result<Target, Failure> {
    let Address::Rdma { port, .. } = listener.address() else { return Err("not an rdma:// address".into()) };
    Ok(Target::at(site.address(port)?))
}

/// Every reason of ours, with and without the application's own data, as our client decodes it.
pub(crate) fn our_reasons(site: &Site) -> Outcome {
    let (provider, mut listener) = our_listener(site)?;
    let port = provider.open_port(&PortConfig::default())?;
    let reasons = [
        RejectReason::Version { ours: 2, theirs: 1 },
        RejectReason::NotOurs,
        RejectReason::BadHello { field: 1 },
        RejectReason::Overloaded,
        RejectReason::ShuttingDown,
        RejectReason::Credits { offered: 4, least: 16 },
        RejectReason::Authentication,
        RejectReason::Application { code: 0xdead_beef },
    ];
    for (turn, reason) in reasons.into_iter().enumerate() {
        let own = vec![0x5a; [0, 1, 7, REFUSAL_DATA_BYTES][turn % 4]];
        let mut connecting =
            provider.connect(&listener.address(), &port.gate(), &ConnectOptions::default())?;
        let incoming = listener.accept(STEP)?.ok_or("no request")?;
        incoming.refuse(Refusal::with_data(reason, &own).ok_or("too long")?);
        let error = connecting.poll(STEP).ok_or("no outcome")?.err().ok_or("it connected")?;
        let ConnectError::Rejected { reason: seen, data, .. } = &error else {
            return Err(format!("{reason:?} was read as {error:?}").into());
        };
        // The reader's own version is `ours`.
        let wanted = match reason {
            RejectReason::Version { ours, theirs } => RejectReason::Version { ours: theirs, theirs: ours },
            reason => reason,
        };
        ensure!(*seen == wanted && *data == own, "{reason:?} was read as {error:?}");
        println!("        {error}");
    }
    Ok(None)
}

/// A program of another kind refuses with its own bytes.
pub(crate) fn raw(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let reply = RejectData::new(b"closed on Sundays")?;
    let (client, ()) =
        meet(&mut listener, &target, &Plan::default(), |_| Ok(()), |request| Ok(request.reject(&reply)?))?;
    let seen = rejection(client)?;
    ensure!(seen.is_by_consumer() && seen.private_data.starts_with(b"closed on Sundays"), "{seen:?}");
    ensure!(!seen.is_nobody_listening(), "{seen}");
    println!("        {seen}");
    // For its vendor options, which no software device has.
    let (client, ()) = meet(
        &mut listener,
        &target,
        &Plan::default(),
        |_| Ok(()),
        |request| {
            ensure!(request.remote_ece()?.is_none(), "ECE options from a software device");
            Ok(request.reject_ece(&reply)?)
        },
    )?;
    let seen = rejection(client)?;
    ensure!(seen.status == if site.iwarp { -104 } else { 35 }, "{seen:?}");
    ensure!(seen.is_by_consumer() && seen.private_data.starts_with(b"closed on Sundays"), "{seen:?}");
    println!("        {seen}");
    Ok(None)
}

pub(crate) fn dropped(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    let (client, ()) = meet(
        &mut listener,
        &target,
        &Plan::default(),
        |_| Ok(()),
        |request| {
            drop(request);
            Ok(())
        },
    )?;
    println!("        {}", rejection(client)?);
    Ok(None)
}

/// Foreign, older and greedy clients at our listener, and what they are told.
pub(crate) fn other_version(site: &Site) -> Outcome {
    let (_provider, listener) = our_listener(site)?;
    let target = target_of(site, &listener)?;
    let mut older = HELLO.encode();
    older[4] = 9;
    let cases: [(&[u8], RejectReason); 4] = [
        (&older, RejectReason::Version { ours: 9, theirs: VERSION }),
        (b"hello", RejectReason::NotOurs),
        (&Hello { arrivals: 2, ..HELLO }.encode(), RejectReason::Credits { offered: 2, least: 4 }),
        (&Hello { ring_bytes: 5, ..HELLO }.encode(), RejectReason::BadHello { field: 1 }),
    ];
    for (said, wanted) in cases {
        let seen = dial(target.clone(), said)?;
        let refusal = Refusal::decode(&seen.private_data).ok_or("the reject is not ours")?;
        ensure!(refusal.reason() == wanted, "{wanted:?} was read as {refusal:?}");
    }
    ensure!(listener.rejections().count() == 4, "{} counted", listener.rejections().count());
    Ok(None)
}

/// A device on which every connection failed, after its queue pair was made, can be deleted while the server lives.
pub(crate) fn lets_go(site: &Site) -> Outcome {
    let device = site.name.as_deref().ok_or("no device was given")?;
    let (provider, mut listener) = our_listener(site)?;
    let port = provider.open_port(&PortConfig::default())?;
    let target = target_of(site, &listener)?;
    let absurd = Hello { ring_bytes: 1 << 30, ..HELLO }.encode();
    let client = std::thread::spawn(move || dial(target, &absurd));
    let incoming = listener.accept(STEP)?.ok_or("no request came")?;
    let refused = incoming.accept(&port.gate()).err().ok_or("it was accepted")?;
    let seen = client.join().map_err(|_| "the client panicked")??;
    println!("        the server: {refused}; the client: {seen}");
    removed(device)?;
    drop((listener, port));
    Ok(None)
}

/// For the checks of resolution: our hello behind other bytes.
pub(crate) fn hello_behind(site: &Site, before: &[u8]) -> Result<Hello, Failure> {
    let (_provider, mut listener) = our_listener(site)?;
    let mut target = target_of(site, &listener)?;
    target.connect_data = before.to_vec();
    let client = std::thread::spawn(move || dial(target, &HELLO.encode()));
    let incoming = listener.accept(STEP)?.ok_or("the hello was not found")?;
    let hello = *incoming.hello();
    drop(incoming);
    let seen = client.join().map_err(|_| "the client panicked")??;
    let refusal = Refusal::decode(&seen.private_data).ok_or("the reject is not ours")?;
    ensure!(refusal.reason() == RejectReason::Overloaded, "{refusal:?}");
    ensure!(hello == HELLO, "{hello:?}");
    Ok(hello)
}
