//! What every case starts from: rigs, connections, and bounded waits.

use std::{collections::VecDeque, time::Duration};

use super::{
    harness::Harness,
    outcome::{Outcome, ensure},
    patience,
    rig::{Duo, Flow, Rig, Side, pattern},
};
use gimmal_transport::{
    Batch, Bulk, BulkError, Chain, CloseReason, ConnId, ConnectOptions, Connecting, Incoming, ListenOptions,
    Listener, Negotiated, Port, PortConfig, Provider, RxFrame, Tag, Time, testing::Came,
};

pub(super) struct Bench<'a, P: Provider> {
    pub(super) harness: &'a mut dyn Harness<P>,
}

/// Both links of a connection that no port has yet.
pub(super) type Links<P> = [<P as Provider>::Link; 2];

impl<'a, P: Provider> Bench<'a, P> {
    pub(super) fn new(harness: &'a mut dyn Harness<P>) -> Self {
        Self { harness }
    }

    /// One connection, for its terms.
    pub(super) fn probe(harness: &'a mut dyn Harness<P>) -> Outcome<Negotiated> {
        let (_rig, duo) = Self::new(harness).open()?;
        Ok((*duo.terms[0]).clone())
    }

    pub(super) fn now(&mut self) -> Time {
        self.harness.now()
    }

