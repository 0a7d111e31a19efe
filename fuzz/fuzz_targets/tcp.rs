#![no_main]

#[path = "../../rpc/tests/peer/mod.rs"]
mod peer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| peer::stream::tcp(data));
