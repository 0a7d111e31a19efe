//! The RDMA CM and verbs, typed: one safe call for each manual page.

#![deny(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!("the RDMA CM is Linux's");

pub mod cm;
pub mod datagram;
pub mod device;
mod error;
#[allow(missing_docs)]
pub mod id;
mod memory;
mod sys;
mod thread;
#[allow(missing_docs)]
pub mod verbs;
mod wait;

pub use error::DeviceError;
pub use memory::Memory;
