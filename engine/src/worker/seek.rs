//! One frame at a time, for callers that wait for one message: [`Inline::seek`](crate::Inline::seek).

use gimmal_transport::{Limit, Look, Port, Run, Time, Violation};

use super::{
    Worker,
    receive::{is_next, is_numbered, plain},
};
use crate::{
    app::{App, Nothing, Pick},
    connection::Connection,
    io::Io,
    table::ConnTable,
};

impl<P: Port, A: App> Worker<P, A> {
    /// Hands out one of the frames that lie open, unless `pick` takes it. `None`: there is none. What a turn does beside that
    /// comes with the next one, and so do the accounts of a run that was not sought to its end.
    #[inline(always)]
    pub(crate) fn seek(&mut self, now: Time, pick: &mut impl Pick<A>) -> Option<bool> {
        let Self { port, app, conns, sought, unsent, beats, .. } = self;
        let sought = directly!(port => Self::seek_on(port, (app, conns), sought, now, pick));
        if sought.is_some() {
            *unsent = true;
            beats.worked();
        }
        sought
    }

    #[inline(always)]
    fn seek_on<Q: Port>(
        port: &mut Q,
        (app, conns): (&mut A, &mut ConnTable<Connection>),
        sought: &mut Option<Run>,
        now: Time,
        pick: &mut impl Pick<A>,
    ) -> Option<bool> {
        let mut is_again = false;
        loop {
            if std::mem::take(&mut conns.cut) {
                Self::end_sought(port, conns, sought, Ok(()), now);
            }
            let run = match sought {
                Some(run) => run,
                None => match port.next_run(Limit::One) {
                    Look::Run(run) => sought.insert(run),
                    Look::Events | Look::Nothing if is_again => return None,
                    // It may mean that everybody was asked since the last time.
                    Look::Events | Look::Nothing => {
                        is_again = true;
                        continue;
                    }
                },
            };
            let (conn, is_numbered) = (run.conn(), is_numbered::<Q>(run));
            let Some(frame) = run.next_frame() else {
                Self::end_sought(port, conns, sought, Ok(()), now);
                continue;
            };
            let mut io = Io { port, conns, now };
            match plain(frame) {
                Some(message) if !is_numbered || is_next(io.conns, frame) => {
                    return Some(Self::hand_out(app, &mut io, conn, message, pick));
                }
                _ => {
                    let outcome = Self::other_of_run(app, &mut io, frame, &mut Nothing);
                    if outcome.is_err() {
                        Self::end_sought(port, conns, sought, outcome, now);
                    }
                    return Some(false);
                }
            }
        }
    }

    /// The rest of a run of which some frames were sought out.
    #[cold]
    pub(super) fn receive_sought(&mut self, now: Time, pick: &mut impl Pick<A>) -> usize {
        let Self { port, app, conns, sought, .. } = self;
        if std::mem::take(&mut conns.cut) {
            Self::end_sought(port, conns, sought, Ok(()), now);
        }
        match sought.take() {
            Some(run) => Self::receive_run(port, (app, conns), run, now, pick),
            None => 0,
        }
    }

    pub(super) fn end_sought<Q: Port>(
        port: &mut Q,
        conns: &mut ConnTable<Connection>,
        sought: &mut Option<Run>,
        outcome: Result<(), Violation>,
        now: Time,
    ) {
        if let Some(mut run) = sought.take() {
            Self::end_run(port, conns, &mut run, outcome, now);
        }
    }
}
