//! Clause 4 for owners that sleep in an event loop, which tells once: an edge says that something came since the last one, however
//! much is still there. Whatever came before a sleep is found by polls or by [`Wait::arm`], since nobody tells of it again.

use std::{os::fd::OwnedFd, time::Duration};

use rustix::event::{Timespec, epoll};

use super::{
    bench::{Bench, same},
    bulk::loan,
    case::{ANY, BULK, Case},
    outcome::{Outcome, ensure},
    rig::{Rig, Side, pattern},
};
use gimmal_transport::{
    Batch, Chain, CloseReason, ConnectOptions, Connecting, Incoming, ListenOptions, Port, PortConfig,
    Provider, Tag, Time, Wait, testing::Came,
};

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "event_loop_hears_of_many_frames", needs: ANY, run: many_frames },
        Case { name: "event_loop_hears_of_many_handshakes", needs: ANY, run: many_handshakes },
        Case { name: "event_loop_hears_of_frames_in_turns", needs: ANY, run: in_turns },
        Case { name: "event_loop_hears_of_bulk", needs: BULK, run: bulk },
        Case { name: "event_loop_hears_of_an_end", needs: ANY, run: end },
    ]
}

/// An owner of a port that never polls in vain: it sleeps until it is told.
struct EventLoop {
    side: Side,
    epoll: OwnedFd,
    is_asleep: bool,
    /// Deadlines of the port wake it, too. By them alone a frame would come late, and no case would see it.
    heeds_deadlines: bool,
}

impl EventLoop {
    fn new<P: Provider>(rig: &Rig<P>, side: Side) -> Outcome<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, rig.ports[side].wait_fd(), epoll::EventData::new_u64(0), flags)?;
        Ok(Self { side, epoll, is_asleep: false, heeds_deadlines: false })
    }

    fn both<P: Provider>(rig: &Rig<P>) -> Outcome<[Self; 2]> {
        Ok([Self::new(rig, 0)?, Self::new(rig, 1)?])
    }

    /// Whether an edge came since this was last asked.
    fn is_told(&self) -> Outcome<bool> {
        let mut events = Vec::with_capacity(1);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none))? > 0)
    }

    /// A turn of the loop; frames and events go to the inbox.
    fn turn<P: Provider>(&mut self, rig: &mut Rig<P>, now: Time) -> Outcome {
        if self.is_asleep {
            let is_due = self.heeds_deadlines && rig.ports[self.side].deadline() <= now;
            if !(is_due || self.is_told()?) {
                return Ok(());
            }
            rig.ports[self.side].disarm();
            self.is_asleep = false;
        }
        let came = rig.turn(self.side, now);
        self.is_asleep = came == 0 && rig.ports[self.side].arm();
        Ok(())
    }

    fn fall_asleep<P: Provider>(&mut self, bench: &mut Bench<'_, P>, rig: &mut Rig<P>) -> Outcome {
        bench.wait("sleep", |now| {
            self.turn(rig, now)?;
            Ok(self.is_asleep.then_some(()))
        })
    }

    /// The owner has something to do for its port.
    fn wake<P: Provider>(&mut self, rig: &mut Rig<P>) {
        if std::mem::take(&mut self.is_asleep) {
            rig.ports[self.side].disarm();
        }
    }
}

/// More than any look takes at once.
const MANY: u32 = 150;
/// A handshake waits until all of them have begun, which takes seconds on a busy machine.
const HANDSHAKE: Duration = Duration::from_secs(60);

fn rig_of_many<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome<Rig<P>> {
    let config = PortConfig { connections: MANY, ..bench.harness.config() };
    let mut rig = bench.rig_with([config.clone(), config])?;
    // One poll tells of all that it found.
    rig.batch = Batch::new(2 * MANY as usize);
    Ok(rig)
}

/// One frame on some of many connections at once, after all have been at rest.
fn many_frames<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig_of_many(bench)?;
    let mut duos = (0..MANY).map(|_| bench.connect(&mut rig)).collect::<Outcome<Vec<_>>>()?;
    let mut receiver = EventLoop::new(&rig, 1)?;
    for some in [0..duos.len(), 0..1, 1..2, duos.len() - 1..duos.len(), 1..duos.len()] {
        receiver.wake(&mut rig);
        // Long enough for a port to leave them out of its looks.
        for _ in 0..2000 {
            let now = bench.now();
            rig.poll(now);
        }
        receiver.fall_asleep(bench, &mut rig)?;
        for number in some.clone() {
            let payload = pattern(number, 40);
            duos[number].commit(&mut rig, 0, &payload, Tag(0), Chain::Begin)?.ok_or("no credit")?;
        }
        rig.ports[0].flush();
        for number in some.clone() {
            let (duo, what) = (&mut duos[number], format!("frame of connection {number} of {some:?}"));
            let frame = bench.wait(&what, |now| {
                rig.poll_side(0, now);
                receiver.turn(&mut rig, now)?;
                Ok(rig.take(1, |event| event.conn() == duo.ids[1] && matches!(event, Came::Frame { .. })))
            })?;
            let Came::Frame { frame, .. } = frame else { return Err("no frame".into()) };
            same(&frame, &pattern(number, 40))?;
            duo.release(&mut rig, 1, frame);
        }
    }
    Ok(())
}

