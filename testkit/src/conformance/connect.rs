//! Connecting: terms that both sides compute alike, reasons that both sides can read, limits that hold.

use std::time::Duration;

use super::{
    bench::Bench,
    case::{ANY, Case, KNOCK},
    outcome::{Outcome, ensure},
    patience,
    rig::{Duo, Rig, Side},
};
use gimmal_transport::{
    AcceptError, CloseReason, ConnectError, ConnectOptions, Connecting, Incoming, ListenError, ListenOptions,
    Listener, Port, PortError, Provider, Refusal, RejectReason,
    hello::{Feature, HELLO_BYTES, VERSION},
    refusal::REFUSAL_DATA_BYTES,
    testing::Came,
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "connect_terms_mirror", needs: ANY, run: terms_mirror },
        Case { name: "connect_depths_are_the_minimum", needs: ANY, run: depths_are_minimum },
        Case { name: "connect_hello_says_what_was_configured", needs: ANY, run: hello_says },
        Case { name: "connect_reject_reason_is_read", needs: ANY, run: reject_reason },
        Case { name: "connect_dropped_request_is_overloaded", needs: ANY, run: dropped_request },
        Case { name: "connect_nobody_listens", needs: ANY, run: nobody_listens },
        Case { name: "connect_silence_is_a_timeout", needs: ANY, run: silence },
        Case { name: "connect_within_any_time", needs: ANY, run: within_any_time },
        Case { name: "connect_wrong_provider_is_named", needs: ANY, run: wrong_provider },
        Case { name: "connect_listener_in_use", needs: ANY, run: in_use },
        Case { name: "connect_given_up_leaves_the_listener", needs: ANY, run: given_up },
        Case { name: "connect_dropped_link_closes", needs: ANY, run: dropped_link },
        Case { name: "connect_silent_handshake_ends", needs: ANY, run: silent_handshake },
        Case { name: "connect_above_the_limit", needs: ANY, run: above_the_limit },
        Case { name: "connect_many_and_again", needs: ANY, run: many_and_again },
        Case { name: "connect_foreign_bytes_are_rejected", needs: KNOCK, run: foreign_bytes },
        Case { name: "connect_other_version_is_rejected", needs: KNOCK, run: other_version },
        Case { name: "connect_absurd_geometry_is_rejected", needs: KNOCK, run: absurd_geometry },
    ]
}

fn terms_mirror<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (_rig, duo) = bench.open_with(|side, config| {
        if side == 1 {
            config.ring_bytes *= 2;
            config.slot_bytes *= 2;
            config.arrivals += 3;
        }
    })?;
    for side in 0..2 {
        let (ours, theirs) = (&duo.terms[side], &duo.terms[1 - side]);
        ensure!(ours.path == theirs.path, "{} and {}", ours.path, theirs.path);
        // Where there is no ring at the other end, who has many of them keeps a small one to send from.
        let smaller = ours.rx_shared && ours.tx_ring_bytes < theirs.rx_ring_bytes;
        ensure!(
            smaller || ours.tx_ring_bytes == theirs.rx_ring_bytes,
            "ring sizes differ:\n{ours}\n{theirs}"
        );
        ensure!(ours.tx_shared == theirs.rx_shared, "one side shares unknown to the other");
        ensure!(ours.tx_slot_bytes == theirs.rx_slot_bytes, "slot sizes differ:\n{ours}\n{theirs}");
        ensure!(
            ours.frame_bytes_max == theirs.rx_frame_bytes_max
                || (smaller && ours.frame_bytes_max < theirs.rx_frame_bytes_max),
            "frame limits differ:\n{ours}\n{theirs}"
        );
        ensure!(ours.tx_arrivals == theirs.rx_arrivals, "arrivals differ:\n{ours}\n{theirs}");
        ensure!(ours.arrivals_count == theirs.arrivals_count, "one side counts arrivals");
        ensure!(ours.bulk_in_place == theirs.bulk_in_place, "one side reads in place");
        let (reads, resources) = (ours.initiator_depth.granted, theirs.responder_resources.granted);
        ensure!(reads == resources, "{reads} READs and {resources} resources for them");
        ensure!(!ours.device.is_empty() && !ours.peer.is_empty(), "no device or peer is named:\n{ours}");
    }
    Ok(())
}

