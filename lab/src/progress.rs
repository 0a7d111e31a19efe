//! What the lab is doing, for whoever watches.

/// One line on stderr for each step.
pub(crate) fn progress(step: &str) {
    eprintln!("gimmal-lab: {step}");
}
