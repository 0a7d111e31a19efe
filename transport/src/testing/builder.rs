//! Builders: no call undoes another.

use std::fmt;

/// A call of a builder's method: its name, and the call with an argument that is not the default.
pub type BuilderCall<B> = (&'static str, fn(B) -> B);

/// Makes every pair of `calls` in both orders. What is built, as `built` shows it, must be the same, and other than with
/// one of them only.
///
/// # Panics
/// Naming the pair where it is not.
pub fn no_call_undoes_another<B, S: PartialEq + fmt::Debug>(
    fresh: impl Fn() -> B,
    calls: &[BuilderCall<B>],
    built: impl Fn(B) -> S,
) {
    for (number, (first, call)) in calls.iter().enumerate() {
        assert_ne!(built(call(fresh())), built(fresh()), "{first} does nothing");
        for (second, other) in &calls[number + 1..] {
            let both = built(other(call(fresh())));
            assert_eq!(both, built(call(other(fresh()))), "{first} and {second} depend on their order");
            for alone in [call, other] {
                assert_ne!(both, built(alone(fresh())), "one of {first} and {second} undoes the other");
            }
        }
    }
}
