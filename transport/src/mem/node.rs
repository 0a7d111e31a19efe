//! On which memory node a port's memory lies: near the processors that its thread may run on.
//!
//! ```text
//!  the machine has one node?                       ── yes ──► Only
//!   │ no
//!  the thread may run on processors of one node?   ── no ───► Anywhere { Several }
//!   │ yes
//!  it has a memory policy already (numactl)?       ── yes ──► Anywhere { Chosen }
//!   │ no
//!  the kernel lets it prefer that node?            ── no ───► Anywhere { Refused }
//!   │ yes
//!  Near { node }: what is made for the port is made so, on whichever thread, with all its pages
//! ```

use std::{fmt, io};

/// Where the memory of a port lies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum MemoryNode {
    /// The machine has only one node.
    #[default]
    Only,
    /// On this node, as long as it has room.
    Near {
        /// As the kernel numbers it.
        node: u32,
    },
    /// As the kernel places it.
    Anywhere {
        /// Why.
        why: NotNear,
    },
}

/// Why memory is not placed near a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotNear {
    /// The thread may run on processors of several nodes: pin it.
    Several,
    /// It has a memory policy of its own, from `numactl` or by a call.
    Chosen {
        /// `MPOL_…`, see `get_mempolicy(2)`.
        mode: i32,
    },
    /// The kernel, or a container's filter, refused it.
    Refused {
        /// The node that was wanted.
        node: u32,
        /// What it said.
        errno: i32,
    },
    /// The provider keeps no memory of its own.
    Modelled,
}

impl fmt::Display for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("the only node"),
            Self::Near { node } => write!(f, "node {node}, where its thread runs"),
            Self::Anywhere { why: NotNear::Several } => {
                f.write_str("any node: its thread may run on several, and is not pinned to one")
            }
            Self::Anywhere { why: NotNear::Chosen { mode } } => {
                write!(f, "as the thread's own memory policy says (mode {mode})")
            }
            Self::Anywhere { why: NotNear::Refused { node, errno } } => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "any node: node {node} was refused ({error}); in a container allow set_mempolicy")
            }
            Self::Anywhere { why: NotNear::Modelled } => f.write_str("no memory of its own"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_report_says_what_to_do() {
        let text = |why| MemoryNode::Anywhere { why }.to_string();
        assert!(text(NotNear::Several).contains("not pinned"));
        assert!(text(NotNear::Refused { node: 1, errno: 1 }).contains("node 1 was refused (Operation not"));
        assert_eq!(MemoryNode::Near { node: 1 }.to_string(), "node 1, where its thread runs");
    }
}
