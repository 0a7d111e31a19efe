//! Memory and who owns it when.
//!
//! ```text
//!  Region  a mapping; shared by everything lent from it
//!  ├─ transmit ring ─ reserve ─► &mut [u8] ─ commit ─► the device's, until `completed` and the peer's credit pass
//!  ├─ receive ring  ─ the peer writes ─► RxFrame, Run (lent, read only) ─ release ─► credit ─► the peer's again
//!  RxMemory  a Region that frames land in, and which of them are kept: credit stops before those
//!  RxBuf   an RxFrame's bytes, kept on any thread; Holder is the worker's list of them
//!  Loan    ours to fill ─ offer ─► the peer may read ─ done ─► ours
//!  UserBytes  the user's, kept alive ─ lend ─► a Loan that is read only
//!  Bulk    what a pull brought: ours (verbs), or the peer's memory until it is dropped (shm)
//!  Exposed ours, and a peer's to use by itself, until it is dropped
//! ```

pub mod account;
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) mod accounts;
pub(crate) mod arena;
pub mod bulk;
#[cfg(feature = "shm")]
pub(crate) mod charge;
#[cfg(any(feature = "shm", feature = "tcp"))]
pub(crate) mod departing;
pub mod exposed;
pub mod hold;
#[cfg(any(feature = "tcp", feature = "verbs"))]
pub(crate) mod kept;
pub mod loan;
#[cfg(feature = "shm")]
pub(crate) mod moving;
pub mod node;
pub mod pages;
#[cfg(any(feature = "shm", feature = "tcp", feature = "verbs", test))]
mod place;
pub mod region;
pub mod run;
pub mod rx_frame;
pub(crate) mod rx_memory;
pub mod user_bytes;

pub use account::{Account, Debit};
pub use bulk::{Bulk, Release, Releases};
pub use exposed::{Accessed, Exposed, OneSided, REMOTE_BYTES, Remote, Words};
pub use hold::{Holder, RxBuf};
pub use loan::{Loan, LoanHome, Offer};
pub use node::{MemoryNode, NotNear};
pub use pages::{NotHuge, Pages, PoolMemory};
pub use region::{Access, Region};
pub use run::{Lent, Run};
pub use rx_frame::RxFrame;
pub(crate) use rx_memory::RxMemory;
pub use user_bytes::{UserBytes, UserMemory};
