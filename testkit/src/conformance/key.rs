//! A shared key: both sides prove it or nothing is disclosed, and each side is told what was wrong.

use std::time::Duration;

use super::{
    bench::Bench,
    case::{ANY, Case, KNOCK},
    outcome::{Outcome, ensure},
    patience,
    rig::Rig,
};
use gimmal_transport::{
    ConnectError, ConnectOptions, Connecting, Incoming, Key, ListenOptions, Listener, Port, Provider,
    RejectReason, parts, testing::Came,
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "key_is_proved_by_both", needs: ANY, run: proved_by_both },
        Case { name: "key_may_be_any_of_the_listener", needs: ANY, run: any_of_the_listener },
        Case { name: "key_that_is_wrong_is_told_to_both", needs: ANY, run: wrong },
        Case { name: "key_that_the_client_lacks_is_told", needs: ANY, run: client_lacks },
        Case { name: "key_that_the_server_lacks_is_told", needs: ANY, run: server_lacks },
        Case { name: "key_request_replayed_opens_nothing", needs: KNOCK, run: replayed },
        Case { name: "key_foreign_client_is_told", needs: KNOCK, run: foreign },
    ]
}

fn key(byte: u8) -> Outcome<Key> {
    Ok(Key::new(&[byte; 32])?)
}

fn rig<P: Provider>(bench: &mut Bench<'_, P>, keys: &[u8]) -> Outcome<Rig<P>> {
    rig_within(bench, keys, patience::listening().handshake_timeout)
}

/// A rig whose listener gives clients that prove nothing up after `limit`.
fn rig_within<P: Provider>(bench: &mut Bench<'_, P>, keys: &[u8], limit: Duration) -> Outcome<Rig<P>> {
    let mut rig = bench.rig()?;
    let keys = keys.iter().map(|byte| key(*byte)).collect::<Outcome<_>>()?;
    let options = ListenOptions { keys, handshake_timeout: limit, ..ListenOptions::default() };
    bench.listen_again(&mut rig, &options)?;
    Ok(rig)
}

fn with(byte: u8) -> Outcome<ConnectOptions> {
    Ok(ConnectOptions { key: Some(key(byte)?), ..patience::connecting() })
}

fn proved_by_both<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig(bench, &[1])?;
    for seed in 0..2 {
        let mut duo = bench.connect_with(&mut rig, &with(1)?)?;
        for terms in &duo.terms {
            ensure!(terms.authenticated, "a side does not know that it was proved:\n{terms}");
        }
        bench.exchange(&mut rig, &mut duo, seed)?;
    }
    let (_rig, duo) = bench.open()?;
    ensure!(!duo.terms[0].authenticated && !duo.terms[1].authenticated, "proved without a key");
    Ok(())
}

fn any_of_the_listener<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig(bench, &[1, 2])?;
    for byte in [1, 2] {
        let mut duo = bench.connect_with(&mut rig, &with(byte)?)?;
        bench.exchange(&mut rig, &mut duo, byte.into())?;
    }
    Ok(())
}

/// The client reads `reason`, the listener has counted it, and nothing was handed out.
fn refused<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    options: &ConnectOptions,
    reason: RejectReason,
) -> Outcome {
    let before = rig.listener.rejections().count();
    let gate = rig.ports[0].gate();
    let mut connecting = rig.providers[0].connect(&rig.address, &gate, options)?;
    let outcome = bench.wait("outcome of the connect", |now| {
        rig.poll(now);
        ensure!(rig.listener.accept(Duration::ZERO)?.is_none(), "it was handed out");
        Ok(connecting.poll(Duration::ZERO))
    })?;
    let error = outcome.err().ok_or("it connected")?;
    let read = matches!(&error, ConnectError::Rejected { reason: seen, .. } if *seen == reason);
    ensure!(read, "{reason:?} was read as {error:?}");
    let (count, last) = (rig.listener.rejections().count() - before, rig.listener.rejections().last());
    ensure!(count == 1 && last == Some(reason), "the listener counts {count}, the last {last:?}");
    Ok(())
}

fn wrong<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig(bench, &[1])?;
    refused(bench, &mut rig, &with(2)?, RejectReason::Authentication)?;
    let mut duo = bench.connect_with(&mut rig, &with(1)?)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn client_lacks<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig(bench, &[1])?;
    refused(bench, &mut rig, &patience::connecting(), RejectReason::KeyNeeded)
}

fn server_lacks<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig(bench, &[])?;
    refused(bench, &mut rig, &with(1)?, RejectReason::KeyUnknown)
}

/// Somebody who has recorded a good request, and does not have the key.
fn replayed<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut plain = bench.rig()?;
    let gate = plain.ports[0].gate();
    let mut connecting = plain.providers[0].connect(&plain.address, &gate, &patience::connecting())?;
    let mut hello = *bench.incoming(&mut plain, &mut connecting)?.hello();
    let recorded = parts::request(&mut hello, Some(&key(1)?));
    drop(plain);
    // It is waited for.
    let mut rig = rig_within(bench, &[1], Duration::from_secs(3))?;
    let mut knock = bench.harness.knock(&rig.address, &recorded).ok_or("the harness cannot knock")?;
    let mut conn = None;
    let mut is_over = false;
    bench.wait("end of it", |now| {
        rig.poll(now);
        let _ = knock();
        if let Some(incoming) = rig.listener.accept(Duration::ZERO)? {
            ensure!(conn.is_none(), "it was handed out twice");
            conn = Some(rig.ports[1].adopt(incoming.accept(&rig.ports[1].gate())?, now)?);
        }
        for event in &rig.inbox[1] {
            if Some(event.conn()) == conn {
                ensure!(!matches!(event, Came::Opened { .. }), "a replayed request opened a connection");
                is_over |= matches!(event, Came::Closed { .. });
            }
        }
        // Where the proof is asked for before the request is handed out, the listener itself gives it up.
        Ok((is_over || rig.listener.rejections().count() > 0).then_some(()))
    })?;
    let mut duo = bench.connect_with(&mut rig, &with(1)?)?;
    bench.exchange(&mut rig, &mut duo, 1)
}

fn foreign<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig(bench, &[1])?;
    let mut knock = bench.harness.knock(&rig.address, &[0; 56]).ok_or("the harness cannot knock")?;
    let told = bench.wait("answer to foreign bytes", |now| {
        rig.poll(now);
        ensure!(rig.listener.accept(Duration::ZERO)?.is_none(), "foreign bytes were handed out");
        Ok(knock())
    })?;
    let last = rig.listener.rejections().last();
    ensure!(last == Some(RejectReason::NotOurs), "the listener says {last:?}, the client {told:?}");
    let mut duo = bench.connect_with(&mut rig, &with(1)?)?;
    bench.exchange(&mut rig, &mut duo, 1)
}
