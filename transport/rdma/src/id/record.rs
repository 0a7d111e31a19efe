//! The routes that the CM found.

use crate::{id::cm_id::CmId, sys};

/// A route of an id (`struct ibv_sa_path_rec`, `route.path_rec`): on RoCE one that the kernel made up from the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathRecord {
    /// GID of the other end.
    pub destination_gid: [u8; 16],
    /// GID of our end.
    pub source_gid: [u8; 16],
    /// Partition.
    pub pkey: u16,
    /// Traffic class: the type of service.
    pub traffic_class: u8,
    /// Hops.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Path MTU: 1 is 256 bytes, and each step doubles.
    pub mtu: u8,
    /// Packet lifetime: 4.096 us x 2^n.
    pub packet_lifetime: u8,
}

impl PathRecord {
    /// The routes of `id`, which exist once its route is resolved (`route.num_paths`).
    #[must_use]
    pub fn of(id: &CmId) -> Vec<Self> {
        // SAFETY: the id is live; only calls on it change the field, and it is borrowed.
        let route = unsafe { &(*id.raw()).route };
        let count = usize::try_from(route.num_paths).unwrap_or(0);
        if route.path_rec.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: the library keeps so many records there until the next call on the id.
        let records: &[sys::ibv_sa_path_rec] = unsafe { std::slice::from_raw_parts(route.path_rec, count) };
        let record = |raw: &sys::ibv_sa_path_rec| Self {
            // SAFETY: both members of the union are plain bytes of the same size.
            destination_gid: unsafe { raw.dgid.raw },
            // SAFETY: both members of the union are plain bytes of the same size.
            source_gid: unsafe { raw.sgid.raw },
            pkey: u16::from_be(raw.pkey),
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
            service_level: raw.sl,
            mtu: raw.mtu,
            packet_lifetime: raw.packet_life_time,
        };
        records.iter().map(record).collect()
    }
}
