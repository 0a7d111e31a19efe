//! Work requests with everything that they can have: pieces, numbers, flags, atomic operations, shared receives.

use std::time::Duration;

use gimmal_rdma::{
    DeviceError,
    cm::{
        Access, Buffer, CmError, Connection, Done, Operation, QpPlan, SendFlags, SharedReceives, Span,
        Transfer,
    },
    verbs::{DeviceEvent, DeviceEvents, DeviceNews},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::rig::{Failure, Outcome, Plan, STEP, Side, Site, ensure, meet, pair};

/// A connection and a buffer on it.
type End = Side<Buffer>;

/// A connected pair with a buffer of 4 KiB each, whose first 64 bytes on the passive side are posted under 1.
fn ends(site: &Site, size: QpPlan, access: Access) -> Result<(End, End), Failure> {
    let (mut listener, target) = site.listen()?;
    let mut plan = Plan { plan: size, ..Plan::default() };
    plan.options.plan = size;
    let (client, mut server) =
        pair(&mut listener, &target, &plan, |endpoint| endpoint.add_buffer(4096, access))?;
    server.0.post_receive(server.1.range(0..64), 1)?;
    Ok((client, server))
}

/// The next completion of this kind.
fn next(connection: &mut Connection, wanted: Operation) -> Result<Done, Failure> {
    let done = connection.completion(STEP)?;
    ensure!(done.operation == wanted, "{done:?}, not {wanted:?}");
    Ok(done)
}

fn bytes(connection: &Connection, span: Span) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; span.len()];
    connection.read(span, &mut bytes)?;
    Ok(bytes)
}

/// Three pieces arrive in two; a WRITE of two and a READ into two.
pub(crate) fn pieces(site: &Site) -> Outcome {
    let size = QpPlan { pieces: 3, ..QpPlan::default() };
    let ((mut client, ours), (mut server, theirs)) = ends(site, size, Access::RemoteRead)?;
    server.post_receive_into(&[theirs.range(100..110), theirs.range(200..220)], 2)?;
    client.write(ours.all(), &(0..=255).cycle().take(4096).collect::<Vec<u8>>())?;
    let all = [ours.range(0..4), ours.range(16..24), ours.range(32..44)];
    for _ in 0..2 {
        client.post(Transfer::Send, &all, SendFlags::default(), 7)?;
        let done = next(&mut client, Operation::Send)?;
        ensure!((done.token, done.bytes, done.span) == (7, 24, all[0]), "{done:?}");
    }
    let sent: Vec<u8> = (0..4).chain(16..24).chain(32..44).collect();
    let done = next(&mut server, Operation::Receive)?;
    ensure!((done.token, done.bytes) == (1, 24) && bytes(&server, done.span)? == sent, "{done:?}");
    let done = next(&mut server, Operation::Receive)?;
    ensure!((done.token, done.bytes, done.span) == (2, 24, theirs.range(100..110)), "{done:?}");
    ensure!(bytes(&server, done.span)? == sent[..10], "the first piece");
    ensure!(bytes(&server, theirs.range(200..214))? == sent[10..], "the second piece");
    let from = server.expose(theirs.range(100..110))?;
    let into = [ours.range(1000..1004), ours.range(2000..2006)];
    if !site.iwarp {
        client.post(Transfer::Read(from), &into, SendFlags::default(), 8)?;
        next(&mut client, Operation::Read)?;
        ensure!(bytes(&client, into[0])? == sent[..4] && bytes(&client, into[1])? == sent[4..10], "the READ");
    }
    let four = [ours.range(0..1); 4];
    let refused = client.post(Transfer::Send, &four, SendFlags::default(), 9);
    let is_limit =
        matches!(refused, Err(CmError::Device(DeviceError::Limit { field: "pieces", limit: 3, .. })));
    ensure!(is_limit, "{refused:?}");
    Ok(None)
}

