//! Both ends of an engine's echo on one thread: what it costs in instructions, without any waiting.

use std::time::Duration;

use gimmal_engine::{
    Idle, Inline, SendError,
    transport::{
        Address, ConnId, ConnectOptions, Connecting as _, Gate as _, Incoming as _, ListenOptions,
        Listener as _, Provider,
    },
};

use crate::{
    clock::{Patience, Relax},
    echo::Echo,
    error::BenchError,
    inline::{Caller, fill},
    plan::{ECHO, TOUCH, engine_plan, head},
    target::body,
};

/// A caller and an echo, turned one after the other.
#[derive(Debug)]
pub struct Pair<P: Provider> {
    caller: Inline<P, Caller>,
    echo: Inline<P, Echo>,
    conn: ConnId,
    gate: P::Gate,
    body: Vec<u8>,
}

impl<P: Provider> Pair<P> {
    /// Connects the two through `address`, for bodies of `bytes`.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connect(provider: &P, address: &Address, bytes: usize) -> Result<Self, BenchError> {
        Self::connect_among(provider, address, bytes, 0)
    }

    /// As [`Pair::connect`], with `idle` more connections between the two, that do nothing.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn connect_among(
        provider: &P,
        address: &Address,
        bytes: usize,
        idle: usize,
    ) -> Result<Self, BenchError> {
        let plan = engine_plan(bytes, 0, Idle::Spin)?;
        let mut caller = Inline::new(provider, &plan, Caller::default())?;
        let mut echo = Inline::new(provider, &plan, Echo::default())?;
        let mut listener = provider.listen(address, &ListenOptions::default())?;
        let (near, far) = (caller.handle(), echo.handle());
        let mut conns = Vec::new();
        for _ in 0..=idle {
            let mut connecting =
                provider.connect(&listener.address(), near.gate(), &ConnectOptions::default())?;
            let mut patience = Patience::new(Relax::Yield);
            while caller.app().opened.is_none() {
                if let Some(incoming) = listener.accept(Duration::ZERO)? {
                    let link =
                        incoming.accept(far.gate()).map_err(|error| BenchError::Closed(error.to_string()))?;
                    echo.adopt(link);
                }
                if let Some(link) = connecting.poll(Duration::ZERO) {
                    caller.adopt(link?);
                }
                caller.turn();
                echo.turn();
                if !patience.go_on() {
                    return Err(BenchError::stalled("connecting to ourselves"));
                }
            }
            conns.extend(caller.app_mut().opened.take());
        }
        let conn = conns.first().copied().ok_or(BenchError::Wrong("no connection"))?;
        let gate = near.gate().clone();
        Ok(Self { caller, echo, conn, gate, body: body(bytes) })
    }

    /// `window` messages there and back.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn echo(&mut self, window: u64) -> Result<(), BenchError> {
        let Self { caller, conn, body, .. } = self;
        let wanted = caller.app().answered + window;
        caller
            .with(|_, io| -> Result<(), SendError> {
                for aux in 0..window {
                    io.send(*conn, head(ECHO, aux), body.len(), fill(body))?;
                }
                Ok(())
            })
            .map_err(|error| BenchError::Closed(error.to_string()))?;
        self.await_answers(wanted).map(|_| ())
    }

    /// `window` loans of `bytes`, whose first words both ends touch, and the answers. Returns the turns it took.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn lend(&mut self, bytes: usize, window: u64) -> Result<u32, BenchError> {
        let (conn, first) = (self.conn, self.caller.app().answered);
        let closed = |error: &dyn std::fmt::Display| BenchError::Closed(error.to_string());
        for number in first..first + window {
            let mut loan = self.gate.allocate(conn, bytes).map_err(|error| closed(&error))?;
            if let Some(word) = loan.first_chunk_mut() {
                *word = number.to_le_bytes();
            }
            self.caller
                .with(|_, io| io.send_with_loan(conn, head(TOUCH, number), loan, 0, |_| Some(0)))
                .map_err(|refused| closed(&refused.error))?;
        }
        let turns = self.await_answers(first + window)?;
        let mut read = self.caller.app_mut().loans_read.drain(..);
        if read.any(|(number, found)| number != found) {
            return Err(BenchError::Wrong("another word of a loan"));
        }
        Ok(turns)
    }

    /// Turns until the caller has `wanted` answers in all. Returns how many turns that were.
    fn await_answers(&mut self, wanted: u64) -> Result<u32, BenchError> {
        let Self { caller, echo, .. } = self;
        // Verbs and sim need more turns than one. Shared memory does not, but a connection that was idle for long, as
        // when the scheduler took us away, is looked at only now and then.
        let mut patience = Patience::new(Relax::Yield);
        for turn in 1u32.. {
            echo.turn();
            caller.turn();
            if caller.app().answered == wanted {
                return Ok(turn);
            }
            if turn.is_multiple_of(1000) && !patience.go_on() {
                break;
            }
        }
        Err(BenchError::stalled("echoing to ourselves"))
    }

    /// Turns that find nothing, both ends'.
    pub fn idle(&mut self) -> usize {
        self.caller.turn() + self.echo.turn()
    }
}

#[cfg(all(test, feature = "shm"))]
mod tests {
    use gimmal_transport::shm::Shm;

    use super::*;

    #[test]
    fn every_message_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Shm { path: folder.path().join("pair") };
        let mut pair = Pair::connect(&Shm, &address, 64).unwrap();
        for window in [1, 7, 64] {
            for _ in 0..1000 {
                pair.echo(window).unwrap();
            }
        }
        assert_eq!(pair.caller.app().answered, 72_000);
        assert_eq!(pair.idle(), 0);
    }

    /// Where bulk is read in place, its answer leaves in the turn that brought the offer.
    #[test]
    fn a_loan_that_is_touched_needs_no_turn_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Shm { path: folder.path().join("pair") };
        let mut pair = Pair::connect(&Shm, &address, 64).unwrap();
        // The echo may not have heard yet that it is connected.
        pair.lend(1 << 20, 1).unwrap();
        for _ in 0..100 {
            // That the loan before is free again would come first.
            while pair.idle() > 0 {}
            assert_eq!(pair.lend(1 << 20, 1).unwrap(), 1);
        }
        pair.lend(1 << 10, 40).unwrap();
        assert_eq!(pair.caller.app().answered, 141);
    }
}
