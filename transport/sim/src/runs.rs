//! Frames by runs: over a copy of the next frames in an inbox.
//!
//! ```text
//!  inbox: frame frame frame Closed ──── lend_run: the first few, looked at ────► Run
//!         taken ─────────► only these ◄──── end_run: released, unless kept ──── as far as it was taken
//! ```

use std::time::Duration;

use super::{
    conn::{Inbound, Side},
    world::{Happening, World},
};
use gimmal_transport::{
    DataPath, Position, Run, Tag, Violation,
    frame::span,
    parts::{Arena, FRAMES_MAX},
};

/// The run that is out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) conn: u64,
    pub(super) side: Side,
}

impl World {
    /// How many frames the next run has; none: they are found by a later look.
    fn run_length(&mut self) -> usize {
        if !self.config.shuffle {
            return FRAMES_MAX;
        }
        match self.rng.below(4) {
            0 => 0,
            1 => 1,
            2 => 2,
            _ => FRAMES_MAX,
        }
    }

    /// At most `limit` frames of the connection whose turn it is, if they come next there.
    pub(super) fn lend_run(&mut self, port: u64, limit: usize, arena: &mut Arena) -> Option<(Begun, Run)> {
        let (id, side) = self.choose(port, true)?;
        let most = self.run_length().min(limit);
        let end = &self.conns.get(&id)?.ends[side];
        let (conn, negotiated) = (end.id?, end.negotiated.as_ref()?);
        let in_ring = negotiated.path == DataPath::Ring;
        let start = if in_ring { end.rx.read } else { Position(0) };
        let (mut at, mut place) = (start, None);
        let mut frames: Vec<(Tag, &[u8])> = Vec::new();
        for inbound in end.inbox.iter().take(most) {
            let Inbound::Frame { payload, tag, end: to, slot, chain_end } = inbound else { break };
            at = at.plus(span(payload.len()) as u64);
            let follows = if in_ring { at == *to } else { frames.is_empty() || Some(*slot) == place };
            if !follows {
                break;
            }
            place = (!in_ring).then_some(*slot);
            frames.push((*tag, payload));
            if *chain_end && end.device.arrivals {
                break;
            }
        }
        if frames.is_empty() {
            if most > 0 {
                self.misplaced(id, side);
            }
            return None;
        }
        let run = arena.lend(conn, place, start, &frames).ok()?;
        Some((Begun { conn: id, side }, run))
    }

    /// What comes next is not where a reader of the ring looks: there it finds no frame.
    #[cold]
    fn misplaced(&mut self, id: u64, side: Side) {
        let front = self.conns.get(&id).and_then(|conn| conn.ends[side].inbox.front());
        let Some(Inbound::Frame { payload, .. }) = front else { return };
        let bytes = span(payload.len());
        self.close_end(id, side, Violation::Chain { bytes }.into());
        self.travel(id, side, Duration::ZERO, Happening::Goodbye { conn: id, from: side });
    }

    /// The frames that were taken from `run` were read. Whether the last of a chain is among them.
    pub(super) fn end_run(&mut self, port: u64, begun: Begun, run: &Run) -> bool {
        let Begun { conn: id, side } = begun;
        let mut has_ended = false;
        for index in 0..run.taken() {
            // A connection that was closed meanwhile has none left.
            let front = self.conns.get(&id).and_then(|conn| conn.ends[side].inbox.front());
            if !matches!(front, Some(Inbound::Frame { .. })) {
                break;
            }
            if let Some((_, Inbound::Frame { payload, end, slot, chain_end, .. })) = self.take(port, id, side)
            {
                has_ended |= chain_end;
                if !run.has_kept(index) {
                    self.release(id, side, (end, slot), &payload);
                }
            }
        }
        has_ended
    }
}
