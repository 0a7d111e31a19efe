//! Closing a connection, in steps that each have a deadline.
//!
//! ```text
//!  Lingering ─ after 500 ms ─► rdma_disconnect ─► Draining ─ no completion is missing, or 500 ms ─►┐
//!      └─ what was flushed and the goodbye have left ──────────────────────────────────────────────►┴─►
//!  queue pair, registrations and id go to the control thread ─► Destroying ─ they are gone ─► Closed
//! ```
//! Sinks of unfinished pulls are kept until the queue pair is gone: until then the device may write them.

use std::time::Duration;

use gimmal_rdma::verbs::SendList;

use crate::{
    CloseReason, Time,
    verbs::{
        control::mailbox::{Command, ControlHandle},
        data::conn::{Closing, Conn, Phase, Stage},
    },
};

const LINGER: Duration = Duration::from_millis(500);
const DRAIN: Duration = Duration::from_millis(500);
/// How long to wait for LAST_WQE_REACHED, which not every device reports.
const LAST_RECEIVE: Duration = Duration::from_millis(20);
/// The control thread destroys within milliseconds. If it does not, the memory is leaked rather than reused.
const DESTROY: Duration = Duration::from_secs(10);

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Something is still missing.
    Waits,
    /// Everything is destroyed.
    Gone,
    /// The control thread did not answer. Memory that the device may still touch must be leaked.
    Stuck,
}

impl Conn {
    /// Begins to close. A later cause changes nothing.
    pub(crate) fn begin_close(
        &mut self,
        reason: CloseReason,
        now: Time,
        list: &mut SendList,
        control: &ControlHandle,
    ) {
        if matches!(self.phase, Phase::Closing(_)) {
            return;
        }
        let orderly = reason == CloseReason::Local && self.is_open() && self.fate.down.get().is_none();
        self.tx.discard();
        let lingers = orderly && self.say_goodbye(list);
        let stage = if lingers { Stage::Lingering } else { Stage::Draining };
        self.phase = Phase::Closing(Closing {
            reason,
            stage,
            deadline: now.plus(LINGER),
            receives_until: Time::NEVER,
        });
        self.look_at_runs();
        // With nothing to wait for, destroying disconnects soon enough.
        if !lingers && (!self.tx.has_no_signals() || self.rx.is_shared()) {
            self.disconnect(now, control);
        }
    }

    /// Sends the goodbye, behind everything that was flushed.
    fn say_goodbye(&mut self, list: &mut SendList) -> bool {
        let Some(lane) = &self.lane else { return false };
        self.tx.post_goodbye(&lane.qp, self.id, list).is_ok()
    }

    fn disconnect(&mut self, now: Time, control: &ControlHandle) {
        if let Phase::Closing(closing) = &mut self.phase {
            closing.stage = Stage::Draining;
            closing.deadline = now.plus(DRAIN);
            closing.receives_until = now.plus(LAST_RECEIVE);
        }
        control.send(Command::Disconnect { handle: self.handle });
    }

    /// Hands the lane over for destruction.
    pub(crate) fn hand_over(&mut self, control: &ControlHandle) {
        if let Some(lane) = self.lane.take() {
            control.send(Command::Destroy { handle: self.handle, lane });
        }
    }

    /// Takes the next step of closing.
    pub(crate) fn step_close(&mut self, now: Time, control: &ControlHandle) -> Step {
        loop {
            let Phase::Closing(closing) = &mut self.phase else { return Step::Waits };
            let late = now >= closing.deadline;
            let last_receive = self.fate.had_last_receive();
            match closing.stage {
                Stage::Lingering if late && !self.tx.has_no_signals() => self.disconnect(now, control),
                Stage::Lingering if !(self.tx.is_drained() || self.flushed || late) => return Step::Waits,
                // A slot that the device took for a message that never ended comes back with an error, or not at all.
                Stage::Lingering if self.rx.is_shared() => self.disconnect(now, control),
                Stage::Draining if self.rx.is_shared() && !last_receive && now < closing.receives_until => {
                    return Step::Waits;
                }
                Stage::Draining if !(self.tx.has_no_signals() || self.flushed || late) => return Step::Waits,
                Stage::Lingering | Stage::Draining => {
                    closing.stage = Stage::Destroying;
                    closing.deadline = now.plus(DESTROY);
                    self.hand_over(control);
                }
                Stage::Destroying if self.fate.is_destroyed() => return Step::Gone,
                Stage::Destroying if late => return Step::Stuck,
                _ => return Step::Waits,
            }
        }
    }
}
