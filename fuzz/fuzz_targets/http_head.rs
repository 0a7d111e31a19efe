#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gimmal_http::fuzz::read(data));
