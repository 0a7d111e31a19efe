//! Clause 4: a fixed batch, in order for each connection; frames are handed back in any order; sleeping loses nothing.

use std::{os::fd::AsFd, time::Duration};

use rustix::event::{PollFd, PollFlags};

use super::{
    bench::{Bench, same},
    case::{ANY, Case},
    outcome::{Outcome, ensure},
    rig::{Rig, pattern},
};
use gimmal_transport::{
    Batch, Chain, CloseReason, ConnectOptions, ListenOptions, Port, Provider, Tag, Time, Wait, frame::span,
    testing::Came,
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "poll_opened_comes_first_and_once", needs: ANY, run: opened_first_and_once },
        Case { name: "poll_never_overfills_a_batch", needs: ANY, run: never_overfills },
        Case { name: "poll_keeps_order_in_each_connection", needs: ANY, run: order_in_each },
        Case { name: "poll_frames_release_in_any_order", needs: ANY, run: release_in_any_order },
        Case { name: "poll_lent_frames_do_not_change", needs: ANY, run: lent_frames_do_not_change },
        Case { name: "poll_arm_finds_what_is_there", needs: ANY, run: arm_finds_what_is_there },
        Case { name: "poll_armed_port_wakes_for_a_frame", needs: ANY, run: wakes_for_a_frame },
        Case { name: "poll_armed_port_wakes_for_the_waker", needs: ANY, run: wakes_for_the_waker },
        Case { name: "poll_idle_connection_says_nothing", needs: ANY, run: idle_says_nothing },
        Case { name: "poll_counts_what_it_brings", needs: ANY, run: counts },
        Case { name: "poll_meets_its_deadlines", needs: ANY, run: meets_its_deadlines },
    ]
}

fn opened_first_and_once<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    ensure!(rig.inbox.iter().all(|inbox| inbox.is_empty()), "{:?} beside Opened", rig.inbox);
    bench.exchange(&mut rig, &mut duo, 1)?;
    bench.linger(&mut rig);
    let again = rig.inbox.iter().flatten().any(|event| matches!(event, Came::Opened { .. }));
    ensure!(!again, "Opened came twice");
    Ok(())
}

fn never_overfills<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    rig.batch = Batch::new(1);
    for round in 0..10 {
        let chain = if round == 0 { Chain::Begin } else { Chain::Extend };
        duo.commit(&mut rig, 0, &pattern(round, 20), Tag(0), chain)?.ok_or("no credit")?;
    }
    rig.ports[0].flush();
    for round in 0..10 {
        let count = bench.wait("frame", |now| Ok(Some(rig.poll_side(1, now)).filter(|count| *count > 0)))?;
        ensure!(count == 1, "{count} events in a batch of one");
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 20), Tag(0))?;
    }
    Ok(())
}

fn order_in_each<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = bench.rig()?;
    let mut duos = Vec::new();
    for _ in 0..6 {
        duos.push(bench.connect(&mut rig)?);
    }
    for round in 0..30 {
        for (number, duo) in duos.iter_mut().enumerate() {
            bench.send(&mut rig, duo, 0, &pattern(round * 10 + number, 40), Tag(0))?;
        }
        if round % 3 == 2 {
            for (number, duo) in duos.iter_mut().enumerate() {
                for back in (0..3).rev() {
                    bench.expect(&mut rig, duo, 1, &pattern((round - back) * 10 + number, 40), Tag(0))?;
                }
            }
        }
    }
    Ok(())
}

fn release_in_any_order<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let bytes = 200;
    let volume = 3 * u64::from(duo.terms[0].tx_ring_bytes);
    let mut seed = 0;
    while duo.flows[0].sent.0 < volume {
        let mut held = Vec::new();
        for number in 0..6 {
            bench.send(&mut rig, &mut duo, 0, &pattern(seed + number, bytes), Tag(0))?;
        }
        for number in 0..6 {
            let frame = bench.frame(&mut rig, &duo, 1)?;
            same(&frame, &pattern(seed + number, bytes))?;
            held.push(frame);
        }
        for pick in [4, 0, 3, 1, 0, 0] {
            let frame = held.remove(pick);
            duo.release(&mut rig, 1, frame);
        }
        seed += 6;
    }
    Ok(())
}

fn lent_frames_do_not_change<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let first = pattern(999, 300);
    bench.send(&mut rig, &mut duo, 0, &first, Tag(0))?;
    let held = bench.frame(&mut rig, &duo, 1)?;
    let mut seed = 0;
    loop {
        let payload = pattern(seed, 500);
        let all = duo.flows[0].sent.0 + span(500) as u64 > u64::from(duo.terms[0].tx_ring_bytes);
        if all || seed == 40 {
            break;
        }
        bench.send(&mut rig, &mut duo, 0, &payload, Tag(0))?;
        bench.expect(&mut rig, &mut duo, 1, &payload, Tag(0))?;
        same(&held, &first)?;
        seed += 1;
    }
    ensure!(seed > 10, "only {seed} frames went past a held one");
    duo.release(&mut rig, 1, held);
    bench.exchange(&mut rig, &mut duo, 3)
}

/// Whether the port's descriptor is readable now.
fn readable<P: Provider>(rig: &Rig<P>, side: usize) -> Outcome<bool> {
    let fd = rig.ports[side].wait_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut fds.as_mut_slice()[..1], Some(&none))? == 1)
}