/// Two pieces, written into a receive's own memory, and the numbers beside a SEND and a WRITE.
pub(crate) fn immediates(site: &Site) -> Outcome {
    let ((mut client, ours), (mut server, theirs)) = ends(site, QpPlan::default(), Access::RemoteWrite)?;
    let to = server.expose(theirs.range(128..256))?;
    let flags = SendFlags::default();
    if site.iwarp {
        for transfer in [Transfer::SendImm(1), Transfer::WriteImm(to, 1)] {
            let refused = client.post(transfer, &[ours.range(0..8)], flags, 1);
            ensure!(matches!(refused, Err(CmError::Unsupported { what: "an immediate", .. })), "{refused:?}");
        }
        return Ok(None);
    }
    server.post_receive_into(&[], 2)?;
    client.write(ours.range(0..8), b"with imm")?;
    client.post(Transfer::SendImm(0xdead_beef), &[ours.range(0..8)], flags, 1)?;
    client.post(Transfer::WriteImm(to, 7), &[ours.range(0..8)], flags, 2)?;
    let done = next(&mut server, Operation::Receive)?;
    ensure!((done.token, done.bytes, done.imm) == (1, 8, Some(0xdead_beef)), "{done:?}");
    let done = next(&mut server, Operation::Receive)?;
    ensure!((done.token, done.imm) == (2, Some(7)), "{done:?}");
    ensure!(bytes(&server, theirs.range(128..136))? == b"with imm", "the WRITE");
    next(&mut client, Operation::Send)?;
    next(&mut client, Operation::Write)?;
    // A plain SEND has no number.
    server.post_receive(theirs.range(0..64), 3)?;
    client.post_send(ours.range(0..8), 3)?;
    ensure!(next(&mut server, Operation::Receive)?.imm.is_none(), "a number from nowhere");
    Ok(None)
}

/// The bytes are free as soon as the post returns, and what arrives is what they were.
pub(crate) fn inline(site: &Site) -> Outcome {
    let size = QpPlan { inline_bytes: 64, ..QpPlan::default() };
    let ((mut client, ours), (mut server, _)) = ends(site, size, Access::Local)?;
    client.write(ours.range(0..32), &[7; 32])?;
    let flags = SendFlags { inline: true, ..SendFlags::default() };
    client.post(Transfer::Send, &[ours.range(0..32)], flags, 1)?;
    client.write(ours.range(0..32), &[9; 32])?;
    let done = next(&mut server, Operation::Receive)?;
    ensure!(bytes(&server, done.span)? == [7; 32], "the device read the bytes later");
    next(&mut client, Operation::Send)?;
    let refused = client.post(Transfer::Send, &[ours.all()], flags, 2);
    ensure!(
        matches!(refused, Err(CmError::Device(DeviceError::Limit { field: "inline bytes", .. }))),
        "{refused:?}"
    );
    Ok(None)
}

/// Unsignalled requests are over with the next that completes, and cannot fill the queue.
pub(crate) fn signalling(site: &Site) -> Outcome {
    let size = QpPlan { send_entries: 4, ..QpPlan::default() };
    let ((mut client, ours), (mut server, theirs)) = ends(site, size, Access::Local)?;
    let piece = |at: usize| ours.range(8 * at..8 * at + 8);
    let silent = SendFlags { signalled: false, ..SendFlags::default() };
    let fenced = SendFlags { fence: true, solicited: true, ..SendFlags::default() };
    for at in 1..12 {
        server.post_receive(theirs.range(64 * at..64 * at + 64), 1 + at as u64)?;
    }
    for round in 0..3 {
        for at in 0..3 {
            client.post(Transfer::Send, &[piece(at)], silent, at as u64)?;
        }
        let touched = client.write(piece(0), b"too soon");
        ensure!(matches!(touched, Err(CmError::Posted { .. })), "{touched:?}");
        let refused = client.post(Transfer::Send, &[piece(3)], silent, 3);
        ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
        client.post(Transfer::Send, &[piece(3)], fenced, 10 + round)?;
        let full = client.post(Transfer::Send, &[piece(4)], fenced, 4);
        ensure!(full == Err(CmError::Full), "{full:?}");
        let done = next(&mut client, Operation::Send)?;
        ensure!(done.token == 10 + round, "{done:?}");
        client.write(piece(0), b"is ours.")?;
        ensure!(client.try_completion()?.is_none(), "an unsignalled request completed");
        for _ in 0..4 {
            next(&mut server, Operation::Receive)?;
        }
    }
    Ok(None)
}

