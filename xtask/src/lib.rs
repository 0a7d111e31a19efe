//! The project's own commands, as `cargo xtask` runs them.
//!
//! - `tidy`: the rules of the house that no compiler checks ([`rules`]).
//! - `lines`: lines of code of each crate, now or at a revision ([`lines`]).

#![forbid(unsafe_code)]

pub mod crates;
pub mod house;
pub mod items;
pub mod lines;
pub mod markdown;
pub mod paths;
pub mod rules;
pub mod source;
pub mod tidy;
pub mod tokens;
pub mod tree;
