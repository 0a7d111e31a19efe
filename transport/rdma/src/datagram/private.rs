//! The limits of private data of `RDMA_PS_UDP`, as types.

use crate::private_data::PrivateData;

/// What a look-up can carry: 216 bytes of a SIDR request less the CM's own 36 (`rdma_connect(3)`).
pub const LOOK_UP_DATA_BYTES: usize = 180;
/// What an answer can carry, accepting or rejecting (`rdma_accept(3)`).
pub const ANSWER_DATA_BYTES: usize = 136;

/// Data of a look-up.
pub type LookUpData = PrivateData<LOOK_UP_DATA_BYTES>;
/// Data of an answer to one.
pub type AnswerData = PrivateData<ANSWER_DATA_BYTES>;
