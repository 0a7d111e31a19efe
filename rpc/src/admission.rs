//! What layers made of a call before its bulk was brought, kept until the call begins.

use std::{
    any::Any,
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// What a [`Service`](crate::Service) made of a call in [`Service::admit`](crate::Service::admit). It is dropped with a call that is given
/// up before it begins.
pub struct Admitted(Box<dyn Any + Send>);

impl Admitted {
    /// Keeps `what`.
    pub fn new<T: Send + 'static>(what: T) -> Self {
        Self(Box::new(what))
    }

    /// Returns what is kept, if it is a `T`.
    #[must_use]
    pub fn into_inner<T: 'static>(self) -> Option<T> {
        self.0.downcast().ok().map(|what| *what)
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admitted")
    }
}

/// Of the call that a connection's worker begins next.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    is_there: AtomicBool,
    /// With the mark of its call.
    admitted: Mutex<Option<(u64, Admitted)>>,
}

impl Admission {
    pub(crate) fn put(&self, mark: u64, admitted: Admitted) {
        // One call begins at a time, so there is none before it.
        drop(self.swap(Some((mark, admitted))));
    }

    /// Of the call with this mark. Nearly always there is none, which costs a load.
    #[inline]
    pub(crate) fn take(&self, mark: u64) -> Option<Admitted> {
        if self.is_there.load(Ordering::Relaxed) { self.take_of(mark) } else { None }
    }

    #[cold]
    fn take_of(&self, mark: u64) -> Option<Admitted> {
        let (of, admitted) = self.swap(None)?;
        (of == mark).then_some(admitted)
    }

    /// What nobody took.
    pub(crate) fn clear(&self) -> Option<Admitted> {
        self.swap(None).map(|(_, admitted)| admitted)
    }

    fn swap(&self, next: Option<(u64, Admitted)>) -> Option<(u64, Admitted)> {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_there.store(next.is_some(), Ordering::Relaxed);
        std::mem::replace(&mut *admitted, next)
    }
}
