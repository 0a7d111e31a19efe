//! Calls of the raw method without a handle for each: the highest rate that the RPC layer has.

use std::fmt;

use gimmal::local::{LocalClient, Pipeline};

use crate::{
    clock::Stamp,
    crew::{Calls, batch_of},
    error::BenchError,
    plan::Plan,
    recorder::Recorder,
    service::{BenchClient, failed},
    stopwatch::Stopwatch,
    target::{body, read},
};

/// Calls by their numbers.
pub(crate) struct Piper {
    client: BenchClient<LocalClient>,
    pipeline: Pipeline,
    body: Vec<u8>,
    digest: u64,
    is_thorough: bool,
    window: usize,
    watch: Stopwatch,
    /// Calls started, and those of them that ended.
    started: u64,
    done: u64,
}

impl fmt::Debug for Piper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piper").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

impl Piper {
    pub(crate) fn new(client: BenchClient<LocalClient>, plan: &Plan) -> Self {
        let body = body(plan.bytes);
        Self {
            pipeline: client.echo_pipeline(),
            client,
            digest: read(&body, plan.verify),
            is_thorough: plan.verify,
            body,
            window: plan.window,
            watch: Stopwatch::new(plan.window),
            started: 0,
            done: 0,
        }
    }

    /// Gives its client back, alone.
    pub(crate) fn end(self) -> LocalClient {
        let Self { client, pipeline, .. } = self;
        drop(pipeline);
        client.channel().clone()
    }
}

impl Calls for Piper {
    fn calls(&mut self, count: u64, recorder: &mut Recorder) -> Result<(), BenchError> {
        let last = self.done + count;
        let Self { pipeline, body, digest: wanted, is_thorough, window, watch, started, done, .. } = self;
        let (wanted, is_thorough) = (*wanted, *is_thorough);
        let is_right = |answer: &[u8]| wanted == read(answer, is_thorough);
        let batch = batch_of(*window);
        watch.begin(*done);
        let first = Stamp::now();
        let mut wrong = None;
        while *done < last {
            let before = *started;
            watch.start(before);
            let room = before..last.min(*done + *window as u64);
            *started = room.end;
            pipeline.call_all(room.map(|number| (number, &body[..]))).map_err(failed)?;
            watch.leave(before, *started);
            pipeline.wait(batch, |number, answer| {
                match answer {
                    Ok(answer) if is_right(answer) && number == *done => {}
                    Ok(_) => wrong = Some(BenchError::Wrong("another body, or another call's")),
                    Err(error) => wrong = Some(failed(error)),
                }
                *done += 1;
            });
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
            watch.come_back(*done, recorder);
        }
        watch.end(recorder);
        recorder.busy(Stamp::now().nanos_since(first));
        Ok(())
    }
}
