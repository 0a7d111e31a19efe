//! The device's RNR counters. They stand still as long as no receive was missing.

use std::{fs, io, path::Path};

/// RNR counters of a device's first port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RnrCounters {
    /// `rcvd_rnr_err`: RNR NAKs that came in: a peer had no receive for our work.
    pub received: u64,
    /// `send_rnr_err`: RNR NAKs that went out: we had no receive for a peer's work.
    pub sent: u64,
}

/// Reads them from sysfs.
///
/// # Errors
/// When the device has no such counters: only rxe among the software devices has.
pub fn rnr_counters(device: &str) -> io::Result<RnrCounters> {
    let folder = Path::new("/sys/class/infiniband").join(device).join("ports/1/hw_counters");
    let read = |name: &str| -> io::Result<u64> {
        let text = fs::read_to_string(folder.join(name))?;
        text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {text}")))
    };
    Ok(RnrCounters { received: read("rcvd_rnr_err")?, sent: read("send_rnr_err")? })
}
