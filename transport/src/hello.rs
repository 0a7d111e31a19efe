//! The hello: 40 bytes in the CM's private data, the same on every provider.
//!
//! ```text
//!  0 magic "gmml" │ 4 version │ 5 length │ 6 features u16 │ 8 ring_bytes u32 │ 12 slot_bytes u32
//! 16 arrivals u16 │ 18 responder_resources │ 19 initiator_depth │ 20 lane │ 21 zero u8 │ 22 service u16
//! 24 nonce u128                                                              (little endian)
//! ```
//!
//! The CM pads private data with zeroes and hides its length, so the hello carries its own. Keys and
//! addresses are not in it: they travel in the grant, after the connection stands.

use crate::{
    RejectReason,
    frame::FRAME_ALIGN,
    pack::{join, join_u16, join_u64},
};

/// Bytes of a hello; with them `ai_connect` data of up to 16 bytes still fits the CM's 56.
pub const HELLO_BYTES: usize = 40;
const HELLO_LEN: u8 = 40;
/// Bytes of a reject's answer.
pub const REJECT_BYTES: usize = 16;
pub(crate) const REJECT_LEN: u8 = 16;
/// Where the code of a refusal lies.
const CODE_AT: usize = 6;
/// Receives that data and control need between them.
const ARRIVALS_MIN: u16 = 4;
/// The protocol version of this build.
pub const VERSION: u8 = 5;
const MAGIC: [u8; 4] = *b"gmml";

/// Private data on connect, with IP addressing (`rdma_connect(3)`).
pub const CONNECT_PRIVATE_BYTES: usize = 56;
/// Private data on accept (`rdma_accept(3)`).
pub const ACCEPT_PRIVATE_BYTES: usize = 196;
/// Private data on reject (`rdma_reject(3)`).
pub const REJECT_PRIVATE_BYTES: usize = 148;
const _: () = assert!(HELLO_LEN as usize == HELLO_BYTES && REJECT_LEN as usize == REJECT_BYTES);
const _: () = assert!(HELLO_BYTES + 16 <= CONNECT_PRIVATE_BYTES);
const _: () = assert!(HELLO_BYTES <= ACCEPT_PRIVATE_BYTES && REJECT_BYTES <= REJECT_PRIVATE_BYTES);

/// A set of features one side has; what both have is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feature(pub u16);

impl Feature {
    /// Frames may be written into this side's receive ring, and this side can write into the other's.
    pub const RING: Self = Self(1);

    /// A thread turns for this side whatever its user does: it answers pings by itself, so its silence means something.
    pub const ATTENDED: Self = Self(2);
    /// This side has a shared key, and proves it; see [`Key`](crate::Key).
    pub const KEYED: Self = Self(4);
    /// This side numbers its frames where they have no position.
    pub const NUMBERED: Self = Self(8);
    /// This side wants sums behind frames and beside bulk.
    pub const CHECKSUM: Self = Self(16);
    /// This side's receives are shared by its connections: it has no ring, and credits more than it first gave when the
    /// peer uses that up.
    pub const SHARED: Self = Self(32);

    /// Both sets, the second only if `wanted`.
    #[must_use]
    pub const fn and(self, other: Self, wanted: bool) -> Self {
        if wanted { Self(self.0 | other.0) } else { self }
    }

    /// Whether all of `wanted` are in it.
    #[must_use]
    pub const fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// What each side of a connection says first, and the other checks: what it can do, its sizes, and the connection's number. Nothing
/// in it is proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// What this side can do.
    pub features: Feature,
    /// Its receive ring, bytes: a power of two, 4 KiB to 1 GiB.
    pub ring_bytes: u32,
    /// Its receive buffer on the send/recv path: a multiple of 16, 64 bytes to 16 MiB.
    pub slot_bytes: u32,
    /// Receives it has posted for this connection; at least 4.
    pub arrivals: u16,
    /// READs it lets the peer have outstanding.
    pub responder_resources: u8,
    /// READs it wants to have outstanding.
    pub initiator_depth: u8,
    /// 0: the first queue pair of a connection.
    pub lane: u8,
    /// The port of the `gimmal://` URL whose server must answer, see [`Via::service`](crate::Via::service); 0: whichever listens.
    pub service: u16,
    /// Names the connection; the same on all its lanes. The active side's fresh randomness.
    pub nonce: u128,
}

