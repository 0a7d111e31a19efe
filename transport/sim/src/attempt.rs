//! The scripted CM: a connection from the request to both grants, and its orderly end.

use std::{sync::Arc, time::Duration};

use super::{
    config::{FaultKind, SimDevice, Step},
    conn::{Conn, End, Inbound, Life, Side, Stage},
    world::{Happening, World},
};
use gimmal_transport::{
    AcceptError, CloseReason, ConnId, ConnectError, ConnectOptions, Credit, DataPath, Hello, Negotiated,
    PortConfig, Refusal, RejectReason,
    hello::Feature,
    id::Position,
    pack::join_u64,
    parts::{Label, PROOF_BYTES, Session, Share, admit, request},
};

/// ECONNRESET.
const CONNECTION_RESET: i32 = 104;
/// EHOSTUNREACH.
const HOST_UNREACHABLE: i32 = 113;
/// `IB_CM_REJ_STALE_CONN`.
const STALE_CONNECTION: i32 = 10;
/// `IB_CM_REJ_CONSUMER_DEFINED`.
const CONSUMER_REJECT: i32 = 28;

/// The hello of an end.
pub(super) fn hello(device: &SimDevice, config: &PortConfig, nonce: u128) -> Hello {
    let shared = &config.shared;
    let (ring_bytes, slot_bytes, arrivals) = if device.common > 0 {
        (shared.ring_bytes(), shared.slot_bytes, shared.arrivals())
    } else {
        (config.ring_bytes, config.slot_bytes, config.arrivals)
    };
    Hello {
        features: Feature::default()
            .and(Feature::RING, device.path == DataPath::Ring)
            .and(Feature::ATTENDED, config.attended)
            .and(Feature::SHARED, device.common > 0)
            .and(Feature::NUMBERED, true)
            .and(Feature::CHECKSUM, config.checksum),
        ring_bytes,
        slot_bytes,
        arrivals,
        responder_resources: config.responder_resources.min(device.responder_resources),
        initiator_depth: config.initiator_depth.min(device.initiator_depth),
        lane: 0,
        service: 0,
        nonce,
    }
}

const fn grant_label(from: Side) -> Label {
    if from == 0 { Label::ActiveGrant } else { Label::PassiveGrant }
}

impl World {
    /// Starts an attempt from a port; `private_data` stands in for the hello.
    pub(super) fn start_attempt(
        &mut self,
        address: String,
        name: String,
        port: u64,
        options: &ConnectOptions,
        private_data: Option<Vec<u8>>,
    ) -> Option<u64> {
        let state = self.ports.get(&port)?;
        let (device, config) = (state.device.clone(), state.config.clone());
        let nonce = u128::from(self.rng.next());
        let mut ours = hello(&device, &config, nonce);
        let said = request(&mut ours, options.key.as_ref());
        let mut active = End::new(device.clone(), config.clone());
        (active.port, active.hello, active.key) = (Some(port), Some(ours), options.key.clone());
        active.handshake_timeout = options.handshake_timeout;
        let mut passive = End::new(device, config);
        passive.gone = true;
        let number = self.connects;
        self.connects += 1;
        let id = self.fresh();
        let conn = Conn {
            number,
            address,
            name,
            private_data: private_data.unwrap_or(said),
            challenge: Vec::new(),
            connect_timeout: options.connect_timeout,
            stage: Stage::Requesting,
            outcome: None,
            silent: false,
            frames: 0,
            completions: 0,
            pieces: 0,
            ends: [active, passive],
        };
        self.conns.insert(id, conn);
        self.log("connect", &[id]);
        if !self.config.real_time {
            self.schedule(self.now.plus(options.connect_timeout), Happening::ConnectDeadline { conn: id });
        }
        match self.fault(id, Step::Resolve) {
            None => self.travel(id, 0, Duration::ZERO, Happening::Request { conn: id }),
            Some(FaultKind::Refuse) => self.fail_attempt(id, |conn, _| ConnectError::Resolve {
                address: conn.address.clone(),
                step: "ADDR_ERROR",
                errno: HOST_UNREACHABLE,
            }),
            Some(kind) => self.strike(id, kind, 0, "connect"),
        }
        Some(id)
    }

    /// Ends a pending attempt with an error made from it and the step it was in.
    pub(super) fn fail_attempt(&mut self, id: u64, error: impl FnOnce(&Conn, &'static str) -> ConnectError) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.outcome.is_some() {
            return;
        }
        let step = match conn.stage {
            Stage::Requesting => "sending the request",
            _ => "waiting for the answer",
        };
        conn.outcome = Some(Err(error(conn, step)));
        conn.stage = Stage::Failed;
        conn.ends[0].life = Life::Closed;
        self.log("refused", &[id]);
        self.changed = true;
    }