fn depths_are_minimum<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    for (asks, gives) in [(4, 9), (9, 4), (1, 16), (16, 1), (7, 7), (0, 5), (5, 0)] {
        let (_rig, duo) = bench.open_with(|side, config| {
            if side == 0 {
                (config.initiator_depth, config.responder_resources) = (asks, 2);
            } else {
                (config.initiator_depth, config.responder_resources) = (3, gives);
            }
        })?;
        let least = u32::from(asks.min(gives));
        let granted = duo.terms[0].initiator_depth;
        ensure!(granted.granted == least, "{asks} asked, {gives} given: {granted}");
        let granted = duo.terms[1].responder_resources;
        ensure!(granted.granted == least, "{asks} asked, {gives} given, at the responder: {granted}");
        let back = duo.terms[1].initiator_depth;
        ensure!(back.granted == 2, "3 asked, 2 given: {back}");
        ensure!(back.asked == 3 && back.offered == 3, "the term forgot what was asked: {back:?}");
    }
    Ok(())
}

fn hello_says<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut config = bench.harness.config();
    (config.initiator_depth, config.responder_resources, config.arrivals) = (5, 6, 21);
    let mut rig = bench.rig_with([config.clone(), bench.harness.config()])?;
    let gate = rig.ports[0].gate();
    let mut connecting = rig.providers[0].connect(&rig.address, &gate, &patience::connecting())?;
    let incoming = bench.incoming(&mut rig, &mut connecting)?;
    let hello = *incoming.hello();
    let said = if hello.features.has(Feature::SHARED) {
        (config.shared.ring_bytes(), config.shared.slot_bytes, config.shared.arrivals())
    } else {
        (config.ring_bytes, config.slot_bytes, 21)
    };
    ensure!((hello.ring_bytes, hello.slot_bytes, hello.arrivals) == said, "{hello:?}");
    ensure!((hello.initiator_depth, hello.responder_resources) == (5, 6), "{hello:?}");
    ensure!(!incoming.peer().is_empty(), "the peer has no name");
    Ok(())
}

/// Starts an attempt and lets `answer` deal with the request; returns how it ended.
fn refused_by<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    answer: impl FnOnce(<P::Listener as Listener>::Incoming),
) -> Outcome<ConnectError> {
    let gate = rig.ports[0].gate();
    let mut connecting = rig.providers[0].connect(&rig.address, &gate, &patience::connecting())?;
    answer(bench.incoming(rig, &mut connecting)?);
    outcome(bench, rig, &mut connecting)
}

fn outcome<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    connecting: &mut P::Connecting,
) -> Outcome<ConnectError> {
    let outcome = bench.wait("outcome of the connect", |now| {
        rig.poll(now);
        Ok(connecting.poll(Duration::ZERO))
    })?;
    ensure!(connecting.poll(Duration::ZERO).is_none(), "an attempt had two outcomes");
    outcome.err().ok_or_else(|| "it connected".into())
}

fn reject_reason<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    for reason in [
        RejectReason::Application { code: 0 },
        RejectReason::Application { code: 0xdead_beef },
        RejectReason::ShuttingDown,
        RejectReason::Overloaded,
        RejectReason::Authentication,
        RejectReason::Credits { offered: 9, least: 16 },
        RejectReason::Version { ours: 1, theirs: 2 },
    ] {
        let error = refused_by(bench, &mut rig, |incoming| incoming.reject(reason))?;
        // The reader's own version is `ours`.
        let reason = match reason {
            RejectReason::Version { ours, theirs } => RejectReason::Version { ours: theirs, theirs: ours },
            reason => reason,
        };
        let read = matches!(&error, ConnectError::Rejected { reason: seen, .. } if *seen == reason);
        ensure!(read, "{reason:?} was read as {error:?}");
        ensure!(error.to_string().contains(&rig.address.to_string()), "'{error}' does not say where");
    }
    let reason = RejectReason::Application { code: 9 };
    for len in [0, 1, 5, REFUSAL_DATA_BYTES] {
        let own = vec![0xa5; len];
        let refusal = Refusal::with_data(reason, &own).ok_or("the data does not fit")?;
        let error = refused_by(bench, &mut rig, |incoming| incoming.refuse(refusal))?;
        let read = matches!(&error, ConnectError::Rejected { reason: seen, data, .. }
            if *seen == reason && *data == own);
        ensure!(read, "{len} bytes of the application's were read as {error:?}");
    }
    let mut duo = bench.connect(&mut rig)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn dropped_request<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let error = refused_by(bench, &mut rig, drop)?;
    let overloaded = matches!(&error, ConnectError::Rejected { reason: RejectReason::Overloaded, .. });
    ensure!(overloaded, "{error:?}");
    Ok(())
}

