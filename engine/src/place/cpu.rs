//! A logical processor.

/// A memory node (NUMA), as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NumaNode(pub u32);

/// One logical processor that this process may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// As the kernel numbers it, and as [`Placement::Cores`](super::Placement::Cores) wants it.
    pub number: usize,
    /// Hyper-threads of one core share this; it is unique on the machine.
    pub core: u32,
    /// Where its memory is near; `None` when the machine does not say.
    pub node: Option<NumaNode>,
}
