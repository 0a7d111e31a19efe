//! Progress of the lab, for people who watch.

/// One line on stderr for each step.
pub(crate) fn progress(step: &str) {
    eprintln!("gimmal-lab: {step}");
}
