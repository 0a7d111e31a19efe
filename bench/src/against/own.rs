//! Baselines that use what is there anyway: the bare ring, and another target on the same server.

use super::{Contender, Quantity, Role};
use crate::{
    error::BenchError,
    floors::{Floors, Phase},
    recorder::Recorder,
    target::Target,
};

/// A window of messages without an engine: copied, one published by one. The number is the messages in flight.
#[derive(Debug)]
pub(crate) enum Bare {
    /// Through a ring with flow control, copied in and out.
    Ring(usize),
    /// As the frame floor's frames: no flow control at all, as they always fit.
    Frames(usize),
}

impl Contender for Bare {
    fn name(&self) -> String {
        match self {
            Self::Ring(window) => format!("bare unbatched copying ring, window {window}"),
            Self::Frames(window) => format!("frames without flow control, window {window}"),
        }
    }

    fn label(&self) -> &'static str {
        "echoes per second"
    }

    fn quantity(&self) -> Quantity {
        Quantity::PerSecond
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        match self {
            Self::Ring(_) => floors.ring(count),
            Self::Frames(_) => floors.frames(count),
        }
    }
}

/// A block written by one core and read by the other.
#[derive(Debug)]
pub(crate) struct BareBlock {
    /// Of one block.
    pub(crate) bytes: usize,
}

impl Contender for BareBlock {
    fn name(&self) -> String {
        format!("bare loop: {} bytes written here, read there", self.bytes)
    }

    fn label(&self) -> &'static str {
        "bytes per second"
    }

    fn quantity(&self) -> Quantity {
        Quantity::Bytes
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.announce(Phase::Block)?;
        Ok(floors.block(count)? * self.bytes as f64)
    }
}

/// Another target on the same server: round trips, one at a time.
#[derive(Debug)]
pub(crate) struct Companion {
    name: &'static str,
    role: Role,
    target: Box<dyn Target>,
    recorder: Recorder,
}

impl Companion {
    /// `target`, whose window is 1.
    pub(crate) fn new(name: &'static str, role: Role, target: Box<dyn Target>) -> Result<Self, BenchError> {
        Ok(Self { name, role, target, recorder: Recorder::new()? })
    }
}

impl Contender for Companion {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn label(&self) -> &'static str {
        "RTT p50"
    }

    fn quantity(&self) -> Quantity {
        Quantity::RoundTrip
    }

    fn role(&self) -> Role {
        self.role
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.announce(Phase::Spin)?;
        self.recorder.reset();
        self.target.run(count, &mut self.recorder)?;
        Ok(self.recorder.fine_median_ns())
    }
}
