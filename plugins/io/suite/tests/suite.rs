//! Tokio's files of tests, as `build.rs` found them, each in memory and over TCP.

#![allow(
    clippy::all,
    clippy::needless_pass_by_ref_mut,
    clippy::pedantic,
    clippy::unwrap_used,
    unfulfilled_lint_expectations,
    unused,
    unused_qualifications,
    reason = "these are tokio's files"
)]

macro_rules! suite {
    ($($name:ident)+) => {
        mod mem {
            $(mod $name { include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs")); })+
        }
        mod tcp {
            $(mod $name { include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs")); })+
        }
    };
}

suite!(tcp_split tcp_into_split tcp_shutdown tcp_echo tcp_stream io_copy_bidirectional io_split);