/// Many connections open at once.
fn many_handshakes<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let mut rig = rig_of_many(bench)?;
    bench.listen_again(
        &mut rig,
        &ListenOptions { handshake_timeout: HANDSHAKE, ..ListenOptions::default() },
    )?;
    let options = ConnectOptions { handshake_timeout: HANDSHAKE, ..ConnectOptions::default() };
    let gates = [rig.ports[0].gate(), rig.ports[1].gate()];
    let mut owner = EventLoop::new(&rig, 1)?;
    let mut attempts = Vec::new();
    for _ in 0..MANY {
        let mut connecting = rig.providers[0].connect(&rig.address, &gates[0], &options)?;
        let passive = bench.incoming(&mut rig, &mut connecting)?.accept(&gates[1])?;
        let now = bench.now();
        rig.ports[1].adopt(passive, now)?;
        attempts.push(connecting);
    }
    owner.fall_asleep(bench, &mut rig)?;
    for mut connecting in attempts {
        let link = bench.wait("outcome of the connect", |now| {
            rig.poll_side(0, now);
            Ok(connecting.poll(Duration::ZERO).transpose()?)
        })?;
        let now = bench.now();
        rig.ports[0].adopt(link, now)?;
    }
    let mut opened = 0;
    while opened < MANY as usize {
        let before = opened;
        bench.wait("Opened of each of many", |now| {
            rig.poll_side(0, now);
            owner.turn(&mut rig, now)?;
            if let Some(event) = rig.inbox[1].iter().find(|event| matches!(event, Came::Closed { .. })) {
                return Err(format!("waiting for Opened of each: {event:?}").into());
            }
            opened = rig.inbox[1].iter().filter(|event| matches!(event, Came::Opened { .. })).count();
            Ok((opened > before).then_some(()))
        })?;
    }
    Ok(())
}

/// The next wanted event of either side, while both owners sleep when they can.
fn take<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut Rig<P>,
    loops: &mut [EventLoop; 2],
    what: &str,
    want: impl Fn(&Came) -> bool,
) -> Outcome<(Side, Came)> {
    bench.wait(what, |now| {
        for owner in &mut *loops {
            owner.turn(rig, now)?;
        }
        Ok((0..2).find_map(|side| rig.take(side, &want).map(|came| (side, came))))
    })
}

/// Bursts of every length go to and fro.
fn in_turns<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let mut loops = EventLoop::both(&rig)?;
    for round in 0..200 {
        let from = round % 2;
        loops[from].wake(&mut rig);
        let mut sent = 0;
        while sent <= round % 23
            && duo.commit(&mut rig, from, &pattern(sent, 500), Tag(0), Chain::Begin)?.is_some()
        {
            sent += 1;
        }
        ensure!(sent > 0, "no credit in round {round}");
        rig.ports[from].flush();
        for number in 0..sent {
            let what = "frame of a burst";
            let came = take(bench, &mut rig, &mut loops, what, |came| matches!(came, Came::Frame { .. }))?;
            let (side, Came::Frame { frame, .. }) = came else { return Err("no frame".into()) };
            ensure!(side == 1 - from, "its own frame came to side {side}");
            same(&frame, &pattern(number, 500))?;
            duo.release(&mut rig, side, frame);
        }
    }
    Ok(())
}

/// Pulls of several MiB, both ways at once.
fn bulk<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, duo) = bench.open()?;
    let payloads = [pattern(1, 3 << 20), pattern(2, (2 << 20) + 1)];
    let mut loops = EventLoop::both(&rig)?;
    for _ in 0..5 {
        let mut loans = Vec::new();
        for (from, payload) in payloads.iter().enumerate() {
            for owner in &mut loops {
                owner.wake(&mut rig);
            }
            let (loan, offer) = loan(&mut rig, &duo, from, payload)?;
            loans.push(loan);
            rig.pull(1 - from, duo.ids[1 - from], offer, from as u64)?;
        }
        for _ in 0..2 {
            let what = "pulled bulk";
            let came = take(bench, &mut rig, &mut loops, what, |came| matches!(came, Came::Pulled { .. }))?;
            let (side, Came::Pulled { token, result, .. }) = came else { return Err("no bulk".into()) };
            ensure!(token == 1 - side as u64, "side {side} has the bulk of token {token}");
            same(&result?, &payloads[1 - side])?;
        }
        // The peer's pages of a loan may be lent again only when it has heard of the end.
        bench.linger(&mut rig);
        drop(loans);
    }
    Ok(())
}

/// All that credit allows is sent at once, and the connection closed: it arrives, and so does the end.
fn end<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open_with(|_, config| config.ring_bytes = 4 << 20)?;
    let mut loops = EventLoop::both(&rig)?;
    loops[1].fall_asleep(bench, &mut rig)?;
    let mut sent = 0;
    while duo.commit(&mut rig, 0, &pattern(sent, 1000), Tag(0), Chain::Begin)?.is_some() {
        sent += 1;
        rig.ports[0].flush();
    }
    let now = bench.now();
    rig.ports[0].close(duo.ids[0], CloseReason::Local, now);
    for number in 0..sent {
        let what = format!("frame {number} of {sent} before the end");
        let came = take(bench, &mut rig, &mut loops, &what, |came| matches!(came, Came::Frame { .. }))?;
        let (1, Came::Frame { frame, .. }) = came else { return Err("no frame of side 0's".into()) };
        same(&frame, &pattern(number, 1000))?;
        duo.release(&mut rig, 1, frame);
    }
    // A closing has steps that nothing tells of.
    for owner in &mut loops {
        owner.heeds_deadlines = true;
    }
    for _ in 0..2 {
        take(bench, &mut rig, &mut loops, "Closed", |came| matches!(came, Came::Closed { .. }))?;
    }
    Ok(())
}
