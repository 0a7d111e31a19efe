//! The handshake of a shared key, as data: both sides prove that they have it before either discloses an address.
//!
//! ```text
//!  active                                                          passive
//!  hello ‖ tag 16 ─────────────────────────► strangers are refused here, before anything is made
//!  checked ◄──────── hello ‖ nonce 16 ‖ proof 32
//!  grant ‖ proof 32 ───────────────────────► checked
//!  checked ◄────────────────── grant ‖ proof 32
//! ```
//!
//! The tag covers the hello alone, so it can be replayed, and only keeps strangers out cheaply. Each proof covers
//! who gives it, both hellos, both sides' fresh randomness, and the grant that it comes with: a recorded one proves
//! nothing, nor does one's own sent back. On shm the segments take the grants' place, and on TCP a record.
//! On both the passive side's nonce and proof and the active side's proof go before them, as messages of their own.

use crate::{
    Hello, Key, PortError, RejectReason,
    hello::{ACCEPT_PRIVATE_BYTES, CONNECT_PRIVATE_BYTES, Feature, HELLO_BYTES},
    kernel,
};

/// Bytes of a request's tag.
const TAG_BYTES: usize = 16;
/// Bytes of the passive side's randomness.
pub const NONCE_BYTES: usize = 16;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// What stands behind the passive side's hello.
pub const CHALLENGE_BYTES: usize = NONCE_BYTES + PROOF_BYTES;

/// What stands before the passive side's nonce and proof where they travel as a message of their own.
pub(crate) const CHALLENGE_MARK: [u8; 8] = *b"gmchall1";
/// What stands before the active side's proof there.
pub(crate) const PROOF_MARK: [u8; 8] = *b"gmproof1";

/// Bytes of a request with a key.
pub(crate) const REQUEST_BYTES: usize = HELLO_BYTES + TAG_BYTES;

const _: () = assert!(REQUEST_BYTES <= CONNECT_PRIVATE_BYTES);
const _: () = assert!(HELLO_BYTES + CHALLENGE_BYTES <= ACCEPT_PRIVATE_BYTES);

/// The prover and the subject of a proof, so that no proof can replace another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Label {
    /// The tag of a request.
    Request,
    /// What the passive side adds to its hello.
    Passive,
    /// The active side's grant.
    ActiveGrant,
    /// The passive side's grant.
    PassiveGrant,
}

impl Label {
    const fn bytes(self) -> &'static [u8; 8] {
        match self {
            Self::Request => b"request.",
            Self::Passive => b"passive.",
            Self::ActiveGrant => b"activegr",
            Self::PassiveGrant => b"passivgr",
        }
    }
}

/// Fresh randomness.
///
/// # Errors
/// The kernel gives none.
pub fn random<const N: usize>() -> Result<[u8; N], PortError> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        at += kernel::random(&mut bytes[at..]).map_err(kernel::system("getrandom"))?;
    }
    Ok(bytes)
}

/// What the active side says first; its hello is marked if it has a key.
pub fn request(hello: &mut Hello, key: Option<&Key>) -> Vec<u8> {
    hello.features = hello.features.and(Feature::KEYED, key.is_some());
    let mut out = hello.encode().to_vec();
    if let Some(key) = key {
        let tag = key.hash(&[Label::Request.bytes(), &out]);
        out.extend_from_slice(&tag.as_bytes()[..TAG_BYTES]);
    }
    out
}

/// Reads a request, as a side that believes `keys`: the hello, and the key that it was tagged with.
///
/// # Errors
/// What the client is told; nothing was made for it.
pub fn admit<'k>(request: &[u8], keys: &'k [Key]) -> Result<(Hello, Option<&'k Key>), RejectReason> {
    let hello = Hello::decode_behind(request)?;
    match (keys.is_empty(), hello.features.has(Feature::KEYED)) {
        (true, false) => return Ok((hello, None)),
        (true, true) => return Err(RejectReason::KeyUnknown),
        (false, false) => return Err(RejectReason::KeyNeeded),
        (false, true) => {}
    }
    // With a tag there is no room for a resolver's bytes before it.
    let tag = request.get(HELLO_BYTES..HELLO_BYTES + TAG_BYTES).ok_or(RejectReason::Authentication)?;
    let hello = Hello::decode(request)?;
    let mut found = None;
    for key in keys {
        let right = key.hash(&[Label::Request.bytes(), &request[..HELLO_BYTES]]);
        if constant_time_eq::constant_time_eq(&right.as_bytes()[..TAG_BYTES], tag) {
            found = Some(key);
        }
    }
    found.map(|key| (hello, Some(key))).ok_or(RejectReason::Authentication)
}

/// One handshake with a key: what both sides have said, in order.
#[derive(Clone, Debug)]
pub struct Session {
    key: Key,
    hellos: [[u8; HELLO_BYTES]; 2],
    nonce: [u8; NONCE_BYTES],
}

impl Session {
    /// The passive side's, with fresh randomness.
    pub fn passive(key: &Key, active: &Hello, passive: &Hello, nonce: [u8; NONCE_BYTES]) -> Self {
        Self { key: key.clone(), hellos: [active.encode(), passive.encode()], nonce }
    }

