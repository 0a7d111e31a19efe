//! Measured beside a bare ring.
