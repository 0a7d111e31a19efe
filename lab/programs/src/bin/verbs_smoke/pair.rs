//! Two ends of a connection in one process, with the credit kept by hand.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use gimmal_transport::{
    Address, Batch, Chain, CloseReason, ConnId, ConnectOptions, Connecting, DataPath, Event, Gate, Incoming,
    Instant, Limit, ListenOptions, Listener, Look, Negotiated, Port, PortConfig, Position, Provider, Refused,
    RxFrame, Staged, Tag, Time, Transfer, Wait,
    frame::span,
    mem::Bulk,
    verbs::{Verbs, VerbsListener, VerbsPort},
};

type Failure = Box<dyn std::error::Error>;

pub(crate) struct Clock(pub(crate) Instant);

impl Clock {
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// One end, with the credit kept by hand.
pub(crate) struct Side {
    pub(crate) port: VerbsPort,
    pub(crate) conn: Option<ConnId>,
    pub(crate) negotiated: Option<Arc<Negotiated>>,
    pub(crate) frames: VecDeque<RxFrame>,
    pub(crate) pulled: Vec<(u64, Result<Bulk, gimmal_transport::BulkError>)>,
    pub(crate) closed: Vec<CloseReason>,
    /// Up to where we released, in order.
    pub(crate) released: Position,
    pub(crate) head: Position,
    pub(crate) chains: u64,
    pub(crate) batch: Batch,
}

impl Side {
    pub(crate) fn new(provider: &Verbs, config: &PortConfig) -> Result<Self, Failure> {
        Ok(Self {
            port: provider.open_port(config)?,
            conn: None,
            negotiated: None,
            frames: VecDeque::new(),
            pulled: Vec::new(),
            closed: Vec::new(),
            released: Position(0),
            head: Position(0),
            chains: 0,
            batch: Batch::new(16),
        })
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn.expect("adopted before it is used")
    }

    pub(crate) fn pump(&mut self, now: Time) {
        while let Look::Run(mut run) = self.port.next_run(Limit::Frames(self.batch.room())) {
            while let Some(lent) = run.next_frame() {
                self.frames.extend(lent.keep());
            }
            self.port.end_run(&mut run, false);
        }
        self.port.poll(now, &mut self.batch);
        for event in self.batch.drain() {
            match event {
                Event::Opened { negotiated, .. } => self.negotiated = Some(negotiated),
                Event::Pulled { token, result, .. } => self.pulled.push((token, result)),
                Event::Closed { reason, .. } => self.closed.push(reason),
                Event::Suspect { .. } | Event::Accessed { .. } => {}
            }
        }
    }

    /// Commits a frame if the peer's credit allows it.
    pub(crate) fn send(
        &mut self,
        peer: &mut Self,
        payload: &[u8],
        tag: u32,
        chain: Chain,
    ) -> Result<bool, Failure> {
        let (conn, theirs) = (self.conn(), peer.conn());
        let negotiated = self.negotiated.clone().expect("open");
        let bytes = span(payload.len()) as u64;
        let ring = u64::from(negotiated.tx_ring_bytes);
        let fits = match negotiated.path {
            DataPath::Ring => self.head.since(peer.released) + bytes <= ring,
            DataPath::SendRecv => true,
        };
        let local = self.head.since(self.port.credit(conn).completed) + bytes <= ring;
        let starts = chain == Chain::Begin;
        if !fits || !local || (starts && self.chains >= peer.port.credit(theirs).arrivals) {
            return Ok(false);
        }
        self.head = match stage(&mut self.port, conn, payload, Tag(tag), chain) {
            Ok(end) => end,
            Err(Refused::Full) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.chains += u64::from(starts);
        Ok(true)
    }

    pub(crate) fn release(&mut self, frame: RxFrame) {
        let end = frame.end();
        let conn = self.conn();
        self.port.release(conn, frame);
        if end > self.released {
            self.released = end;
        }
    }
}

pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seed.wrapping_mul(31).wrapping_add(at) % 251) as u8).collect()
}

