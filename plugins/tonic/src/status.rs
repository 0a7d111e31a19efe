//! How failures of gimmal become statuses of gRPC, and back.

use std::{error::Error as _, sync::Arc};

use gimmal::Fate;
use gimmal_http::Error;
use tonic::{Code, Status};

/// Makes a status of a failure. Its source is the [`Error`], from which [`fate`] reads whether the call ran.
#[must_use]
pub fn status_of(error: Error) -> Status {
    let of_body = match &error {
        // A body that ends with a status says best what happened.
        Error::Body(source) | Error::Unsent(source) => source.downcast_ref::<Status>().cloned(),
        _ => None,
    };
    let mut status = of_body
        .unwrap_or_else(|| Status::new(Code::from_i32(error.code().number().into()), error.to_string()));
    status.set_source(Arc::new(error));
    status
}

/// Returns whether the handler of a failed call ran, as far as this side knows. A status that the handler itself returned is of a
/// call that ran.
#[must_use]
pub fn fate(status: &Status) -> Fate {
    let error = status.source().and_then(|source| source.downcast_ref::<Error>());
    error.map_or(Fate::Ran, Error::fate)
}