fn nobody_listens<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    // Nobody else may have it, so it is one that was just given up.
    let address = rig.listener.address();
    rig.listener = rig.providers[1].listen(&bench.harness.address(), &patience::listening())?;
    ensure!(rig.listener.address() != address, "the harness gave one address twice");
    let gate = rig.ports[0].gate();
    let error = match rig.providers[0].connect(&address, &gate, &patience::connecting()) {
        Ok(mut connecting) => outcome(bench, &mut rig, &mut connecting)?,
        Err(error) => error,
    };
    ensure!(matches!(&error, ConnectError::NobodyListens { .. }), "{error:?}");
    ensure!(error.to_string().contains("start the server"), "'{error}' does not say what to do");
    Ok(())
}

fn silence<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let limit = Duration::from_millis(300);
    let options = ConnectOptions { connect_timeout: limit, ..ConnectOptions::default() };
    let start = bench.now();
    let gate = rig.ports[0].gate();
    let mut connecting = rig.providers[0].connect(&rig.address, &gate, &options)?;
    let error = outcome(bench, &mut rig, &mut connecting)?;
    let took = bench.now().since(start);
    ensure!(matches!(&error, ConnectError::Timeout { timeout, .. } if *timeout == limit), "{error:?}");
    // That it ends is the wait's to tell.
    ensure!(took >= limit, "a limit of {limit:?} took {took:?}");
    let mut duo = connect_past_the_dead(bench, &mut rig)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

/// Connects while requests of attempts that were given up may still be on their way to the listener, or in its queue.
fn connect_past_the_dead<P: Provider>(bench: &mut Bench<'_, P>, rig: &mut Rig<P>) -> Outcome<Duo> {
    let gates = [rig.ports[0].gate(), rig.ports[1].gate()];
    let mut connecting = rig.providers[0].connect(&rig.address, &gates[0], &patience::connecting())?;
    let (mut active, mut passives) = (None, Vec::new());
    // Which of the requests is ours is known when it opens: the others never do.
    let passive = bench.wait("opened connection", |now| {
        rig.poll(now);
        if let Some(incoming) = rig.listener.accept(Duration::ZERO)? {
            match incoming.accept(&gates[1]) {
                Ok(link) => passives.push(rig.ports[1].adopt(link, now)?),
                Err(AcceptError::Gone { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(link) = connecting.poll(Duration::ZERO).transpose()? {
            active = Some(rig.ports[0].adopt(link, now)?);
        }
        let opened = rig.inbox[1].iter().find(|event| matches!(event, Came::Opened { .. }));
        Ok(opened.map(Came::conn))
    })?;
    for dead in passives.into_iter().filter(|conn| *conn != passive) {
        bench.closed(rig, 1, dead)?;
    }
    bench.opened(rig, [active.ok_or("opened by nobody")?, passive])
}

/// "No limit" is a limit that never comes, and one that is over at once is told by its name.
fn within_any_time<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX)] {
        let options = ListenOptions { handshake_timeout: limit, ..ListenOptions::default() };
        bench.listen_again(&mut rig, &options)?;
        let options =
            ConnectOptions { connect_timeout: limit, handshake_timeout: limit, ..ConnectOptions::default() };
        let mut duo = bench.connect_with(&mut rig, &options)?;
        bench.exchange(&mut rig, &mut duo, 1)?;
    }
    for limit in [Duration::ZERO, Duration::from_nanos(1)] {
        let options = ConnectOptions { connect_timeout: limit, ..ConnectOptions::default() };
        let mut connecting = rig.providers[0].connect(&rig.address, &rig.ports[0].gate(), &options)?;
        let outcome = bench.wait("outcome of the connect", |now| {
            rig.poll(now);
            Ok(connecting.poll(Duration::ZERO).map(|outcome| outcome.map(drop)))
        })?;
        let named = matches!(&outcome, Err(ConnectError::Timeout { timeout, .. }) if *timeout == limit);
        ensure!(named, "{limit:?}: {outcome:?}");
    }
    Ok(())
}

fn wrong_provider<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let rig = bench.rig()?;
    let wrong = bench.harness.wrong_address();
    let listening = rig.providers[1].listen(&wrong, &patience::listening()).map(|_| ());
    let not_ours =
        |error: &PortError| matches!(error, PortError::NotBuilt { .. } | PortError::NotOpened { .. });
    let named = match &listening {
        Err(ListenError::Port(error)) => not_ours(error),
        other => matches!(other, Err(ListenError::Address { .. })),
    };
    ensure!(named, "{listening:?}");
    let gate = rig.ports[0].gate();
    let connecting = rig.providers[0].connect(&wrong, &gate, &patience::connecting()).map(|_| ());
    let named = match &connecting {
        Err(ConnectError::Port(error)) => not_ours(error),
        other => matches!(other, Err(ConnectError::Address { .. })),
    };
    ensure!(named, "{connecting:?}");
    Ok(())
}

