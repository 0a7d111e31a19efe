//! What a server is given.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{case::Idling, place::Place};

/// Where and how a server serves, and until when.
pub(crate) struct Post {
    pub(crate) place: Place,
    pub(crate) idling: Idling,
    /// The parent process has ended.
    is_over: Arc<AtomicBool>,
}

impl Post {
    pub(crate) fn new(place: Place, idling: Idling) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&is_over);
        std::thread::spawn(move || {
            // The pipe ends with the parent.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            theirs.store(true, Ordering::Relaxed);
        });
        Self { place, idling, is_over }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) async fn until(&self) {
        while !self.is_over() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn wait(&self) {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
