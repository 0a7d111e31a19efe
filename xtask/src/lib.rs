//! The project's own commands, as `cargo xtask` runs them.
//!
//! - `tidy`: the rules of the house that no compiler checks ([`rules`]).
//! - `test`: the test tiers ([`tiers`]).
//! - `ci`: the steps of the workflow, on this machine ([`ci`]).
//! - `lines`: lines of code of each crate, now or at a revision ([`lines`]).
//! - `planted`: whether the simulation finds the planted bugs ([`planted`]).
//! - `bench ledger`: what each tuned constant is worth ([`ledger`]).
//! - `bench agree`: the bench beside the programs that it starts, run by hand ([`agree`]).
//! - `bench page`: the bench's page in a browser ([`page`]).

#![forbid(unsafe_code)]

pub mod agree;
pub mod checks;
pub mod ci;
pub mod crates;
pub mod house;
pub mod items;
pub mod ledger;
pub mod lines;
pub mod markdown;
pub mod page;
pub mod patched;
pub mod paths;
pub mod planted;
pub mod rules;
pub mod source;
pub mod tidy;
pub mod tiers;
pub mod tokens;
pub mod tree;