fn in_use<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let second = rig.providers[1].listen(&rig.address, &patience::listening()).map(|_| ());
    ensure!(matches!(second, Err(ListenError::InUse { .. })), "{second:?}");
    let mut duo = bench.connect(&mut rig)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn given_up<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    for _ in 0..3 {
        let gate = rig.ports[0].gate();
        drop(rig.providers[0].connect(&rig.address, &gate, &patience::connecting())?);
    }
    let mut duo = connect_past_the_dead(bench, &mut rig)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn dropped_link<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    for dropped in 0..2 {
        let [active, passive] = bench.links(&mut rig, &patience::connecting())?;
        let now = bench.now();
        let (side, link): (Side, _) = if dropped == 0 {
            drop(active);
            (1, passive)
        } else {
            drop(passive);
            (0, active)
        };
        let conn = rig.ports[side].adopt(link, now)?;
        let reason = bench.closed(&mut rig, side, conn)?;
        let gone =
            matches!(reason, CloseReason::Peer | CloseReason::PeerGone { .. } | CloseReason::Event { .. });
        ensure!(gone, "side {side} saw {reason:?}");
    }
    Ok(())
}

/// A client whose grant never comes is given up, and the listener goes on.
fn silent_handshake<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    // Above the default, so that it is told from that and nobody honest is pressed.
    let limit = Duration::from_secs(3);
    let options = ListenOptions { handshake_timeout: limit, ..ListenOptions::default() };
    bench.listen_again(&mut rig, &options)?;
    // A client that says hello and nothing more; or, where the harness cannot be one, a link that nobody takes.
    let mut silent = (None, None);
    let passive = if bench.harness.can_knock() {
        let hello = bent_hello(bench, |_| {})?;
        let mut knock = bench.harness.knock(&rig.address, &hello).ok_or("the harness cannot knock")?;
        // It takes the steps to its request, and none after.
        let incoming = bench.wait("connect request", |now| {
            rig.poll(now);
            ensure!(knock().is_none(), "it was refused");
            Ok(rig.listener.accept(Duration::ZERO)?)
        })?;
        silent.0 = Some(knock);
        incoming.accept(&rig.ports[1].gate())?
    } else {
        let [active, passive] = bench.links(&mut rig, &patience::connecting())?;
        silent.1 = Some(active);
        passive
    };
    let start = bench.now();
    let conn = rig.ports[1].adopt(passive, start)?;
    let reason = bench.closed(&mut rig, 1, conn)?;
    ensure!(reason == CloseReason::Handshake, "{reason:?}");
    let took = bench.now().since(start);
    ensure!(took >= limit, "a limit of {limit:?} took {took:?}");
    drop(silent);
    let mut duo = bench.connect(&mut rig)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn above_the_limit<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut config = bench.harness.config();
    config.connections = 1;
    let mut rig = bench.rig_with([bench.harness.config(), config])?;
    let mut first = bench.connect(&mut rig)?;
    let [active, passive] = bench.links(&mut rig, &patience::connecting())?;
    let now = bench.now();
    let refused = rig.ports[1].adopt(passive, now);
    ensure!(
        matches!(refused, Err(PortError::Limit { field: "connections", limit: 1, .. })),
        "{refused:?} for the second connection of one"
    );
    let conn = rig.ports[0].adopt(active, now)?;
    bench.closed(&mut rig, 0, conn)?;
    bench.exchange(&mut rig, &mut first, 1)
}

