//! Where the workers run: what the user asks for, and the cores that were chosen.

use std::{fmt, path::Path};

use super::{Cpus, NumaNode};
use crate::error::PlaceError;

/// Which cores the workers run on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Any core: workers are not pinned.
    #[default]
    Free,
    /// A core for each worker, chosen by [`Cpus::spread`]: near the device that `listen.device` or `connect.device` names,
    /// else near all RDMA devices where they share a memory node. Each configuration chooses for itself, so that two of
    /// them choose the same cores.
    Auto,
    /// These cores, one each and in this order.
    Cores(Vec<usize>),
}

/// The cores that a [`Placement`] came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Placed {
    /// One for each worker; empty: not pinned.
    pub(crate) cores: Vec<usize>,
    is_chosen: bool,
    near: Option<NumaNode>,
}

impl Placement {
    /// Chooses cores on this machine.
    ///
    /// # Errors
    /// [`PlaceError`] of [`Placement::Auto`].
    pub(crate) fn place(&self, workers: usize, device: Option<&str>) -> Result<Placed, PlaceError> {
        match self {
            Self::Free => Ok(Placed::default()),
            Self::Cores(cores) => Ok(Placed { cores: cores.clone(), ..Placed::default() }),
            Self::Auto => {
                let near = NumaNode::of_devices(Path::new("/sys"), device);
                Ok(Placed { cores: Cpus::read()?.spread(workers, near)?, is_chosen: true, near })
            }
        }
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cores[..], self.is_chosen, self.near) {
            ([], ..) => write!(f, "any core"),
            (cores, false, _) => write!(f, "cores {cores:?}"),
            (cores, true, None) => write!(f, "cores {cores:?}, chosen"),
            (cores, true, Some(NumaNode(node))) => {
                write!(f, "cores {cores:?}, chosen near memory node {node}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_says_what_came_of_it() {
        let said = |placement: Placement| placement.place(1, None).unwrap().to_string();
        assert_eq!(said(Placement::Free), "any core");
        assert_eq!(said(Placement::Cores(vec![5, 3])), "cores [5, 3]");
        let chosen = Placement::Auto.place(1, None).unwrap();
        assert_eq!(chosen.cores.len(), 1);
        assert!(chosen.to_string().contains("], chosen"), "{chosen}");
        let near = Placed { near: Some(NumaNode(1)), ..chosen };
        assert!(near.to_string().ends_with("], chosen near memory node 1"), "{near}");
    }

    #[test]
    fn more_workers_than_cores_cannot_be_placed() {
        let refused = Placement::Auto.place(5000, None).unwrap_err();
        assert!(matches!(refused, PlaceError::TooFew { workers: 5000, .. }), "{refused}");
    }
}
