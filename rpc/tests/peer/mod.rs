//! A hostile peer's script, and a victim for it. Also used by the fuzz targets of `fuzz/`.

#![allow(dead_code, unreachable_pub, reason = "each test and each fuzz target uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

pub mod script;
pub mod stream;
pub mod targets;
pub mod victim;
