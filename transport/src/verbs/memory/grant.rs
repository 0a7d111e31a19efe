//! The grant: the first message each way, which lets the peer write, and look at our pulse.
//!
//! ```text
//!  0 magic "gmgr" │ 4 ring_bytes u32 │ 8 ring address u64 │ 16 rkey u32 │ 20 rkey of the pulse u32     (little endian)
//! 24 address of the pulse u64 │ 32 proof of the shared key, over the 32 bytes before it; only where there is one
//! ```
//!
//! The active side sends its own as soon as the connection stands; the passive side posts nothing before it
//! has arrived. iWARP demands that, and on rxe a SEND right after the accept was seen to be lost.
//! On the send/recv path address and key of the ring are 0. The pulse is 8 bytes that the peer may READ.

use std::sync::Arc;

use gimmal_rdma::verbs::{LocalBytes, Mr, Pd, RemoteBytes};

use crate::{
    CloseReason, PortError, Violation,
    kernel::system_io,
    mem::Region,
    pack::join,
    proof::{Label, PROOF_BYTES, Session},
    verbs::memory::purpose::Purpose,
};

/// Bytes of a grant.
pub(crate) const GRANT_BYTES: usize = 32;
/// With a proof.
pub(crate) const GRANT_BYTES_MAX: usize = GRANT_BYTES + PROOF_BYTES;
const MAGIC: [u8; 4] = *b"gmgr";
#[expect(clippy::cast_possible_truncation, reason = "32")]
const GRANT_BYTES_U32: u32 = GRANT_BYTES as u32;
#[expect(clippy::cast_possible_truncation, reason = "64")]
const GRANT_BYTES_MAX_U32: u32 = GRANT_BYTES_MAX as u32;

const PAGE_BYTES: usize = 4096;
/// A seat's part of a page: the grant that arrives, and half-way the one that leaves.
const PLACES_BYTES: usize = 128;
const _: () = assert!(GRANT_BYTES_MAX <= PLACES_BYTES / 2);
/// Seats whose places are in one page.
const SEATS: u32 = 32;
const _: () = assert!(SEATS as usize * PLACES_BYTES == PAGE_BYTES);

/// What one side grants the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) ring_bytes: u32,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
    /// Where its process has a word that moves on.
    pub(crate) pulse: RemoteBytes,
}

fn label(from_active: bool) -> Label {
    if from_active { Label::ActiveGrant } else { Label::PassiveGrant }
}

impl Grant {
    /// As it leaves, and how many bytes of it.
    pub(crate) fn seal(&self, session: Option<&Session>, active: bool) -> ([u8; GRANT_BYTES_MAX], u32) {
        let (plain, mut out) = (self.encode(), [0; GRANT_BYTES_MAX]);
        out[..GRANT_BYTES].copy_from_slice(&plain);
        let Some(session) = session else { return (out, GRANT_BYTES_U32) };
        out[GRANT_BYTES..].copy_from_slice(&session.prove(label(active), &plain));
        (out, GRANT_BYTES_MAX_U32)
    }

    /// Reads what the peer sent: the proof first, where there is a key.
    pub(crate) fn open(
        bytes: &[u8],
        ring_bytes: u32,
        session: Option<&Session>,
        from_active: bool,
    ) -> Result<Self, CloseReason> {
        let mut plain = bytes;
        if let Some(session) = session {
            let split = bytes.split_at_checked(GRANT_BYTES).ok_or(CloseReason::Authentication)?;
            if !session.is_proved(label(from_active), split.0, split.1) {
                return Err(CloseReason::Authentication);
            }
            plain = split.0;
        }
        Ok(Self::decode(plain, ring_bytes)?)
    }

    pub(crate) fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut out = [0; GRANT_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.ring_bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.address.to_le_bytes());
        out[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        out[20..24].copy_from_slice(&self.pulse.rkey.to_le_bytes());
        out[24..32].copy_from_slice(&self.pulse.address.to_le_bytes());
        out
    }

    /// Reads what the peer sent: `ring_bytes` must be what its hello said.
    pub(crate) fn decode(bytes: &[u8], ring_bytes: u32) -> Result<Self, Violation> {
        let malformed = Violation::Malformed { what: "grant" };
        let bytes: &[u8; GRANT_BYTES] = bytes.try_into().map_err(|_| malformed)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let pulse = RemoteBytes { address: join(word(24), word(28)), rkey: word(20) };
        let grant = Self { ring_bytes: word(4), address: join(word(8), word(12)), rkey: word(16), pulse };
        // Positions are added to the address: the whole double ring must lie below 2^64.
        let end = grant.address.checked_add(2 * u64::from(ring_bytes));
        if bytes[0..4] != MAGIC || grant.ring_bytes != ring_bytes || end.is_none() {
            return Err(malformed);
        }
        Ok(grant)
    }

    pub(crate) fn remote(&self) -> RemoteBytes {
        RemoteBytes { address: self.address, rkey: self.rkey }
    }
}

/// Registered memory for the grants of some seats, kept as long as its device is used.
#[derive(Debug)]
pub(crate) struct GrantPage {
    /// Gone before the memory.
    registration: Mr,
    region: Region,
}

impl GrantPage {
    fn new(pd: &Arc<Pd>) -> Result<Self, PortError> {
        let region = Region::anonymous(PAGE_BYTES).map_err(|error| system_io("mmap", &error))?;
        Ok(Self { registration: Mr::new(pd, &region, Purpose::Local.rights())?, region })
    }
}

/// The pages that seats have used so far.
#[derive(Debug, Default)]
pub(crate) struct GrantPages(Vec<Option<Arc<GrantPage>>>);