/// Polls until the port has nothing left to say, then arms it.
fn fall_asleep<P: Provider>(bench: &mut Bench<'_, P>, rig: &mut Rig<P>, side: usize) -> Outcome {
    bench.wait("sleep", |now| {
        rig.poll_side(side, now);
        Ok(rig.ports[side].arm().then_some(()))
    })
}

fn arm_finds_what_is_there<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for round in 0..5 {
        bench.linger(&mut rig);
        bench.send(&mut rig, &mut duo, 0, &pattern(round, 32), Tag(0))?;
        bench.wait("sign of the frame", |_| {
            let there = !rig.ports[1].arm() || readable(&rig, 1)?;
            rig.ports[1].disarm();
            Ok(there.then_some(()))
        })?;
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 32), Tag(0))?;
    }
    Ok(())
}

fn wakes_for_a_frame<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for round in 0..5 {
        bench.linger(&mut rig);
        fall_asleep(bench, &mut rig, 1)?;
        ensure!(rig.inbox[1].is_empty(), "{:?} in round {round}", rig.inbox[1]);
        bench.send(&mut rig, &mut duo, 0, &pattern(round, 32), Tag(0))?;
        bench.wait("wake-up", |_| Ok(readable(&rig, 1)?.then_some(())))?;
        rig.ports[1].disarm();
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 32), Tag(0))?;
    }
    Ok(())
}

fn wakes_for_the_waker<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for _ in 0..3 {
        bench.linger(&mut rig);
        fall_asleep(bench, &mut rig, 1)?;
        let waker = rig.ports[1].waker();
        let ringer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1));
            waker.ring();
        });
        let fd = rig.ports[1].wait_fd();
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };
        let woken = rustix::event::poll(&mut fds, Some(&limit))?;
        let _ = ringer.join();
        ensure!(woken == 1, "five seconds without waking");
        rig.ports[1].disarm();
    }
    bench.exchange(&mut rig, &mut duo, 2)
}

fn idle_says_nothing<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    bench.linger(&mut rig);
    ensure!(rig.inbox.iter().all(|inbox| inbox.is_empty()), "{:?} on an idle connection", rig.inbox);
    bench.exchange(&mut rig, &mut duo, 1)
}

fn counts<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for round in 0..25 {
        bench.exchange(&mut rig, &mut duo, round)?;
    }
    for side in 0..2 {
        let counters = rig.ports[side].counters(duo.ids[side]);
        let seen = (counters.frames_sent, counters.frames_received);
        ensure!(seen == (25, 25), "side {side} counts {seen:?} frames");
    }
    let strays: Vec<_> = rig.inbox.iter().flatten().map(Came::conn).collect();
    ensure!(strays.is_empty(), "events left over for {strays:?}");
    Ok(())
}

/// For so long a port is polled that says when it wants to be: connections rest earlier, and handshakes end.
const DEADLINES: Duration = Duration::from_millis(600);
const HANDSHAKE: Duration = Duration::from_millis(100);

/// Polls one side until it has no deadline, or for so long. A deadline that has passed is ahead, or gone, once all that is there
/// was taken: an owner never sleeps while one is behind.
fn meet_deadlines<P: Provider>(bench: &mut Bench<'_, P>, rig: &mut Rig<P>, side: usize) -> Outcome {
    let start = bench.now();
    loop {
        let now = bench.now();
        let due = rig.ports[side].deadline();
        // Frames and events take turns.
        while rig.poll_side(side, now) + rig.poll_side(side, now) > 0 {}
        let next = rig.ports[side].deadline();
        ensure!(due > now || next > now, "side {side}, polled at {now:?} for {due:?}, wants {next:?}");
        if next == Time::NEVER || now.since(start) > DEADLINES {
            return Ok(());
        }
        bench.harness.step();
    }
}

fn meets_its_deadlines<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    // Handshakes whose other end is adopted by nobody.
    for side in 0..2 {
        let mut rig = bench.rig()?;
        let options = ListenOptions { handshake_timeout: HANDSHAKE, ..ListenOptions::default() };
        bench.listen_again(&mut rig, &options)?;
        let options = ConnectOptions { handshake_timeout: HANDSHAKE, ..ConnectOptions::default() };
        let [active, passive] = bench.links(&mut rig, &options)?;
        let now = bench.now();
        let (link, _other) = if side == 0 { (active, passive) } else { (passive, active) };
        rig.ports[side].adopt(link, now)?;
        meet_deadlines(bench, &mut rig, side)?;
    }
    // Connections at rest, which their owners slept on, and one that was closed.
    let (mut rig, mut duo) = bench.open()?;
    bench.exchange(&mut rig, &mut duo, 1)?;
    for side in 0..2 {
        fall_asleep(bench, &mut rig, side)?;
        rig.ports[side].disarm();
        meet_deadlines(bench, &mut rig, side)?;
    }
    let now = bench.now();
    rig.ports[1].close(duo.ids[1], CloseReason::Local, now);
    meet_deadlines(bench, &mut rig, 1)?;
    bench.closed(&mut rig, 0, duo.ids[0])?;
    meet_deadlines(bench, &mut rig, 0)
}
