//! Large memory that nobody uses any more is given back on a thread of its own: the kernel takes a tenth of a second for
//! a GiB, and a worker would serve nobody meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sync::thread;

/// Memory up to this is given back where it is dropped, bytes: that takes about a ms. It is a segment of the shm pool.
const SMALL: usize = 16 << 20;
/// So many pieces are, if they are no larger together.
const FEW: usize = 64;
/// Pieces that may wait for the thread. More are given back where they are dropped.
const WAITING_MAX: usize = 16;

/// What waits for the thread; `None` while there is none. It ends when nothing waits.
static WAITING: Mutex<Option<Vec<Box<dyn Send>>>> = Mutex::new(None);

fn waiting() -> MutexGuard<'static, Option<Vec<Box<dyn Send>>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops `pieces`, which have `bytes` together.
#[cfg(any(feature = "tcp", test))]
pub(crate) fn drop_pieces<T: Send + 'static>(bytes: usize, pieces: Vec<T>) {
    drop_large(if pieces.len() > FEW { usize::MAX } else { bytes }, pieces);
}

/// Drops `memory`, which has `bytes`.
pub(crate) fn drop_large(bytes: usize, memory: impl Send + 'static) {
    if bytes <= SMALL {
        return drop(memory);
    }
    let mut waiting = waiting();
    if let Some(pieces) = &mut *waiting {
        if pieces.len() < WAITING_MAX {
            pieces.push(Box::new(memory));
        }
        return;
    }
    *waiting = Some(vec![Box::new(memory)]);
    if thread::spawn("gimmal-departing", run).is_err() {
        let pieces = waiting.take();
        drop(waiting);
        drop(pieces);
    }
}

fn run() {
    loop {
        let mut waiting = waiting();
        match waiting.as_mut().and_then(Vec::pop) {
            Some(piece) => {
                drop(waiting);
                drop(piece);
            }
            None => {
                *waiting = None;
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::mpsc::{Sender, channel},
        thread::ThreadId,
        time::Duration,
    };

    use super::*;

    struct Piece(Sender<ThreadId>);

    impl Drop for Piece {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    #[test]
    fn large_memory_goes_elsewhere_and_small_memory_here() {
        let (send, came) = channel();
        let next = || came.recv_timeout(Duration::from_secs(10)).unwrap();
        let here = std::thread::current().id();
        for _ in 0..3 {
            drop_large(SMALL, Piece(send.clone()));
            assert_eq!(next(), here);
            drop_large(SMALL + 1, Piece(send.clone()));
            assert_ne!(next(), here);
        }
        for (count, is_here) in [(FEW, true), (FEW + 1, false)] {
            drop_pieces(count * 4096, (0..count).map(|_| Piece(send.clone())).collect());
            assert!((0..count).all(|_| (next() == here) == is_here), "{count} pieces");
        }
        for _ in 0..WAITING_MAX * 4 {
            drop_large(SMALL + 1, Piece(send.clone()));
        }
        let ends = (0..WAITING_MAX * 4).filter(|_| next() != here).count();
        assert!(ends > 0);
    }
}