/// Whether `bytes`, the first of a message as far as they came, begin no hello and no reject of any version.
#[cfg(feature = "tcp")]
pub(crate) fn is_foreign(bytes: &[u8]) -> bool {
    !bytes.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic)
}

impl Hello {
    /// Whether its side has a shared key to prove.
    #[cfg(feature = "tcp")]
    pub(crate) const fn is_keyed(&self) -> bool {
        self.features.has(Feature::KEYED)
    }

    /// The hello as it travels.
    #[must_use]
    #[doc(hidden)]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = HELLO_LEN;
        out[6..8].copy_from_slice(&self.features.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.ring_bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.slot_bytes.to_le_bytes());
        out[16..18].copy_from_slice(&self.arrivals.to_le_bytes());
        out[18] = self.responder_resources;
        out[19] = self.initiator_depth;
        out[20] = self.lane;
        out[22..24].copy_from_slice(&self.service.to_le_bytes());
        out[24..40].copy_from_slice(&self.nonce.to_le_bytes());
        out
    }

    /// Reads what a peer sent; `bytes` may be longer than what it wrote (the CM pads it).
    ///
    /// # Errors
    /// [`RejectReason::NotOurs`], [`RejectReason::Version`], [`RejectReason::BadHello`].
    #[doc(hidden)]
    pub fn decode(bytes: &[u8]) -> Result<Self, RejectReason> {
        if bytes.len() < 6 || bytes[0..4] != MAGIC {
            return Err(RejectReason::NotOurs);
        }
        if bytes[4] != VERSION {
            return Err(RejectReason::Version { ours: VERSION, theirs: bytes[4] });
        }
        if usize::from(bytes[5]) < HELLO_BYTES || bytes.len() < HELLO_BYTES {
            return Err(RejectReason::BadHello { field: 0 });
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| join_u16(u16_at(at), u16_at(at + 2));
        let u64_at = |at: usize| join(u32_at(at), u32_at(at + 4));
        let hello = Self {
            features: Feature(u16_at(6)),
            ring_bytes: u32_at(8),
            slot_bytes: u32_at(12),
            arrivals: u16_at(16),
            responder_resources: bytes[18],
            initiator_depth: bytes[19],
            lane: bytes[20],
            service: u16_at(22),
            nonce: join_u64(u64_at(24), u64_at(32)),
        };
        hello.check()?;
        Ok(hello)
    }

    /// As [`Hello::decode`], behind at most 16 bytes that are not ours: a resolver's `ai_connect` data must come first
    /// in the private data of a connect request (`rdma_getaddrinfo(3)`).
    ///
    /// # Errors
    /// As [`Hello::decode`].
    #[doc(hidden)]
    pub fn decode_behind(bytes: &[u8]) -> Result<Self, RejectReason> {
        let starts = |at: &usize| bytes.get(*at..).is_some_and(|rest| rest.starts_with(&MAGIC));
        let at = (0..=CONNECT_PRIVATE_BYTES - HELLO_BYTES).find(starts).unwrap_or(0);
        Self::decode(bytes.get(at..).unwrap_or_default())
    }

    /// Whether every field is within its limits.
    ///
    /// # Errors
    /// [`RejectReason::BadHello`] with the field's number.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), RejectReason> {
        let bad = |field| Err(RejectReason::BadHello { field });
        if !self.ring_bytes.is_power_of_two() || !(4 << 10..=1 << 30).contains(&self.ring_bytes) {
            return bad(1);
        }
        if !(self.slot_bytes as usize).is_multiple_of(FRAME_ALIGN)
            || !(64..=16 << 20).contains(&self.slot_bytes)
        {
            return bad(2);
        }
        if self.arrivals < ARRIVALS_MIN {
            return Err(RejectReason::Credits { offered: self.arrivals, least: ARRIVALS_MIN });
        }
        Ok(())
    }
}

/// The code of a refusal, as it travels.
pub(crate) fn reject_code(reason: RejectReason) -> u8 {
    encode_reject(reason)[CODE_AT]
}