    /// Asks until there is an answer; `what` names it when there is none in time.
    pub(super) fn wait<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(Time) -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        let (start, limit) = (self.harness.now(), self.harness.time_out());
        loop {
            let now = self.harness.now();
            if let Some(answer) = ask(now)? {
                return Ok(answer);
            }
            ensure!(now.since(start) <= limit, "within {limit:?} there was no {what}");
            self.harness.step();
        }
    }

    /// Polls for the quiet time.
    pub(super) fn linger(&mut self, rig: &mut Rig<P>) {
        let (start, limit) = (self.harness.now(), self.harness.quiet_time());
        let mut turns = 0;
        while turns < 20 || self.harness.now().since(start) < limit {
            let now = self.harness.now();
            rig.poll(now);
            self.harness.step();
            turns += 1;
        }
    }

    pub(super) fn rig_with(&mut self, configs: [PortConfig; 2]) -> Outcome<Rig<P>> {
        let providers = [self.harness.provider(0), self.harness.provider(1)];
        let ports = [providers[0].open_port(&configs[0])?, providers[1].open_port(&configs[1])?];
        let listener = providers[1].listen(&self.harness.address(), &patience::listening())?;
        let address = listener.address();
        let inbox = [VecDeque::new(), VecDeque::new()];
        Ok(Rig { providers, ports, listener, address, inbox, batch: Batch::new(16), polls: [0; 2] })
    }

    pub(super) fn rig(&mut self) -> Outcome<Rig<P>> {
        let config = self.harness.config();
        self.rig_with([config.clone(), config])
    }

    /// Listens at another address, with these options.
    pub(super) fn listen_again(&mut self, rig: &mut Rig<P>, options: &ListenOptions) -> Outcome {
        rig.listener = rig.providers[1].listen(&self.harness.address(), options)?;
        rig.address = rig.listener.address();
        Ok(())
    }

    /// The request of an attempt that was begun. Its side has to answer before it is handed out, where keys or TLS are used.
    pub(super) fn incoming(
        &mut self,
        rig: &mut Rig<P>,
        connecting: &mut P::Connecting,
    ) -> Outcome<<P::Listener as Listener>::Incoming> {
        self.wait("connect request", |now| {
            rig.poll(now);
            match connecting.poll(Duration::ZERO) {
                Some(Err(error)) => Err(error.into()),
                Some(Ok(_)) => Err("connected before it was accepted".into()),
                None => Ok(rig.listener.accept(Duration::ZERO)?),
            }
        })
    }

    /// Connects, but adopts neither link.
    pub(super) fn links(&mut self, rig: &mut Rig<P>, options: &ConnectOptions) -> Outcome<Links<P>> {
        let gates = [rig.ports[0].gate(), rig.ports[1].gate()];
        let mut connecting = rig.providers[0].connect(&rig.address, &gates[0], options)?;
        let passive = self.incoming(rig, &mut connecting)?.accept(&gates[1])?;
        let active = self.wait("outcome of the connect", |now| {
            rig.poll(now);
            Ok(connecting.poll(Duration::ZERO).transpose()?)
        })?;
        Ok([active, passive])
    }

    pub(super) fn connect(&mut self, rig: &mut Rig<P>) -> Outcome<Duo> {
        self.connect_with(rig, &patience::connecting())
    }

    pub(super) fn connect_with(&mut self, rig: &mut Rig<P>, options: &ConnectOptions) -> Outcome<Duo> {
        let gates = [rig.ports[0].gate(), rig.ports[1].gate()];
        let mut connecting = rig.providers[0].connect(&rig.address, &gates[0], options)?;
        let incoming = self.incoming(rig, &mut connecting)?;
        let passive = incoming.accept(&gates[1])?;
        let now = self.now();
        let passive = rig.ports[1].adopt(passive, now)?;
        let active = self.wait("outcome of the connect", |now| {
            rig.poll(now);
            Ok(connecting.poll(Duration::ZERO).transpose()?)
        })?;
        let now = self.now();
        let active = rig.ports[0].adopt(active, now)?;
        self.opened(rig, [active, passive])
    }

    /// Both ends of a connection that opens.
    pub(super) fn opened(&mut self, rig: &mut Rig<P>, ids: [ConnId; 2]) -> Outcome<Duo> {
        let mut terms = |side: Side| -> Outcome<_> {
            let event =
                self.event(rig, side, ids[side], "Opened", |event| matches!(event, Came::Opened { .. }))?;
            match event {
                Came::Opened { negotiated, .. } => Ok(negotiated),
                other => Err(format!("{other:?} in place of Opened").into()),
            }
        };
        let terms = [terms(0)?, terms(1)?];
        Ok(Duo { ids, terms, flows: [Flow::default(), Flow::default()] })
    }

    /// A rig with one connection.
    pub(super) fn open(&mut self) -> Outcome<(Rig<P>, Duo)> {
        let mut rig = self.rig()?;
        let duo = self.connect(&mut rig)?;
        Ok((rig, duo))
    }

    pub(super) fn open_with(&mut self, change: impl Fn(usize, &mut PortConfig)) -> Outcome<(Rig<P>, Duo)> {
        let mut configs = [self.harness.config(), self.harness.config()];
        for (side, config) in configs.iter_mut().enumerate() {
            change(side, config);
        }
        let mut rig = self.rig_with(configs)?;
        let duo = self.connect(&mut rig)?;
        Ok((rig, duo))
    }

    /// The next wanted event of a connection; its end in the meantime is a failure.
    pub(super) fn event(
        &mut self,
        rig: &mut Rig<P>,
        side: Side,
        conn: ConnId,
        what: &str,
        want: impl Fn(&Came) -> bool,
    ) -> Outcome<Came> {
        self.wait(what, |now| {
            let found = rig.take(side, |event| event.conn() == conn && want(event));
            if found.is_none() {
                let over = |event: &&Came| event.conn() == conn && matches!(event, Came::Closed { .. });
                if let Some(event) = rig.inbox[side].iter().find(over) {
                    return Err(format!("waiting for {what} at side {side}: {event:?}").into());
                }
                rig.poll(now);
            }
            Ok(found)
        })
    }

    pub(super) fn frame(&mut self, rig: &mut Rig<P>, duo: &Duo, side: Side) -> Outcome<RxFrame> {
        let event =
            self.event(rig, side, duo.ids[side], "frame", |event| matches!(event, Came::Frame { .. }))?;
        match event {
            Came::Frame { frame, .. } => Ok(frame),
            other => Err(format!("{other:?} in place of a frame").into()),
        }
    }

    pub(super) fn pulled(
        &mut self,
        rig: &mut Rig<P>,
        duo: &Duo,
        side: Side,
    ) -> Outcome<(u64, Result<Bulk, BulkError>)> {
        let event = self
            .event(rig, side, duo.ids[side], "pulled bulk", |event| matches!(event, Came::Pulled { .. }))?;
        match event {
            Came::Pulled { token, result, .. } => Ok((token, result)),
            other => Err(format!("{other:?} in place of Pulled").into()),
        }
    }

    /// Returns the one `Closed` of a connection; earlier events stay in the inbox.
    pub(super) fn closed(&mut self, rig: &mut Rig<P>, side: Side, conn: ConnId) -> Outcome<CloseReason> {
        let wanted = |event: &Came| event.conn() == conn && matches!(event, Came::Closed { .. });
        let at = self.wait("Closed", |now| {
            let found = rig.inbox[side].iter().position(wanted);
            if found.is_none() {
                rig.poll(now);
            }
            Ok(found)
        })?;
        let after = rig.inbox[side].iter().skip(at + 1).find(|event| event.conn() == conn);
        ensure!(after.is_none(), "{after:?} came after Closed");
        let event = rig.inbox[side].remove(at).ok_or("no event")?;
        match event {
            Came::Closed { reason, .. } => Ok(reason),
            other => Err(format!("{other:?} in place of Closed").into()),
        }
    }

    /// Commits one chain of one frame and flushes, waiting for credit; what arrives meanwhile stays in the inboxes.
    pub(super) fn send(
        &mut self,
        rig: &mut Rig<P>,
        duo: &mut Duo,
        side: Side,
        payload: &[u8],
        tag: Tag,
    ) -> Outcome {
        self.wait("credit", |now| {
            let done = duo.commit(rig, side, payload, tag, Chain::Begin)?;
            rig.ports[side].flush();
            if done.is_none() {
                rig.poll(now);
            }
            Ok(done)
        })?;
        Ok(())
    }

    /// Receives one frame at `side`, holds it against what was sent, and gives it back.
    pub(super) fn expect(
        &mut self,
        rig: &mut Rig<P>,
        duo: &mut Duo,
        side: Side,
        payload: &[u8],
        tag: Tag,
    ) -> Outcome {
        let frame = self.frame(rig, duo, side)?;
        ensure!(frame.tag() == tag, "tag {:?} in place of {tag:?}", frame.tag());
        same(&frame, payload)?;
        duo.release(rig, side, frame);
        Ok(())
    }

    /// Sends `count` frames of `size(number)` bytes from side 0 as fast as credit allows, and receives them one by
    /// one; flushes after every `run` frames and when no more fit.
    pub(super) fn stream(
        &mut self,
        rig: &mut Rig<P>,
        duo: &mut Duo,
        count: usize,
        run: usize,
        size: impl Fn(usize) -> usize,
    ) -> Outcome {
        let (mut sent, mut got) = (0, 0);
        while got < count {
            while sent < count
                && duo.commit(rig, 0, &pattern(sent, size(sent)), Tag(0), Chain::Begin)?.is_some()
            {
                sent += 1;
                if sent % run == 0 {
                    rig.ports[0].flush();
                }
            }
            rig.ports[0].flush();
            if got < sent {
                self.expect(rig, duo, 1, &pattern(got, size(got)), Tag(0))?;
                got += 1;
            } else {
                // Everything arrived, and its credit is still on its way: one frame waits for that.
                self.send(rig, duo, 0, &pattern(sent, size(sent)), Tag(0))?;
                sent += 1;
            }
            let now = self.now();
            rig.poll_side(0, now);
        }
        Ok(())
    }

    /// One frame each way: the connection is alive.
    pub(super) fn exchange(&mut self, rig: &mut Rig<P>, duo: &mut Duo, seed: usize) -> Outcome {
        for side in 0..2 {
            let payload = pattern(seed + side, 40 + seed % 50);
            self.send(rig, duo, side, &payload, Tag(7))?;
            self.expect(rig, duo, 1 - side, &payload, Tag(7))?;
        }
        Ok(())
    }
}

/// Whether bytes are those that were sent, and where they first differ.
pub(super) fn same(got: &[u8], sent: &[u8]) -> Outcome {
    ensure!(got.len() == sent.len(), "{} bytes arrived of {}", got.len(), sent.len());
    let differ = got.iter().zip(sent).position(|(got, sent)| got != sent);
    ensure!(differ.is_none(), "bytes differ from number {differ:?} on");
    Ok(())
}