/// Compare and swap, fetch and add: what was there, and what is there then.
pub(crate) fn atomics(site: &Site) -> Outcome {
    let ((mut client, ours), (mut server, theirs)) = ends(site, QpPlan::default(), Access::RemoteAtomic)?;
    let on = server.expose(theirs.range(64..72))?;
    let swap = |expected, new| Transfer::CompareSwap { on, expected, new };
    let add = |add| Transfer::FetchAdd { on, add };
    let flags = SendFlags::default();
    if site.iwarp {
        for transfer in [swap(0, 1), add(1)] {
            let refused = client.post(transfer, &[ours.range(0..8)], flags, 1);
            ensure!(
                matches!(refused, Err(CmError::Unsupported { what: "an atomic operation", .. })),
                "{refused:?}"
            );
        }
        return Ok(None);
    }
    for (transfer, was, is) in
        [(add(5), 0, 5), (swap(5, 100), 5, 100), (swap(5, 200), 100, 100), (add(u64::MAX), 100, 99)]
    {
        client.post(transfer, &[ours.range(0..8)], flags, 1)?;
        let done = next(&mut client, Operation::Atomic)?;
        let word = |bytes: Vec<u8>| bytes.try_into().map(u64::from_ne_bytes);
        let [old, new] = [word(bytes(&client, done.span)?), word(bytes(&server, theirs.range(64..72))?)];
        ensure!((old.as_ref(), new.as_ref()) == (Ok(&was), Ok(&is)), "{transfer:?}: {old:?} {new:?}");
    }
    let short = client.post(add(1), &[ours.range(0..4)], flags, 1);
    ensure!(matches!(short, Err(CmError::Device(DeviceError::Limit { limit: 8, .. }))), "{short:?}");
    server.disconnect()?;
    Ok(None)
}

/// A wait in an event loop of the program's own.
pub(crate) fn descriptors(site: &Site) -> Outcome {
    let ((mut client, ours), (mut server, _)) = ends(site, QpPlan::default(), Access::Local)?;
    let readable = |connection: &Connection, limit: Duration| -> Result<[bool; 2], Failure> {
        let descriptors = connection.descriptors();
        let mut fds = descriptors.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
        poll(&mut fds, Some(&Timespec::try_from(limit)?))?;
        Ok(fds.map(|fd| fd.revents().contains(PollFlags::IN)))
    };
    server.arm()?;
    ensure!(readable(&server, Duration::from_millis(50))? == [false; 2], "readable for nothing");
    client.post_send(ours.range(0..8), 1)?;
    ensure!(readable(&server, STEP)? == [true, false], "not readable by a message");
    ensure!(server.try_completion()?.is_some(), "no completion");
    server.arm()?;
    client.disconnect()?;
    let mut seen = Vec::new();
    while seen.is_empty() {
        ensure!(readable(&server, STEP)? != [false; 2], "not readable by the end");
        server.arm()?;
        seen.extend(server.next_event()?);
    }
    ensure!(seen[0].kind.name() == "DISCONNECTED" && seen[0].status == 0, "{seen:?}");
    server.disconnect()?;
    // The client waits out its time, and is told when that is over (not by iWARP's CM, which has none).
    client.wait_closed(STEP)?;
    let first = client.next_event()?;
    ensure!(first.is_some_and(|event| event.kind.name() == "DISCONNECTED"), "{first:?}");
    Ok(None)
}