/// A refusal as it travels in the reject's private data.
///
/// `Version` swaps sides: the reader sees its own version as `ours`.
#[must_use]
pub fn encode_reject(reason: RejectReason) -> [u8; REJECT_BYTES] {
    let (code, value): (u8, u32) = match reason {
        RejectReason::Version { ours, theirs } => (1, u32::from(u16::from_le_bytes([ours, theirs]))),
        RejectReason::NotOurs => (2, 0),
        RejectReason::BadHello { field } => (3, field.into()),
        RejectReason::Overloaded => (4, 0),
        RejectReason::ShuttingDown => (5, 0),
        RejectReason::Application { code } => (6, code),
        RejectReason::Credits { offered, least } => (7, join_u16(offered, least)),
        RejectReason::Authentication => (8, 0),
        RejectReason::KeyNeeded => (9, 0),
        RejectReason::KeyUnknown => (10, 0),
        RejectReason::NotAllowed { uid } => (11, uid),
        RejectReason::RingTooLarge { limit } => (12, limit),
        RejectReason::TlsNeeded => (13, 0),
        RejectReason::Tls => (14, 0),
        RejectReason::IdentityNotAllowed => (15, 0),
        RejectReason::OtherService { port } => (16, port.into()),
        RejectReason::Other { code } => (code, 0),
    };
    let mut out = [0; REJECT_BYTES];
    out[0..4].copy_from_slice(&MAGIC);
    out[4] = VERSION;
    out[5] = REJECT_LEN;
    out[CODE_AT] = code;
    out[8..12].copy_from_slice(&value.to_le_bytes());
    out
}

