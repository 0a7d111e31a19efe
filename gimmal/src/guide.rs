#![doc = include_str!("../guide/guide.md")]

#[doc = include_str!("../guide/start.md")]
pub mod start {}

#[doc = include_str!("../guide/clients.md")]
pub mod clients {}

#[doc = include_str!("../guide/handlers.md")]
pub mod handlers {}

#[doc = include_str!("../guide/tokio.md")]
pub mod tokio {}

#[doc = include_str!("../guide/failures.md")]
pub mod failures {}

#[doc = include_str!("../guide/streams.md")]
pub mod streams {}

#[doc = include_str!("../guide/data.md")]
pub mod data {}

#[doc = include_str!("../guide/security.md")]
pub mod security {}

#[doc = include_str!("../guide/operations.md")]
pub mod operations {}

#[doc = include_str!("../guide/testing.md")]
pub mod testing {}

/// The contract and the implementation that the chapter `start` shows are those its programs are compiled with.
#[test]
fn the_library_is_shown_as_it_is_compiled() {
    let chapter = include_str!("../guide/start.md");
    assert!(chapter.contains(include_str!("../guide/kv.rs")));
    assert!(chapter.contains(include_str!("../guide/store.rs")));
}