/// One queue, two connections; its limit is an event of the device; the peers are told that it is shared.
pub(crate) fn shared(site: &Site) -> Outcome {
    let receives = SharedReceives::new(site.address(0)?, 4)?;
    let news = DeviceEvents::new()?;
    let inbox = receives.add_buffer(4 * 64)?;
    for at in 0..4usize {
        receives.post_receive(inbox.range(64 * at..64 * at + 64), at as u64)?;
    }
    let full = receives.post_receive(inbox.range(0..64), 9);
    ensure!(full == Err(CmError::Full), "{full:?}");
    receives.arm(3)?;
    let (mut listener, target) = site.listen()?;
    let plan = Plan::default();
    let mut sides = Vec::new();
    for _ in 0..2 {
        let (client, server) = meet(
            &mut listener,
            &target,
            &plan,
            |endpoint| endpoint.add_buffer(64, Access::Local),
            |request| {
                let mut answering = request.endpoint_on(plan.plan, &receives)?;
                let own = answering.add_buffer(64, Access::Local)?;
                let refused = answering.post_receive(own.all(), 1);
                ensure!(matches!(refused, Err(CmError::Unsupported { .. })), "{refused:?}");
                Ok(answering.accept(&plan.accept, STEP)?)
            },
        )?;
        sides.push((client?, server));
    }
    let said = sides[0].0.0.peer_said();
    ensure!(site.iwarp || said.srq, "the accept does not say that its receives are shared: {said:?}");
    let mut tokens = Vec::new();
    for (at, ((client, ours), server)) in (0u8..).zip(&mut sides) {
        for round in [1, 2] {
            client.write(ours.all(), &[10 * at + round; 64])?;
            client.post_send(ours.all(), 0)?;
            let done = next(server, Operation::Receive)?;
            let mut arrived = [0; 64];
            receives.read(done.span, &mut arrived)?;
            ensure!(arrived == [10 * at + round; 64], "{arrived:?}");
            tokens.push(done.token);
            next(client, Operation::Send)?;
        }
    }
    tokens.sort_unstable();
    ensure!(tokens == [0, 1, 2, 3], "{tokens:?}");
    let mut told = None;
    let deadline = gimmal_transport::Instant::now() + STEP;
    while told.is_none() {
        ensure!(gimmal_transport::Instant::now() < deadline, "no event when few receives were left");
        match news.next() {
            Some(DeviceNews::Event(event)) if event.kind == DeviceEvent::SrqLimit => told = Some(event),
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let told = told.ok_or("nothing")?;
    ensure!(sides[0].1.concerns(&told) && sides[1].1.concerns(&told), "the event is not theirs");
    ensure!(!sides[0].0.0.concerns(&told), "the event is the client's");
    drop(sides);
    receives.post_receive(inbox.range(0..64), 5)?;
    Ok(None)
}

/// All receives of a shared queue complete on one connection, which has not looked yet.
pub(crate) fn shared_alone(site: &Site) -> Outcome {
    const RECEIVES: usize = 256;
    let receives = SharedReceives::new(site.address(0)?, 256)?;
    let inbox = receives.add_buffer(8 * RECEIVES)?;
    for at in 0..RECEIVES {
        receives.post_receive(inbox.range(8 * at..8 * at + 8), at as u64)?;
    }
    let (mut listener, target) = site.listen()?;
    let plan = Plan::default();
    let (client, mut server) = meet(
        &mut listener,
        &target,
        &plan,
        |endpoint| endpoint.add_buffer(8, Access::Local),
        |request| Ok(request.endpoint_on(plan.plan, &receives)?.accept(&plan.accept, STEP)?),
    )?;
    let (mut client, ours) = client?;
    for _ in 0..RECEIVES {
        client.post_send(ours.all(), 0)?;
        next(&mut client, Operation::Send)?;
    }
    let mut tokens = Vec::new();
    for _ in 0..RECEIVES {
        tokens.push(next(&mut server, Operation::Receive)?.token);
    }
    tokens.sort_unstable();
    ensure!(tokens == (0..RECEIVES as u64).collect::<Vec<_>>(), "{tokens:?}");
    Ok(None)
}