/// Reads a reject's private data; `None` when it is not ours (a failed accept on rxe rejects with zeroes).
#[must_use]
pub fn decode_reject(bytes: &[u8]) -> Option<RejectReason> {
    if bytes.len() < REJECT_BYTES || bytes[0..4] != MAGIC || usize::from(bytes[5]) < REJECT_BYTES {
        return None;
    }
    let value = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    Some(match bytes[CODE_AT] {
        1 => RejectReason::Version { ours: bytes[9], theirs: bytes[8] },
        2 => RejectReason::NotOurs,
        3 => RejectReason::BadHello { field: bytes[8] },
        4 => RejectReason::Overloaded,
        5 => RejectReason::ShuttingDown,
        6 => RejectReason::Application { code: value },
        7 => RejectReason::Credits {
            offered: u16::from_le_bytes([bytes[8], bytes[9]]),
            least: u16::from_le_bytes([bytes[10], bytes[11]]),
        },
        8 => RejectReason::Authentication,
        9 => RejectReason::KeyNeeded,
        10 => RejectReason::KeyUnknown,
        11 => RejectReason::NotAllowed { uid: value },
        12 => RejectReason::RingTooLarge { limit: value },
        13 => RejectReason::TlsNeeded,
        14 => RejectReason::Tls,
        15 => RejectReason::IdentityNotAllowed,
        16 => RejectReason::OtherService { port: u16::from_le_bytes([bytes[8], bytes[9]]) },
        code => RejectReason::Other { code },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Hello = Hello {
        features: Feature(1),
        ring_bytes: 0x0004_0000,
        slot_bytes: 0x4000,
        arrivals: 64,
        responder_resources: 16,
        initiator_depth: 15,
        lane: 0,
        service: 0,
        nonce: 0x0102_0304_0506_0708,
    };

    #[test]
    fn golden_hello() {
        let mut golden = [0; HELLO_BYTES];
        golden[..32].copy_from_slice(&[
            b'g', b'm', b'm', b'l', 5, 40, 1, 0, 0, 0, 4, 0, 0, 0x40, 0, 0, 64, 0, 16, 15, 0, 0, 0, 0, 8, 7,
            6, 5, 4, 3, 2, 1,
        ]);
        assert_eq!(SAMPLE.encode(), golden);
        let mut padded = [0; ACCEPT_PRIVATE_BYTES];
        padded[..HELLO_BYTES].copy_from_slice(&golden);
        assert_eq!(Hello::decode(&padded), Ok(SAMPLE));
    }

    /// A peer of the version before refuses us, and is refused, and each reads both versions in the other's reject.
    #[test]
    fn versions_refuse_each_other_by_name() {
        let mut older = SAMPLE.encode();
        older[4] = VERSION - 1;
        let ours = RejectReason::Version { ours: VERSION, theirs: VERSION - 1 };
        assert_eq!(Hello::decode(&older), Err(ours));
        assert_eq!(
            decode_reject(&encode_reject(ours)),
            Some(RejectReason::Version { ours: VERSION - 1, theirs: VERSION })
        );
        let mut theirs = encode_reject(RejectReason::Version { ours: VERSION - 1, theirs: VERSION });
        theirs[4] = VERSION - 1;
        assert_eq!(
            decode_reject(&theirs),
            Some(RejectReason::Version { ours: VERSION, theirs: VERSION - 1 })
        );
    }

    #[test]
    fn the_table_of_releases_has_this_protocol() {
        let page = include_str!("../../docs/changing.md");
        let (_, table) = page.split_once("| release | protocol |").unwrap();
        let row = table.lines().filter(|line| line.starts_with('|')).nth(1).unwrap();
        assert_eq!(row.split('|').nth(2).map(str::trim), Some(&VERSION.to_string()[..]), "{row}");
    }

    /// `ai_connect` data of every length that fits comes before the hello.
    #[test]
    fn a_hello_behind_connect_data_is_found() {
        for before in 0..=16 {
            let mut bytes = [0xee; CONNECT_PRIVATE_BYTES];
            bytes[before..before + HELLO_BYTES].copy_from_slice(&SAMPLE.encode());
            assert_eq!(Hello::decode_behind(&bytes), Ok(SAMPLE), "{before} bytes before");
        }
        assert_eq!(Hello::decode_behind(&[0; 56]), Err(RejectReason::NotOurs));
        assert_eq!(Hello::decode_behind(&[]), Err(RejectReason::NotOurs));
    }

    /// R6: every length, and every single-byte change, is an answer and never a panic.
    #[test]
    fn r6_any_bytes_are_answered() {
        let good = SAMPLE.encode();
        for len in 0..HELLO_BYTES {
            assert!(Hello::decode(&good[..len]).is_err(), "length {len}");
        }
        for at in 0..HELLO_BYTES {
            for value in 0..=255 {
                let mut bytes = good;
                bytes[at] = value;
                let _ = Hello::decode(&bytes);
            }
        }
        assert_eq!(Hello::decode(&[0; 56]), Err(RejectReason::NotOurs));
    }

    /// R8: absurd geometry is refused by its field's name before anything is allocated.
    #[test]
    fn r8_absurd_geometry_is_named() {
        let with = |change: fn(&mut Hello)| {
            let mut hello = SAMPLE;
            change(&mut hello);
            Hello::decode(&hello.encode()).unwrap_err().to_string()
        };
        assert!(with(|h| h.ring_bytes = 1 << 31).contains("ring_bytes"));
        assert!(with(|h| h.ring_bytes = 5000).contains("ring_bytes"));
        assert!(with(|h| h.slot_bytes = 17).contains("slot_bytes"));
        assert!(with(|h| h.arrivals = 0).contains("arrivals"));
    }

    #[test]
    fn rejects_round_trip_and_foreign_ones_are_not_ours() {
        for reason in [
            RejectReason::NotOurs,
            RejectReason::BadHello { field: 3 },
            RejectReason::Overloaded,
            RejectReason::ShuttingDown,
            RejectReason::Application { code: 7 },
            RejectReason::Credits { offered: 3, least: 4 },
            RejectReason::Authentication,
            RejectReason::KeyNeeded,
            RejectReason::KeyUnknown,
            RejectReason::NotAllowed { uid: 70_000 },
            RejectReason::RingTooLarge { limit: 4 << 20 },
            RejectReason::TlsNeeded,
            RejectReason::Tls,
            RejectReason::IdentityNotAllowed,
            RejectReason::OtherService { port: 7471 },
            RejectReason::Other { code: 99 },
        ] {
            assert_eq!(decode_reject(&encode_reject(reason)), Some(reason));
        }
        let version = encode_reject(RejectReason::Version { ours: 1, theirs: 9 });
        assert_eq!(decode_reject(&version), Some(RejectReason::Version { ours: 9, theirs: 1 }));
        assert_eq!(decode_reject(&[0; REJECT_PRIVATE_BYTES]), None);
    }
}
