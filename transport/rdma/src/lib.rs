#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!("the RDMA CM is Linux's");

#[macro_use]
mod kinds;

pub mod cm;
pub mod datagram;
pub mod device;
mod error;
pub mod id;
mod memory;
mod private_data;
mod sys;
mod thread;
pub mod verbs;
mod wait;

pub use error::DeviceError;
pub use memory::Memory;

#[cfg(test)]
mod tests {
    /// The README shows the two programs as they are built and run in the lab.
    #[test]
    fn the_readme_has_the_examples() {
        let readme = include_str!("../README.md");
        for example in [include_str!("../examples/client.rs"), include_str!("../examples/server.rs")] {
            assert!(readme.contains(example) && example.lines().count() <= 30, "{example}");
        }
    }
}
