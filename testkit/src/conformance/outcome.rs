//! How the steps of a case end.

/// What a case says: nothing, or what went wrong.
pub(super) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Ends the case when something does not hold.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+).into());
        }
    };
}
pub(super) use ensure;