pub(crate) fn until(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > limit {
            return Err(format!("{what}: not within {limit:?}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

pub(crate) struct Pair {
    pub(crate) clock: Clock,
    pub(crate) a: Side,
    pub(crate) b: Side,
}

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

impl Pair {
    pub(crate) fn connect(provider: &Verbs, host: &str, config: &PortConfig) -> Result<Self, Failure> {
        Self::connect_to(provider, host, config, &ListenOptions::default())
    }

    /// Connects to a listener with `listen`.
    pub(crate) fn connect_to(
        provider: &Verbs,
        host: &str,
        config: &PortConfig,
        listen: &ListenOptions,
    ) -> Result<Self, Failure> {
        let clock = Clock(Instant::now());
        let a = Side::new(provider, config)?;
        let b = Side::new(provider, config)?;
        let address: Address = format!("rdma://{host}:0").parse()?;
        // Both ends are this thread's: only a machine with other things to do makes one of them late.
        let listen = ListenOptions { handshake_timeout: LIMIT, ..listen.clone() };
        let mut listener = provider.listen(&address, &listen)?;
        let mut pair = Self { clock, a, b };
        let (conn, peer) = pair.link(provider, &mut listener)?;
        (pair.a.conn, pair.b.conn) = (Some(conn), Some(peer));
        until("both grants", LIMIT, || {
            pair.pump();
            if let Some(reason) = pair.a.closed.first().or_else(|| pair.b.closed.first()) {
                return Err(format!("closed while opening: {reason}").into());
            }
            Ok(pair.a.negotiated.is_some() && pair.b.negotiated.is_some())
        })?;
        Ok(pair)
    }

    /// Makes a connection of the two ports, one more if they have some.
    pub(crate) fn link(
        &mut self,
        provider: &Verbs,
        listener: &mut VerbsListener,
    ) -> Result<(ConnId, ConnId), Failure> {
        let (address, ours, theirs) = (listener.address(), self.a.port.gate(), self.b.port.gate());
        let options =
            ConnectOptions { connect_timeout: LIMIT, handshake_timeout: LIMIT, ..ConnectOptions::default() };
        let mut connecting = provider.connect(&address, &ours, &options)?;
        let mut accepted = None;
        let mut linked = None;
        until("connect", LIMIT, || {
            if let Some(incoming) = listener.accept(Duration::ZERO)? {
                accepted = Some(incoming.accept(&theirs)?);
            }
            if let Some(outcome) = connecting.poll(Duration::from_millis(1)) {
                linked = Some(outcome?);
            }
            Ok(linked.is_some() && accepted.is_some())
        })?;
        let now = self.clock.now();
        let conn = self.a.port.adopt(linked.ok_or("not linked")?, now)?;
        Ok((conn, self.b.port.adopt(accepted.ok_or("not accepted")?, now)?))
    }

    pub(crate) fn pump(&mut self) {
        let now = self.clock.now();
        self.a.pump(now);
        self.b.pump(now);
    }

    pub(crate) fn alive(&self) -> Result<(), Failure> {
        match self.a.closed.first().or_else(|| self.b.closed.first()) {
            None => Ok(()),
            Some(reason) => Err(format!("closed: {reason}").into()),
        }
    }

    /// `count` frames there and back, several in a chain, with at most `window` on the way.
    pub(crate) fn echo(
        &mut self,
        count: u32,
        sizes: &[usize],
        window: u32,
        chain_frames: u32,
    ) -> Result<(), Failure> {
        let (mut sent, mut got) = (0, 0);
        let mut echo: VecDeque<RxFrame> = VecDeque::new();
        until("echo", Duration::from_secs(120), || {
            let now = self.clock.now();
            self.alive()?;
            while sent < count && sent - got < window {
                let payload = pattern(sent.into(), sizes[sent as usize % sizes.len()]);
                let negotiated = self.a.negotiated.clone().expect("open");
                let small = span(payload.len()) * chain_frames as usize;
                let extend = sent % chain_frames != 0 && small <= negotiated.chain_bytes_max as usize;
                let chain = if extend { Chain::Extend } else { Chain::Begin };
                if !self.a.send(&mut self.b, &payload, sent, chain)? {
                    break;
                }
                sent += 1;
                if sent % chain_frames == 0 {
                    self.a.port.flush();
                }
            }
            self.a.port.flush();
            self.b.pump(now);
            echo.append(&mut self.b.frames);
            while let Some(frame) = echo.pop_front() {
                if self.b.send(&mut self.a, &frame, frame.tag().0, Chain::Begin)? {
                    self.b.release(frame);
                } else {
                    echo.push_front(frame);
                    break;
                }
            }
            self.b.port.flush();
            self.a.pump(self.clock.now());
            while let Some(frame) = self.a.frames.pop_front() {
                let expected = pattern(got.into(), sizes[got as usize % sizes.len()]);
                if frame.tag() != Tag(got) || *frame != expected[..] {
                    return Err(format!("frame {got} came back changed (tag {:?})", frame.tag()).into());
                }
                self.a.release(frame);
                got += 1;
            }
            Ok(got == count)
        })
    }

    pub(crate) fn bulk(&mut self, sizes: &[usize]) -> Result<(), Failure> {
        let mut loans = Vec::new();
        for (token, &bytes) in sizes.iter().enumerate() {
            let mut loan = self.a.port.gate().allocate(self.a.conn(), bytes)?;
            loan.copy_from_slice(&pattern(token as u64, bytes));
            let offer = self.a.port.offer(self.a.conn(), &loan)?;
            if let Some(result) = self.b.port.pull(self.b.conn(), offer, token as u64)? {
                self.b.pulled.push((token as u64, result));
            }
            loans.push(loan);
        }
        until("bulk", Duration::from_secs(60), || {
            self.pump();
            self.alive()?;
            Ok(self.b.pulled.len() == sizes.len())
        })?;
        for (token, result) in self.b.pulled.drain(..) {
            let index = usize::try_from(token)?;
            if *result? != pattern(token, sizes[index])[..] {
                return Err(format!("bulk {index} of {} bytes came changed", sizes[index]).into());
            }
        }
        Ok(())
    }

    /// Sleeping: nothing is there, then the fd becomes readable by a frame.
    pub(crate) fn sleep_and_wake(&mut self) -> Result<(), Failure> {
        let readable = |port: &VerbsPort, wait_ms: i64| {
            let mut fds =
                [rustix::event::PollFd::from_borrowed_fd(port.wait_fd(), rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: wait_ms / 1000, tv_nsec: wait_ms % 1000 * 1_000_000 };
            rustix::event::poll(&mut fds, Some(&wait)).map(|count| count > 0)
        };
        until("an armed port", LIMIT, || {
            let armed = self.b.port.arm();
            if !armed {
                self.pump();
            }
            Ok(armed)
        })?;
        if readable(&self.b.port, 20)? {
            return Err("an armed port woke for nothing".into());
        }
        if !self.a.send(&mut self.b, b"wake", 77, Chain::Begin)? {
            return Err("no credit for the waking frame".into());
        }
        self.a.port.flush();
        if !readable(&self.b.port, 20_000)? {
            return Err("a frame did not wake the armed port".into());
        }
        self.b.port.disarm();
        until("the waking frame", LIMIT, || {
            self.pump();
            Ok(!self.b.frames.is_empty())
        })?;
        while let Some(frame) = self.b.frames.pop_front() {
            self.b.release(frame);
        }
        // From another thread.
        until("an armed port", LIMIT, || {
            let armed = self.b.port.arm();
            if !armed {
                self.pump();
            }
            Ok(armed)
        })?;
        let waker = self.b.port.waker();
        std::thread::spawn(move || waker.ring());
        if !readable(&self.b.port, 20_000)? {
            return Err("the waker did not wake the armed port".into());
        }
        self.b.port.disarm();
        Ok(())
    }

    /// What was flushed before an orderly close arrives; then both sides say why, once.
    pub(crate) fn close(&mut self) -> Result<(), Failure> {
        let last = self.a.send(&mut self.b, b"last words", 99, Chain::Begin)?;
        self.a.port.flush();
        let (conn, now) = (self.a.conn(), self.clock.now());
        self.a.port.close(conn, CloseReason::Local, now);
        let start = Instant::now();
        until("both closed", LIMIT, || {
            self.pump();
            Ok(!self.a.closed.is_empty() && !self.b.closed.is_empty())
        })?;
        for _ in 0..20 {
            self.pump();
        }
        let words: Vec<u32> = self.b.frames.drain(..).map(|frame| frame.tag().0).collect();
        if last && words != [99] {
            return Err(format!("the last words were lost: {words:?}").into());
        }
        if self.a.closed != [CloseReason::Local] {
            return Err(format!("our side says {:?}", self.a.closed).into());
        }
        if !matches!(self.b.closed[..], [CloseReason::Peer]) {
            return Err(format!("the peer says {:?}", self.b.closed).into());
        }
        println!("    closed on both sides after {:?}", start.elapsed());
        Ok(())
    }
}

/// Stages `payload` as a frame.
pub(crate) fn stage(
    port: &mut VerbsPort,
    conn: ConnId,
    payload: &[u8],
    tag: Tag,
    chain: Chain,
) -> Result<Position, Refused> {
    let end = port.compose(conn, payload.len(), |room| {
        room.copy_from_slice(payload);
        Some(Staged { payload_bytes: payload.len(), tag, chain })
    });
    Ok(end?.expect("it was not given up"))
}