    /// The active side's; `None` if the challenge does not prove that the other has the key.
    pub fn active(key: &Key, active: &Hello, passive: &Hello, challenge: &[u8]) -> Option<Self> {
        let (nonce, proof) = challenge.get(..CHALLENGE_BYTES)?.split_at(NONCE_BYTES);
        let session = Self::passive(key, active, passive, nonce.try_into().ok()?);
        session.is_proved(Label::Passive, &[], proof).then_some(session)
    }

    /// What the passive side adds to its hello.
    pub fn challenge(&self) -> [u8; CHALLENGE_BYTES] {
        let mut out = [0; CHALLENGE_BYTES];
        out[..NONCE_BYTES].copy_from_slice(&self.nonce);
        out[NONCE_BYTES..].copy_from_slice(&self.prove(Label::Passive, &[]));
        out
    }

    /// Proof of the key and of `message`.
    pub fn prove(&self, label: Label, message: &[u8]) -> [u8; PROOF_BYTES] {
        *self.hash(label, message).as_bytes()
    }

    /// Whether `proof` is that of a side that has the key.
    pub fn is_proved(&self, label: Label, message: &[u8], proof: &[u8]) -> bool {
        // blake3 compares hashes in constant time.
        <[u8; PROOF_BYTES]>::try_from(proof).is_ok_and(|proof| self.hash(label, message) == proof)
    }

    fn hash(&self, label: Label, message: &[u8]) -> blake3::Hash {
        self.key.hash(&[label.bytes(), &self.hellos[0], &self.hellos[1], &self.nonce, message])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 32]).unwrap()
    }

    fn hello(nonce: u128) -> Hello {
        Hello {
            features: Feature::RING,
            ring_bytes: 1 << 18,
            slot_bytes: 1 << 14,
            arrivals: 64,
            responder_resources: 16,
            initiator_depth: 16,
            lane: 0,
            service: 0,
            nonce,
        }
    }

    #[test]
    fn both_sides_prove_the_key_and_their_grants() {
        let (mut client, server) = (hello(7), hello(7));
        let keys = [key(9), key(1)];
        let said = request(&mut client, Some(&keys[1]));
        let mut padded = said.clone();
        padded.resize(CONNECT_PRIVATE_BYTES, 0);
        let (heard, found) = admit(&padded, &keys).unwrap();
        assert_eq!((heard, found), (client, Some(&keys[1])));
        let passive = Session::passive(&keys[1], &heard, &server, random().unwrap());
        let active = Session::active(&keys[1], &client, &server, &passive.challenge()).unwrap();
        let grant = active.prove(Label::ActiveGrant, b"grant");
        assert!(passive.is_proved(Label::ActiveGrant, b"grant", &grant));
        // Not another grant, not the other side's, not cut.
        assert!(!passive.is_proved(Label::ActiveGrant, b"grunt", &grant));
        assert!(!active.is_proved(Label::PassiveGrant, b"grant", &grant));
        assert!(!passive.is_proved(Label::ActiveGrant, b"grant", &grant[..31]));
    }

    #[test]
    fn strangers_are_told_why() {
        let keys = [key(1)];
        let mut client = hello(7);
        assert_eq!(admit(&request(&mut client, None), &keys), Err(RejectReason::KeyNeeded));
        assert_eq!(admit(&request(&mut client, Some(&keys[0])), &[]), Err(RejectReason::KeyUnknown));
        assert_eq!(admit(&request(&mut client, Some(&key(2))), &keys), Err(RejectReason::Authentication));
        let good = request(&mut client, Some(&keys[0]));
        for len in 0..good.len() {
            assert!(admit(&good[..len], &keys).is_err(), "{len} bytes of it");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(admit(&bad, &keys).is_err(), "byte {at} changed");
        }
        // Behind a resolver's bytes there is no room for a tag.
        let mut behind = vec![0; 16];
        behind.extend_from_slice(&good[..40]);
        assert!(admit(&behind, &keys).is_err());
    }

    /// What was recorded proves nothing to a listener that draws anew, and what a server says is no client's proof.
    #[test]
    fn recorded_and_reflected_proofs_prove_nothing() {
        let key = key(1);
        let (client, server) = (hello(7), hello(7));
        let first = Session::passive(&key, &client, &server, [1; NONCE_BYTES]);
        let recorded = first.prove(Label::ActiveGrant, b"grant");
        let second = Session::passive(&key, &client, &server, [2; NONCE_BYTES]);
        assert!(!second.is_proved(Label::ActiveGrant, b"grant", &recorded));
        let challenge = second.challenge();
        assert!(!second.is_proved(Label::ActiveGrant, &[], &challenge[NONCE_BYTES..]));
        // A server that records an answer cannot give it to another client.
        assert!(Session::active(&key, &hello(8), &server, &challenge).is_none());
        assert!(Session::active(&key, &client, &server, &challenge).is_some());
        assert!(Session::active(&key, &client, &server, &challenge[..47]).is_none());
    }
}
