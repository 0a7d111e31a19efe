//! Latency, rate and bandwidth of gimmal's layers, beside the floors of the same two processes and beside others.
//!
//! ```text
//!  gimmal-bench lat ── starts ──► gimmal-bench serve
//!      │  1. connects, sends its plan in the first message ─► pins itself, answers
//!      │  2. slices: floors │ test │ floors, others │ test │ … │     one phase word in a shared memfd says which
//!      └► 3. a table, or one JSON object
//! ```
//!
//! Test and floors run in the same two processes, on the same two cores, with the same clock code, in turns: the host
//! moves virtual cores about, so only what was measured side by side may be divided.

#![forbid(unsafe_code)]

pub mod advise;
pub mod against;
pub mod args;
pub mod arrivals;
mod bulk;
mod child;
mod client;
pub mod clock;
pub mod cost;
pub mod csv;
pub mod echo;
pub mod environment;
pub mod error;
mod floors;
pub mod handoff;
pub mod html;
pub mod inline;
pub mod load;
mod many;
mod measure;
pub mod pair;
pub mod plan;
mod plots;
mod provider;
pub mod recorder;
mod regress;
pub mod report;
mod rpc;
pub mod run;
pub mod serve;
pub mod slices;
pub mod stream;
mod suite;
pub mod target;