fn many_and_again<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let mut duos = Vec::new();
    for _ in 0..12 {
        duos.push(bench.connect(&mut rig)?);
    }
    let mut ids: Vec<_> = duos.iter().map(|duo| duo.ids[0]).collect();
    ids.sort_unstable();
    ids.dedup();
    ensure!(ids.len() == 12, "{} ids for 12 connections", ids.len());
    for (seed, duo) in duos.iter_mut().enumerate() {
        bench.exchange(&mut rig, duo, seed)?;
    }
    for duo in &duos {
        let now = bench.now();
        rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    }
    for duo in &duos {
        bench.closed(&mut rig, 0, duo.ids[0])?;
        bench.closed(&mut rig, 1, duo.ids[1])?;
    }
    for seed in 0..5 {
        let mut duo = bench.connect(&mut rig)?;
        ensure!(!ids.contains(&duo.ids[0]), "{:?} was given before", duo.ids[0]);
        bench.exchange(&mut rig, &mut duo, seed)?;
    }
    Ok(())
}

/// A client that says `bytes` is rejected by the listener itself, counted, and harms nobody.
fn rejected_bytes<P: Provider>(
    bench: &mut Bench<'_, P>,
    bytes: &[u8],
    reason: impl Fn(RejectReason) -> bool,
) -> Outcome {
    let mut rig = bench.rig()?;
    let before = rig.listener.rejections().count();
    let mut knock = bench.harness.knock(&rig.address, bytes).ok_or("the harness cannot knock")?;
    let told = bench.wait("answer to foreign bytes", |now| {
        rig.poll(now);
        ensure!(rig.listener.accept(Duration::ZERO)?.is_none(), "foreign bytes were handed out");
        Ok(knock())
    })?;
    let rejected = rig.listener.rejections().count() - before;
    ensure!(rejected == 1, "{rejected} rejects counted");
    if let Some(error) = told {
        let read = matches!(&error, ConnectError::Rejected { reason: seen, .. }
            | ConnectError::Foreign { reason: seen, .. } if reason(*seen));
        ensure!(read, "the client read {error:?}");
    }
    let mut duo = bench.connect(&mut rig)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn foreign_bytes<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    rejected_bytes(bench, &[0; HELLO_BYTES], |reason| reason == RejectReason::NotOurs)?;
    rejected_bytes(bench, b"GET / HTTP/1.1\r\nHost: gimmal\r\n\r\n........", |reason| {
        reason == RejectReason::NotOurs
    })
}

/// A hello that is right but for what `change` does.
fn bent_hello<P: Provider>(bench: &mut Bench<'_, P>, change: impl Fn(&mut [u8])) -> Outcome<Vec<u8>> {
    let mut rig = bench.rig()?;
    let gate = rig.ports[0].gate();
    let mut connecting = rig.providers[0].connect(&rig.address, &gate, &patience::connecting())?;
    let mut bytes = bench.incoming(&mut rig, &mut connecting)?.hello().encode().to_vec();
    change(&mut bytes);
    Ok(bytes)
}

fn other_version<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    for version in [VERSION - 1, VERSION + 1, 99] {
        let bytes = bent_hello(bench, |bytes| bytes[4] = version)?;
        rejected_bytes(bench, &bytes, |reason| {
            reason == RejectReason::Version { ours: version, theirs: VERSION }
        })?;
    }
    Ok(())
}

fn absurd_geometry<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let bytes = bent_hello(bench, |bytes| bytes[8..12].fill(0xff))?;
    rejected_bytes(bench, &bytes, |reason| reason == RejectReason::BadHello { field: 1 })
}
