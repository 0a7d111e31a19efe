//! Parts that providers are made of, for authors of providers in other crates.
//!
//! [`Provider`](crate::Provider) and its companions are the contract. What providers have in common beside it lies here:
//! the handshake of a shared key, the receives that connections share, runs of frames that lie nowhere in a row, copies of
//! user memory, the account of a connection's loans.

pub use crate::{
    log_pace::LogPace,
    mem::{
        account::Account,
        arena::{Arena, FRAMES_MAX},
        exposed::ExposedHome,
        user_bytes::Copies,
    },
    proof::{CHALLENGE_BYTES, Label, NONCE_BYTES, PROOF_BYTES, Session, admit, random, request},
    rejected::Rejected,
    share::{Common, Share},
};
