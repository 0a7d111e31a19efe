//! A place for one value, whose taker goes to sleep when it is not there.
//!
//! ```text
//!  giver:  put ; wake the registered taker          taker:  take ; register ; take again ; sleep
//! ```
//! Either the giver finds the taker registered, or the taker's second look finds the value.

/// Takes the value; when it is not there, registers for being woken and looks once more.
#[inline]
pub fn take_or_register<T>(take: impl Fn() -> Option<T>, register: impl FnOnce()) -> Option<T> {
    take().or_else(|| {
        register();
        take()
    })
}
