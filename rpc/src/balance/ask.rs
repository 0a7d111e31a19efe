//! A resolver that may block, for an event loop.

use gimmal_engine::transport::thread;

use crate::oneshot::oneshot;

/// Asks a resolver on a thread of its own, so that the event loop goes on.
///
/// Cancel safe: when the future is dropped, the thread ends with the resolver's answer.
///
/// # Errors
/// The resolver's; that it panicked, or that there is no thread for it.
#[doc(hidden)]
pub async fn ask(
    resolve: impl FnOnce() -> Result<Vec<String>, String> + Send + 'static,
) -> Result<Vec<String>, String> {
    let (sender, receiver) = oneshot();
    let asked = thread::spawn("gimmal-resolve", move || sender.send(resolve()));
    asked.map_err(|error| format!("no thread to ask the resolver with: {error}"))?;
    receiver.await.unwrap_or_else(|| Err("the resolver panicked".to_owned()))
}
