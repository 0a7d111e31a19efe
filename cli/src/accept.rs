//! Connections of programs, accepted also while descriptors or memory are short.

use std::{io, time::Duration};

use gimmal_transport::{Instant, parts::LogPace};

/// How long to wait after an accept that failed. A shortage is not over at once, and meanwhile the listener stays readable.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until it succeeds.
pub(crate) async fn accepted<T>(mut accept: impl AsyncFnMut() -> io::Result<T>, log: &LogPace) -> T {
    loop {
        match accept().await {
            Ok(connection) => return connection,
            Err(error) => {
                if let Some(left_out) = log.line(Instant::now()) {
                    tracing::warn!(%error, left_out, "no connection is accepted now; it is tried again");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_accept_that_fails_is_tried_again_a_little_later() {
        let (mut tries, began) = (0_u32, Instant::now());
        let accept = async || {
            tries += 1;
            // EMFILE.
            if tries < 4 { Err(io::Error::from_raw_os_error(24)) } else { Ok(tries) }
        };
        assert_eq!(accepted(accept, &LogPace::default()).await, 4);
        assert!(Instant::now() - began >= PAUSE.saturating_mul(3), "it was tried again at once");
    }
}