    pub(super) fn on_connect_deadline(&mut self, id: u64) {
        if self.conns.get(&id).is_some_and(|conn| conn.outcome.is_none()) {
            self.fail_attempt(id, |conn, step| ConnectError::Timeout {
                address: conn.address.clone(),
                step,
                timeout: conn.connect_timeout,
            });
            self.travel(id, 0, Duration::ZERO, Happening::Goodbye { conn: id, from: 0 });
        }
    }

    pub(super) fn on_request(&mut self, id: u64) {
        let fault = self.fault(id, Step::Request);
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.stage == Stage::Requesting) else {
            return;
        };
        let listener = self.listeners.get_mut(&conn.name);
        let nobody = |conn: &Conn, _| ConnectError::NobodyListens { address: conn.address.clone() };
        match (fault, listener) {
            (Some(FaultKind::Refuse), _) => self.fail_attempt(id, nobody),
            (Some(FaultKind::Reject(reason)), _) => self.refuse(id, reason),
            (Some(FaultKind::Late(by)), _) => {
                self.schedule(self.now.plus(by), Happening::Request { conn: id })
            }
            (Some(FaultKind::Stale), _) => self.fail_attempt(id, |conn, _| ConnectError::Refused {
                address: conn.address.clone(),
                status: STALE_CONNECTION,
                meaning: "stale connection: the peer still holds this queue pair",
            }),
            (Some(FaultKind::Doubled), _) => {
                self.schedule(self.now, Happening::Request { conn: id });
                self.travel(id, 0, Duration::ZERO, Happening::Request { conn: id });
            }
            (Some(kind), _) => self.strike(id, kind, 0, "connect"),
            (None, None) => self.fail_attempt(id, nobody),
            (None, Some(listener)) => match admit(&conn.private_data, &listener.options.keys) {
                Err(reason) => {
                    listener.rejected.note(reason, || "simulated".to_owned());
                    self.refuse(id, reason);
                }
                Ok(_) if listener.waiting.len() >= usize::from(listener.options.backlog) => {
                    listener.rejected.note(RejectReason::Overloaded, || "simulated".to_owned());
                    self.refuse(id, RejectReason::Overloaded);
                }
                Ok((theirs, key)) => {
                    conn.stage = Stage::Waiting;
                    conn.ends[1].key = key.cloned();
                    conn.ends[0].hello = Some(theirs);
                    conn.ends[1].gone = false;
                    conn.ends[1].handshake_timeout = listener.options.handshake_timeout;
                    listener.waiting.push_back(id);
                    self.changed = true;
                }
            },
        }
    }

    /// The passive side says no; the answer travels as the reject's private data does.
    pub(super) fn refuse(&mut self, id: u64, refusal: impl Into<Refusal>) {
        let refusal = refusal.into();
        let read = Refusal::decode(&refusal.encode()).unwrap_or(refusal);
        self.travel(id, 1, Duration::ZERO, Happening::Refusal { conn: id, refusal: read });
    }

    pub(super) fn on_refusal(&mut self, id: u64, refusal: Refusal) {
        self.fail_attempt(id, |conn, _| ConnectError::Rejected {
            address: conn.address.clone(),
            reason: refusal.reason(),
            data: refusal.into_data(),
        });
    }

    /// Accepts onto a port: receives are posted, the answer leaves.
    pub(super) fn accept(&mut self, id: u64, port: u64) -> Result<(), AcceptError> {
        let gone = Err(AcceptError::Gone { errno: CONNECTION_RESET });
        if let Err(error) = self.setup("rdma_create_qp").and_then(|()| self.setup("ibv_reg_mr of the rings"))
        {
            self.refuse(id, RejectReason::Overloaded);
            return Err(error.into());
        }
        let Some(state) = self.ports.get(&port) else { return gone };
        let (device, config) = (state.device.clone(), state.config.clone());
        let fault = self.fault(id, Step::Accept);
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.stage == Stage::Waiting) else {
            return gone;
        };
        match fault {
            Some(FaultKind::Refuse) => {
                let meaning = "consumer reject without data: the accept failed";
                self.fail_attempt(id, |conn, _| ConnectError::Refused {
                    address: conn.address.clone(),
                    status: CONSUMER_REJECT,
                    meaning,
                });
                return gone;
            }
            Some(FaultKind::Silent) => conn.silent = true,
            Some(kind) => {
                self.strike(id, kind, 0, "accept");
                return gone;
            }
            None => {}
        }
        let keyed = self.conns.get(&id).is_some_and(|conn| conn.ends[1].key.is_some());
        let drawn = if keyed { [self.rng.next(), self.rng.next()] } else { [0; 2] };
        let Some(conn) = self.conns.get_mut(&id) else { return gone };
        let Some(theirs) = conn.ends[0].hello else { return gone };
        let mut ours = hello(&device, &config, theirs.nonce);
        ours.features = ours.features.and(Feature::KEYED, keyed);
        let nonce = join_u64(drawn[1], drawn[0]);
        let session =
            conn.ends[1].key.as_ref().map(|key| Session::passive(key, &theirs, &ours, nonce.to_le_bytes()));
        conn.challenge = session.as_ref().map(|session| session.challenge().to_vec()).unwrap_or_default();
        let settled = Negotiated::settle("sim", &device.capabilities(), &config, &ours, &theirs);
        let negotiated = match settled {
            Ok(negotiated) => negotiated,
            Err(reason) => {
                self.refuse(id, reason);
                return Err(AcceptError::Rejected(reason));
            }
        };
        let end = &mut conn.ends[1];
        (end.device, end.config, end.port, end.hello) = (device, config, Some(port), Some(ours));
        end.session = session;
        conn.stage = Stage::Replying;
        let number = conn.number;
        self.link(id, 1, negotiated, format!("connection {number}"));
        self.travel(id, 1, Duration::ZERO, Happening::Reply { conn: id });
        Ok(())
    }

    pub(super) fn on_reply(&mut self, id: u64) {
        let fault = self.fault(id, Step::Reply);
        if let Some(FaultKind::Late(by)) = fault {
            return self.schedule(self.now.plus(by), Happening::Reply { conn: id });
        }
        if let Some(kind) = fault.filter(|kind| *kind != FaultKind::Forged) {
            return self.strike(id, kind, 1, "accept");
        }
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.outcome.is_none()) else { return };
        let (Some(ours), Some(theirs)) = (conn.ends[0].hello, conn.ends[1].hello) else { return };
        if let (Some(_), Some(byte)) = (fault, conn.challenge.last_mut()) {
            *byte ^= 1;
        }
        if let Some(key) = &conn.ends[0].key {
            let session = Session::active(key, &ours, &theirs, &conn.challenge);
            if session.is_none() {
                let unproven = |conn: &Conn, _| ConnectError::Unproven { address: conn.address.clone() };
                self.fail_attempt(id, unproven);
                return self.travel(id, 0, Duration::ZERO, Happening::Goodbye { conn: id, from: 0 });
            }
            conn.ends[0].session = session;
        }
        let end = &conn.ends[0];
        let settled = Negotiated::settle("sim", &end.device.capabilities(), &end.config, &ours, &theirs);
        match settled {
            Ok(negotiated) => {
                conn.stage = Stage::Established;
                conn.outcome = Some(Ok(()));
                let peer = conn.address.clone();
                self.link(id, 0, negotiated, peer);
                self.changed = true;
            }
            Err(reason) => {
                self.fail_attempt(id, |conn, _| ConnectError::Foreign {
                    address: conn.address.clone(),
                    reason,
                });
                self.travel(id, 0, Duration::ZERO, Happening::Goodbye { conn: id, from: 0 });
            }
        }
    }

    /// The connection stands at this end, and its memory is there.
    fn link(&mut self, id: u64, side: Side, mut negotiated: Negotiated, peer: String) {
        let first = Position(self.config.first_position);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        (negotiated.device, negotiated.peer) = ("sim0".to_owned(), peer);
        end.life = Life::Linked;
        end.rx.ring = vec![0; negotiated.rx_ring_bytes as usize];
        (end.rx.posted, end.rx.arrivals) = (negotiated.rx_arrivals.into(), negotiated.rx_arrivals.into());
        let most = end.config.shared.most - end.config.shared.guaranteed;
        end.rx.share = negotiated.rx_shared.then(|| Share::new(negotiated.rx_arrivals, most.into()));
        end.peer_credit = Credit { bytes: first, arrivals: negotiated.tx_arrivals.into() };
        (end.rx.released, end.rx.read, end.tx.completed) = (first.0, first, first.0);
        end.negotiated = Some(Arc::new(negotiated));
    }

    pub(super) fn on_handshake_deadline(&mut self, id: u64, side: Side) {
        if self.conns.get(&id).is_some_and(|conn| conn.ends[side].life == Life::Linked) {
            self.close_end(id, side, CloseReason::Handshake);
            self.travel(id, side, Duration::ZERO, Happening::Goodbye { conn: id, from: side });
        }
    }

    /// A port took the link over: the active side speaks first.
    pub(super) fn adopted(&mut self, id: u64, side: Side, conn_id: ConnId, port: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.ends[side].id = Some(conn_id);
        // The handshake's clock runs from here: only now is it sure what time it is.
        let at = self.now.plus(conn.ends[side].handshake_timeout);
        self.schedule(at, Happening::HandshakeDeadline { conn: id, side });
        if let Some(port) = self.ports.get_mut(&port) {
            port.conns.insert(conn_id, (id, side));
        }
        self.offer_inbox(id, side);
        if side == 0 {
            self.grant(id, 0);
        } else {
            self.open(id, 1);
        }
    }

    /// An end's grant leaves, with its proof where there is a key.
    fn grant(&mut self, id: u64, from: Side) {
        let session = self.conns.get(&id).and_then(|conn| conn.ends[from].session.as_ref());
        let proof = session.map(|session| session.prove(grant_label(from), &[]));
        self.travel(id, from, Duration::ZERO, Happening::Grant { conn: id, from, proof });
    }

    pub(super) fn on_grant(&mut self, id: u64, from: Side, proof: Option<[u8; PROOF_BYTES]>) {
        let step = Step::Grant(if from == 0 { 1 } else { 2 });
        let fault = self.fault(id, step);
        if let Some(kind) = fault.filter(|kind| *kind != FaultKind::Forged) {
            return self.strike(id, kind, from, "grant");
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let to = 1 - from;
        let end = &mut conn.ends[to];
        let proof = proof.filter(|_| fault.is_none()).unwrap_or_default();
        let is_proved =
            |session: &Session| end.life != Life::Linked || session.is_proved(grant_label(from), &[], &proof);
        if end.session.as_ref().is_none_or(is_proved) {
            end.granted = true;
            self.open(id, to);
        } else {
            self.hang_up(id, to, CloseReason::Authentication);
        }
    }

    /// Opens an end that is adopted and has the peer's grant; the passive side answers with its own.
    fn open(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = &mut conn.ends[side];
        if end.life != Life::Linked || !end.granted || end.id.is_none() {
            return;
        }
        let Some(negotiated) = end.negotiated.clone() else { return };
        end.life = Life::Open;
        self.log("open", &[id, side as u64]);
        if side == 1 {
            self.grant(id, 1);
        }
        self.put(id, side, Inbound::Opened(negotiated));
    }

    /// This side ends the connection, and the other one hears of it behind everything sent before.
    pub(super) fn hang_up(&mut self, id: u64, side: Side, reason: CloseReason) {
        let living = |conn: &Conn| matches!(conn.ends[side].life, Life::Linked | Life::Open);
        if self.conns.get(&id).is_some_and(living) {
            self.close_end(id, side, reason);
            self.travel(id, side, Duration::ZERO, Happening::Goodbye { conn: id, from: side });
        }
    }

    pub(super) fn on_goodbye(&mut self, id: u64, from: Side) {
        if let Some(kind) = self.fault(id, Step::Closing) {
            return self.strike(id, kind, from, "close");
        }
        self.close_end(id, 1 - from, CloseReason::Peer);
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.stage == Stage::Waiting
        {
            conn.stage = Stage::Failed;
        }
        self.fail_attempt(id, |conn, step| ConnectError::Event {
            address: conn.address.clone(),
            event: "RDMA_CM_EVENT_DISCONNECTED",
            status: 0,
            step,
        });
    }

    /// A port is gone without a word: its peers see it die.
    pub(super) fn port_dropped(&mut self, port: u64) {
        self.ports.remove(&port);
        let mine: Vec<(u64, Side)> = self
            .conns
            .iter()
            .flat_map(|(id, conn)| (0..2).map(move |side| (*id, side, &conn.ends[side])))
            .filter(|(_, _, end)| end.port == Some(port) && end.id.is_some())
            .map(|(id, side, _)| (id, side))
            .collect();
        for (id, side) in mine {
            // Nothing is heard on a silent one, not even a death.
            if self.conns.get(&id).is_some_and(|conn| !conn.silent) {
                self.close_end(id, 1 - side, CloseReason::PeerGone { how: "its port was dropped" });
            }
            self.leave(id, side);
        }
    }
}
