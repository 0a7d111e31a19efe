//! Our own declarations of rdma-core's interface, and its libraries opened when they are first needed.
//!
//! ```text
//!  values       enums and flags           ─┐
//!  types_verbs  structs of verbs.h         ├─ compared with the real headers, field by field (compare.rs)
//!  types_cm     structs of rdma_cma.h     ─┘
//!  layout       how they describe themselves to the tests
//!  load         dlopen, dlsym, what is missing
//!  verbs, cm    a function for each symbol, through a table
//!  inline       what the headers define inline: ours, over the table that a device context carries
//! ```
//! Names and shapes are those of the C headers, so that the manual pages apply; unions without a name have the names
//! that the crate `rdma-sys` gives them, so that one program builds on both. More is declared than is used.
#![allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the interface of a C library, under its own names and as a whole"
)]

#[macro_use]
mod layout;
#[macro_use]
mod load;

mod cm;
#[cfg(all(test, feature = "rdma-sys"))]
mod compare;
#[cfg(all(test, feature = "rdma-sys"))]
mod headers;
mod inline;
mod types_cm;
mod types_verbs;
mod values;
mod verbs;

#[allow(unused_imports, reason = "declared as a whole")]
mod all {
    pub(crate) use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

    pub(crate) use super::{cm::*, inline::*, types_cm::*, types_verbs::*, values::*, verbs::*};
}
#[allow(unused_imports, reason = "with `rdma-sys` this is compiled for the comparison only")]
pub(crate) use all::*;

/// Why verbs cannot be used in this process: a library or one of its functions is missing.
///
/// # Errors
/// A sentence that names the library, the system's reason and the package.
pub(crate) fn available() -> Result<(), String> {
    cm::available()?;
    verbs::available()
}
