//! A request to connect, from its hello to the answer.

use std::sync::{Arc, mpsc::SyncSender};

use gimmal_rdma::id::{CmEvent, CmId};

use crate::{
    AcceptError, Hello, Key, ListenOptions, RejectReason,
    hello::{Feature, encode_reject},
    proof::{Session, admit, random},
    rejected::Rejected,
    verbs::control::{
        lane::{Handle, Lane, LinkParts, WireError},
        shared::Shared,
    },
};

/// The listener that a listening id belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    /// The number of the listener.
    pub(crate) ticket: u64,
    pub(crate) requests: SyncSender<Request>,
    pub(crate) rejected: Arc<Rejected>,
    pub(crate) options: ListenOptions,
    /// The port of the `gimmal://` URL that it is a way of.
    pub(crate) service: Option<u16>,
}

/// A request as the listener hands it out.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) handle: Handle,
    pub(crate) hello: Hello,
    pub(crate) peer: String,
}

/// A request until it is accepted.
#[derive(Debug)]
pub(crate) struct Requested {
    pub(crate) hello: Hello,
    /// The shared key whose tag the request carries.
    key: Option<Key>,
    /// What the CM's event allows, already from our point of view.
    responder_resources: u8,
    initiator_depth: u8,
    pub(crate) options: ListenOptions,
    pub(crate) peer: String,
}

impl Requested {
    /// Reads the hello of `event`, by which `id` asks to connect.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn read(event: &CmEvent, id: &CmId, listening: &Listening) -> Result<Self, RejectReason> {
        let options = &listening.options;
        // Before the keys: who looks for another server is not asked for this one's.
        let wanted = Hello::decode_behind(event.private())?.service;
        if wanted != 0 && listening.service != Some(wanted) {
            return Err(RejectReason::OtherService { port: wanted });
        }
        let (hello, key) = admit(event.private(), &options.keys)?;
        Ok(Self {
            hello,
            key: key.cloned(),
            responder_resources: event.responder_resources,
            initiator_depth: event.initiator_depth,
            options: options.clone(),
            peer: id.info().peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string()),
        })
    }

    /// Accepts with `lane`, whose receives are posted before the answer leaves, or refuses.
    ///
    /// # Errors
    /// Why there is no connection, with the lane, which is destroyed in the right order.
    pub(crate) fn answer(
        &self,
        id: &CmId,
        handle: Handle,
        mut lane: Lane,
        shared: &Shared,
    ) -> Result<LinkParts, (Box<Lane>, AcceptError)> {
        let theirs = &self.hello;
        let mut ours = lane.hello(&shared.config, self.options.trust, theirs.nonce);
        ours.features = ours.features.and(Feature::KEYED, self.key.is_some());
        let session = self.key.as_ref().map(|key| Ok(Session::passive(key, theirs, &ours, random()?)));
        let session = session.transpose().map_err(WireError::Port);
        let wired = session.and_then(|session| Ok((lane.wire(shared, &ours, theirs)?, session)));
        let (mut wiring, session) = match wired {
            Ok(wired) => wired,
            Err(error) => {
                let (reason, error) = match error {
                    WireError::Terms(reason) => (reason, AcceptError::Rejected(reason)),
                    WireError::Port(error) => (RejectReason::Overloaded, error.into()),
                };
                let _ = id.reject(&encode_reject(reason));
                return Err((Box::new(lane), error));
            }
        };
        let event = (theirs, self.responder_resources, self.initiator_depth);
        let mut private = ours.encode().to_vec();
        private.extend(session.iter().flat_map(Session::challenge));
        let params = lane.params(&ours, private, Some(event));
        wiring.negotiated.ack_timeout = lane.set_ack_timeout(id, self.options.ack_timeout);
        if let Err(errno) = id.accept(&params) {
            return Err((Box::new(lane), AcceptError::Gone { errno }));
        }
        lane.describe(id, &self.peer, self.options.rnr_timer, &mut wiring.negotiated);
        let handshake_timeout = self.options.handshake_timeout;
        Ok(LinkParts { handle, lane, wiring, active: false, handshake_timeout, session })
    }
}
