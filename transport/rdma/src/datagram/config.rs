//! What an end point asks for, and what it counts.

use std::fmt;

use super::{error::OpenError, name::Qkey};
use crate::error::DeviceError;

/// Sizes of an end point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramConfig {
    /// Receives kept posted, each of the path MTU: messages that may arrive between two calls of
    /// [`Datagram::receive`](super::Datagram::receive). 1 to 16,384.
    pub receives: u16,
    /// Messages that may be on their way to the device. 1 to 16,384.
    pub sends: u16,
    /// Look-ups that may wait for an answer; more are rejected. 1 to 4,096.
    pub requests: u16,
    /// The key of our queue pair. The CM answers look-ups with [`Qkey::UDP`] whatever it is: peers must be told
    /// another one by other means, for instance in the answer's data, and use
    /// [`Peer::with_qkey`](super::Peer::with_qkey).
    pub qkey: Qkey,
}

impl Default for DatagramConfig {
    fn default() -> Self {
        Self { receives: 256, sends: 64, requests: 64, qkey: Qkey::UDP }
    }
}

impl DatagramConfig {
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let within = |field, value: u16, limit: u16| {
            let error = DeviceError::Limit { field, value: value.into(), limit: limit.into() };
            if (1..=limit).contains(&value) { Ok(()) } else { Err(OpenError::Device(error)) }
        };
        within("receives", self.receives, 16_384)?;
        within("sends", self.sends, 16_384)?;
        within("requests", self.requests, 4_096)?;
        if self.qkey.0 & Qkey::PRIVILEGED != 0 {
            let limit = u64::from(Qkey::PRIVILEGED - 1);
            return Err(OpenError::Device(DeviceError::Limit {
                field: "qkey",
                value: self.qkey.0.into(),
                limit,
            }));
        }
        Ok(())
    }
}

/// What an end point has done. A message that found no receive posted is in none of them: the device drops it
/// without a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramCounters {
    /// Messages the device took and sent; whether they arrived, nobody knows.
    pub sent: u64,
    /// Messages the device completed with an error.
    pub sends_failed: u64,
    /// Messages handed to the application.
    pub received: u64,
    /// Datagrams shorter than the 40 bytes of their own header: dropped.
    pub too_short: u64,
    /// Receives the device completed with an error; a few when a queue pair is destroyed.
    pub receives_failed: u64,
    /// Look-ups rejected because too many waited for an answer, or dropped because nobody answered for a minute.
    pub requests_dropped: u64,
    /// Events dropped because nobody fetched the earlier ones.
    pub events_dropped: u64,
    /// CM events that have no place here.
    pub events_stray: u64,
}

impl fmt::Display for DatagramCounters {
    /// What was sent and received, and whatever else is not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent, {} received", self.sent, self.received)?;
        for (count, what) in [
            (self.sends_failed, "sends failed"),
            (self.too_short, "too short"),
            (self.receives_failed, "receives failed"),
            (self.requests_dropped, "look-ups dropped"),
            (self.events_dropped, "events dropped"),
            (self.events_stray, "stray events"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named() {
        assert!(DatagramConfig::default().check().is_ok());
        let refused = |config: DatagramConfig| config.check().unwrap_err().to_string();
        let good = DatagramConfig::default();
        assert_eq!(refused(DatagramConfig { receives: 0, ..good }), "receives is 0, the limit is 16384");
        assert_eq!(refused(DatagramConfig { sends: 16_385, ..good }), "sends is 16385, the limit is 16384");
        assert_eq!(
            refused(DatagramConfig { requests: 5_000, ..good }),
            "requests is 5000, the limit is 4096"
        );
        assert!(refused(DatagramConfig { qkey: Qkey(1 << 31), ..good }).starts_with("qkey"));
    }
}