impl GrantPages {
    /// The places of the seat `index`.
    pub(crate) fn places(&mut self, pd: &Arc<Pd>, index: u32) -> Result<GrantPlaces, PortError> {
        let (page, at) = ((index / SEATS) as usize, (index % SEATS) as usize * PLACES_BYTES);
        if self.0.len() <= page {
            self.0.resize(page + 1, None);
        }
        let slot = &mut self.0[page];
        let page = match slot {
            Some(page) => Arc::clone(page),
            None => Arc::clone(slot.insert(Arc::new(GrantPage::new(pd)?))),
        };
        Ok(GrantPlaces { page, at })
    }
}

/// Where the two grants of a connection lie. Its seat's alone, which is taken until the queue pair is gone.
#[derive(Debug)]
pub(crate) struct GrantPlaces {
    page: Arc<GrantPage>,
    at: usize,
}

impl GrantPlaces {
    pub(crate) fn incoming(&self) -> LocalBytes {
        self.local(self.at, GRANT_BYTES_MAX_U32)
    }

    fn local(&self, at: usize, bytes: u32) -> LocalBytes {
        // SAFETY: the page is registered as long as the place is taken, which is until the queue pair is gone; each of its
        // two halves is posted once, and read or written only apart from that.
        unsafe { LocalBytes::of(&self.page.region, at, bytes, self.page.registration.lkey()) }
    }

    /// What arrived; called once, after its completion.
    pub(crate) fn read(&self, bytes: u32) -> Vec<u8> {
        let bytes = (bytes as usize).min(GRANT_BYTES_MAX);
        let from = self.page.region.at(self.at, bytes);
        // SAFETY: inside the page; the one receive that the device had for this place has completed.
        unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) }.to_vec()
    }

    /// Puts our grant, of which `bytes` go, where the device fetches it; called once, before the post.
    pub(crate) fn write(&self, grant: &[u8; GRANT_BYTES_MAX], bytes: u32) -> LocalBytes {
        let at = self.at + PLACES_BYTES / 2;
        let to = self.page.region.at(at, GRANT_BYTES_MAX);
        // SAFETY: inside the page, apart from where the other grant arrives; no work names this place yet.
        unsafe { to.cast::<[u8; GRANT_BYTES_MAX]>().write_unaligned(*grant) };
        self.local(at, bytes.min(GRANT_BYTES_MAX_U32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PULSE: RemoteBytes = RemoteBytes { address: 8192, rkey: 2 };

    #[test]
    fn golden_grant() {
        let pulse = RemoteBytes { address: 0x7f01_0203_0405_0000, rkey: 0x1122_3344 };
        let grant =
            Grant { ring_bytes: 0x0004_0000, address: 0x7f00_1234_5678_9000, rkey: 0xaabb_ccdd, pulse };
        let golden = [
            b'g', b'm', b'g', b'r', 0, 0, 4, 0, 0, 0x90, 0x78, 0x56, 0x34, 0x12, 0, 0x7f, 0xdd, 0xcc, 0xbb,
            0xaa, 0x44, 0x33, 0x22, 0x11, 0, 0, 5, 4, 3, 2, 1, 0x7f,
        ];
        assert_eq!(grant.encode(), golden);
        assert_eq!(Grant::decode(&golden, 0x0004_0000), Ok(grant));
    }

    #[test]
    fn a_sealed_grant_opens_only_with_its_session_and_from_its_side() {
        let hello = crate::Hello::decode(
            b"gmml\x05\x28\x05\0\0\0\x04\0\0\x40\0\0\x40\0\x10\x10\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        )
        .unwrap();
        let session = |byte| {
            let key = crate::Key::new(&[byte; 32]).unwrap();
            Session::passive(&key, &hello, &hello, [7; 16])
        };
        let (ours, others) = (session(1), session(2));
        let grant = Grant { ring_bytes: 4096, address: 4096, rkey: 1, pulse: PULSE };
        let (bytes, len) = grant.seal(Some(&ours), true);
        assert_eq!(len as usize, GRANT_BYTES_MAX);
        assert_eq!(Grant::open(&bytes, 4096, Some(&ours), true), Ok(grant));
        let refused = Err(CloseReason::Authentication);
        assert_eq!(Grant::open(&bytes, 4096, Some(&others), true), refused);
        assert_eq!(Grant::open(&bytes, 4096, Some(&ours), false), refused, "one's own, sent back");
        assert_eq!(Grant::open(&bytes[..GRANT_BYTES], 4096, Some(&ours), true), refused, "no proof");
        for at in 0..GRANT_BYTES_MAX {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(Grant::open(&bad, 4096, Some(&ours), true), refused, "byte {at}");
        }
        let (bytes, len) = grant.seal(None, true);
        assert_eq!(len as usize, GRANT_BYTES);
        assert_eq!(Grant::open(&bytes[..GRANT_BYTES], 4096, None, true), Ok(grant));
        assert!(Grant::open(&bytes, 4096, None, true).is_err(), "a proof that nobody asked for");
    }

    #[test]
    fn grants_that_cannot_be_true_are_refused() {
        let good = Grant { ring_bytes: 4096, address: 4096, rkey: 1, pulse: PULSE }.encode();
        assert!(Grant::decode(&good, 8192).is_err(), "another size than the hello's");
        assert!(Grant::decode(&good[..GRANT_BYTES - 1], 4096).is_err(), "short");
        assert!(Grant::decode(&[0; GRANT_BYTES], 4096).is_err(), "no magic");
        let high = Grant { ring_bytes: 4096, address: u64::MAX - 100, rkey: 1, pulse: PULSE }.encode();
        assert!(Grant::decode(&high, 4096).is_err(), "a ring beyond the end of memory");
    }
}
