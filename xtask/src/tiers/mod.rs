//! `cargo xtask test`: the test tiers, which run beside which, and what they came to.
//!
//! ```text
//! run ──► plan ──► list      which tiers, in which order
//!  └────► child ─► count     one command: its output, its log, its processes, its sums
//!  └────► lane               what runs beside the rest, and when it is halted
//! ```

mod child;
mod count;
mod list;
mod plan;
mod run;

pub use run::run;

/// Whether there are tiers with these names.
///
/// # Errors
/// The name that no tier has.
pub fn check(names: &[String]) -> Result<(), String> {
    plan::Plan::of(names).map(drop)
}
