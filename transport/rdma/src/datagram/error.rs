//! What can go wrong with datagrams: one error for each operation, by blame.

use std::{net::IpAddr, net::SocketAddr, time::Duration};

use thiserror::Error;

use super::private::AnswerData;
use crate::error::{DeviceError, errno_text};

/// An end point could not be opened, or could not listen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not an address of an RDMA device.
    #[error("{address} cannot be used: {why}")]
    Address {
        /// What was given.
        address: SocketAddr,
        /// Why not.
        why: String,
    },
    /// The device has no unreliable datagrams; every iWARP device is such.
    #[error(
        "{device} is an iWARP device and has no datagrams (UD); use an InfiniBand or RoCE device, or a connection"
    )]
    NoDatagrams {
        /// Its name.
        device: String,
    },
    /// No RDMA device has a route there, or none answered in time.
    #[error("cannot resolve {address}: {event} ({})", status_text(*.status))]
    Resolve {
        /// What was given.
        address: SocketAddr,
        /// The event, or what we waited for.
        event: &'static str,
        /// Its status.
        status: i32,
    },
    /// Everything a device can say.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What the listening side's CM answered to a look-up (`IB_SIDR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SidrStatus {
    /// Nobody listens there.
    #[error("no server is listening")]
    NobodyListens,
    /// The application said no, or went away without an answer.
    #[error("refused")]
    Rejected,
    /// It has no queue pair for it.
    #[error("it has no queue pair")]
    NoQueuePair,
    /// Ask somewhere else; the CM follows no redirect.
    #[error("redirected, which is not followed")]
    Redirected,
    /// It speaks another version of the CM.
    #[error("another version of the CM")]
    Version,
    /// Newer than this program.
    #[error("status {0}, which this version does not know")]
    Other(i32),
}

impl SidrStatus {
    pub(super) fn from_status(status: i32) -> Self {
        match status {
            1 => Self::NobodyListens,
            2 => Self::Rejected,
            3 => Self::NoQueuePair,
            4 => Self::Redirected,
            5 => Self::Version,
            other => Self::Other(other),
        }
    }
}

/// A look-up did not find a queue pair. Nothing of it is left.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LookUpError {
    /// The CM could not resolve the address or the route.
    #[error("cannot resolve {address}: {event} ({})", status_text(*.status))]
    Resolve {
        /// What was asked.
        address: SocketAddr,
        /// The event or call that failed.
        event: &'static str,
        /// Its status: a negative errno.
        status: i32,
    },
    /// It answered no.
    #[error("{address} gave no queue pair: {status}")]
    Refused {
        /// What was asked.
        address: SocketAddr,
        /// What it answered.
        status: SidrStatus,
        /// Its data, all 136 bytes; zeroes when it gave none.
        data: Box<AnswerData>,
    },
    /// The address leads to another device than this end point's.
    #[error("{address} is reached by another device or port than this end point's; open one with `toward`")]
    OtherDevice {
        /// What was asked.
        address: SocketAddr,
    },
    /// No answer within the limit.
    #[error("{address} did not answer within {timeout:?} (while {step})")]
    Timeout {
        /// What was asked.
        address: SocketAddr,
        /// Where we were.
        step: &'static str,
        /// The limit that was set.
        timeout: Duration,
    },
    /// The device is gone: drop the end point.
    #[error("the device was removed")]
    DeviceGone,
    /// Everything a device can say.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A request could not be answered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// It was answered before, or waited for longer than its sender does.
    #[error("the request was answered, or is too old")]
    Gone,
    /// The CM refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A group was not joined, or not left.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Not a multicast address, or of another family than the end point's.
    #[error("{group} is not a group of this end point: {why}")]
    NotAGroup {
        /// What was given.
        group: IpAddr,
        /// Why not.
        why: &'static str,
    },
    /// This end point is a member already.
    #[error("{group} is joined already")]
    Twice {
        /// The group.
        group: IpAddr,
    },
    /// The group is not joined (any more).
    #[error("{group} is not joined")]
    NotJoined {
        /// The group.
        group: IpAddr,
    },
    /// The CM or the subnet manager refused.
    #[error("cannot join {group}: {step}: {}", join_text(*.status))]
    Refused {
        /// The group.
        group: IpAddr,
        /// The call or event.
        step: &'static str,
        /// A negative errno; -1 when attaching the queue pair failed, whose errno librdmacm does not report.
        status: i32,
    },
    /// No answer within the limit; the join is cancelled.
    #[error("{group} was not joined within {timeout:?}")]
    Timeout {
        /// The group.
        group: IpAddr,
        /// The limit that was set.
        timeout: Duration,
    },
    /// The device is gone: drop the end point.
    #[error("the device was removed")]
    DeviceGone,
    /// Everything a device can say.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A message was not sent. Nothing of it is left.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// A datagram is one packet.
    #[error("a message of {bytes} bytes, the path MTU is {limit}")]
    TooLarge {
        /// What was given.
        bytes: usize,
        /// The path MTU.
        limit: usize,
    },
    /// The device has not taken the earlier ones yet; see [`Datagram::drain`](super::Datagram::drain).
    #[error("all sends are on their way; try again later")]
    Full,
    /// The peer was found by an end point of another device or protection domain.
    #[error("the peer belongs to another end point: look it up with this one")]
    Foreign,
    /// An earlier send failed, which ends sending on this queue pair.
    #[error(
        "an earlier send failed with work completion status {status} (vendor {vendor}); open a new end point"
    )]
    Broken {
        /// `ibv_wc_status`.
        status: u32,
        /// `vendor_err`.
        vendor: u32,
    },
    /// The device is gone: drop the end point.
    #[error("the device was removed")]
    DeviceGone,
    /// Everything a device can say.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// An event's status: a negative errno, seldom something else.
fn status_text(status: i32) -> String {
    if status <= 0 { errno_text(status.saturating_neg()) } else { format!("status {status}") }
}

fn join_text(status: i32) -> String {
    if status == -1 {
        return "the device did not attach the queue pair; it may be at its limit of members".to_owned();
    }
    status_text(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidr_statuses_are_told_apart() {
        for (status, text) in
            [(1, "no server is listening"), (2, "refused"), (3, "no queue pair"), (9, "status 9")]
        {
            assert!(SidrStatus::from_status(status).to_string().contains(text), "{status}");
        }
    }

    #[test]
    fn limits_are_said() {
        let error = SendError::TooLarge { bytes: 4097, limit: 4096 };
        assert_eq!(error.to_string(), "a message of 4097 bytes, the path MTU is 4096");
        let error = JoinError::Refused { group: [239, 1, 1, 1].into(), step: "MULTICAST_ERROR", status: -1 };
        assert!(error.to_string().contains("limit of members"));
        assert!(status_text(-110).contains("timed out") && status_text(7) == "status 7");
        let error = OpenError::NoDatagrams { device: "siw0".into() };
        assert!(error.to_string().contains("iWARP"));
    }
}
