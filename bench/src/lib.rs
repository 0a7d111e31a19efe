//! Latency, rate and bandwidth of gimmal's layers, beside the floors of the same two processes and beside others.
//!
//! ```text
//!  gimmal-bench lat ── starts ──► gimmal-bench serve
//!      │  1. connects, sends its plan in the first message ─► pins itself, answers
//!      │  2. slices: line │ frame │ line │ test │ line │ others │ … │     one phase word in a shared memfd says which
//!      └► 3. a table, or one JSON object
//! ```
//!
//! Test and floors run in the same two processes, on the same two cores, with the same clock code, in turns: the host
//! moves virtual cores about, so only what was measured side by side may be divided, and only within one of its states.

#![forbid(unsafe_code)]

pub mod advise;
pub mod against;
mod agree;
pub mod args;
pub mod arrivals;
mod beside;
mod bulk;
mod child;
mod client;
pub mod clock;
pub mod cost;
mod crew;
pub mod csv;
pub mod echo;
pub mod environment;
pub mod error;
mod floors;
pub mod handoff;
mod hosts;
pub mod html;
pub mod inline;
mod invocation;
mod items;
pub mod leave;
mod load;
mod many;
mod measure;
mod out;
mod outcome;
mod pages;
pub mod pair;
mod pipeline;
pub mod plan;
mod plots;
mod provider;
pub mod record;
pub mod recorder;
mod regress;
pub mod report;
pub mod results;
mod rounds;
mod rpc;
pub mod run;
pub mod serve;
mod service;
mod session;
pub mod slices;
mod soak;
pub mod states;
mod stopwatch;
mod stream;
mod suite;
pub mod target;
pub mod work;
