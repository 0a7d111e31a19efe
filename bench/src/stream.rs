//! Streams: items per second and bytes per second of methods that stream down, up, and both ways.
//!
//! ```text
//!  slice:  down 64 B, up 64 B, both 64 B, down 4 KiB, …     next slice: the same …
//!  a call of its own for each; at most 32 items are in flight both ways
//! ```

use gimmal::{CallOptions, Channel, Sink};
use gimmal_engine::transport::Provider;

use crate::{
    args::{Direction, Run},
    clock::Stamp,
    error::BenchError,
    floors::Phase,
    inline::InlineTarget,
    items::{Item, StreamsClient},
    many::Stage,
    plan::{Layer, Mode},
    provider::{With, with_provider},
    record::Part,
    recorder::Recorder,
    report::Report,
    service::{self, failed},
    target::{Target as _, body, digest, total},
};

/// Items that are on their way both ways at most.
const WINDOW: usize = 32;

/// Items of one size, one way.
struct Lane {
    direction: Direction,
    item: Item,
    is_thorough: bool,
    /// From one item to the next.
    gaps: Recorder,
}

/// Notes when items came or went.
struct Pace<'a> {
    recorder: &'a mut Recorder,
    first: Stamp,
    last: Stamp,
    items: u64,
}

impl<'a> Pace<'a> {
    fn start(recorder: &'a mut Recorder) -> Self {
        let now = Stamp::now();
        Self { recorder, first: now, last: now, items: 0 }
    }

    fn item(&mut self) {
        let now = Stamp::now();
        self.recorder.record(now.nanos_since(self.last));
        (self.last, self.items) = (now, self.items + 1);
    }

    /// The call has ended: that counts too.
    fn end(self, wanted: u64) -> Result<(), BenchError> {
        if self.items == wanted { Ok(()) } else { Err(BenchError::Wrong("another number of items")) }
    }
}

/// What broke off took its time too.
impl Drop for Pace<'_> {
    fn drop(&mut self) {
        self.recorder.busy(Stamp::now().nanos_since(self.first));
    }
}

impl Lane {
    fn check(&self, item: &Item) -> Result<(), BenchError> {
        let is_same = if self.is_thorough {
            *item == self.item
        } else {
            item.0.len() == self.item.0.len() && digest(&item.0) == digest(&self.item.0)
        };
        if is_same { Ok(()) } else { Err(BenchError::Wrong("another item")) }
    }

    /// One call with `items` of them.
    fn run<C: Channel>(
        &self,
        client: &StreamsClient<C>,
        items: u64,
        recorder: &mut Recorder,
    ) -> Result<(), BenchError> {
        let mut pace = Pace::start(recorder);
        match self.direction {
            Direction::Down => {
                let (mut down, call) = client.down(items, self.item.0.len() as u64);
                while let Some(item) = down.blocking_next() {
                    self.check(&item.map_err(failed)?)?;
                    pace.item();
                }
                call.wait().map_err(failed)?;
            }
            Direction::Up => {
                let (mut up, call) = client.up();
                // A call that is over says why itself.
                while pace.items < items && up.blocking_send(&self.item).is_ok() {
                    pace.item();
                }
                up.finish();
                let wanted = (total(&self.item.0).wrapping_mul(items), items);
                if call.wait().map_err(failed)? != wanted {
                    return Err(BenchError::Wrong("another sum of the items"));
                }
            }
            Direction::Both => self.both(client, items, &mut pace)?,
        }
        pace.end(items)
    }

    fn both<C: Channel>(
        &self,
        client: &StreamsClient<C>,
        items: u64,
        pace: &mut Pace<'_>,
    ) -> Result<(), BenchError> {
        let (up, mut down, call) = client.both();
        let (mut up, mut sent) = (Some(up), 0);
        loop {
            while let Some(sink) = &mut up {
                // No more than come back without our reading them.
                if sent == items {
                    up.take().into_iter().for_each(Sink::finish);
                } else if sent - pace.items < WINDOW as u64 && sink.try_send(&self.item).unwrap_or(false) {
                    sent += 1;
                } else {
                    break;
                }
            }
            let Some(item) = down.blocking_next() else { break };
            self.check(&item.map_err(failed)?)?;
            pace.item();
        }
        drop(up);
        call.wait().map_err(failed)
    }
}

/// A slice takes as long as its items do.
fn endless() -> CallOptions {
    CallOptions::default().timeout(None)
}

/// Every lane in turns.
struct Measure<'a> {
    stage: &'a mut Stage,
    run: &'a Run,
    lanes: &'a mut [Lane],
}

impl Measure<'_> {
    fn slices<C: Channel>(&mut self, client: &StreamsClient<C>) -> Result<(), BenchError> {
        let warmup = self.run.warmup.unwrap_or_else(|| (self.run.count / 10).clamp(1, 20_000));
        self.stage.announce(Phase::Test)?;
        for lane in &*self.lanes {
            lane.run(client, warmup, &mut Recorder::new()?)?;
        }
        let slices = self.run.pairs.min(self.run.count);
        for slice in 0..slices {
            let items = self.run.count * (slice + 1) / slices - self.run.count * slice / slices;
            for lane in &mut *self.lanes {
                let mut gaps = Recorder::new()?;
                let done = lane.run(client, items, &mut gaps);
                lane.gaps.add(&gaps)?;
                done?;
            }
        }
        self.stage.announce(Phase::Idle)
    }
}

impl With for Measure<'_> {
    type Output = ();

    fn with<P: Provider>(mut self, provider: P) -> Result<(), BenchError> {
        let (plan, ring_bytes) = (self.stage.plan.clone(), self.stage.ring_bytes);
        let control = InlineTarget::connect(&provider, &self.stage.address, &plan, ring_bytes)?;
        let url = control.served_at().to_owned();
        match plan.mode {
            Mode::Inline | Mode::Asleep => {
                let client =
                    StreamsClient::new(service::inline(&url, &plan, ring_bytes)?).with_options(endless());
                self.slices(&client)?;
            }
            Mode::Handoff => {
                let client =
                    StreamsClient::new(service::handed_off(&url, &plan, ring_bytes)?).with_options(endless());
                self.slices(&client)?;
            }
        }
        Box::new(control).close();
        Ok(())
    }
}

/// Items and bytes per second, each way and each size. Beside the report the reason when it broke off.
///
/// # Errors
/// When nothing was measured.
#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
pub(crate) fn streams(
    run: &Run,
    directions: &[Direction],
) -> Result<(Report, Option<BenchError>), BenchError> {
    let largest = run.sizes().into_iter().max().unwrap_or(64);
    let typed = Run { layer: Layer::Typed, ..run.clone() };
    let mut stage = Stage::set(&typed, "stream", ring_for(largest))?;
    stage.plan.window = WINDOW;
    let mut lanes = Vec::new();
    for bytes in run.sizes() {
        for direction in directions {
            let (item, is_thorough) = (Item(body(bytes)), run.verify);
            lanes.push(Lane { direction: *direction, item, is_thorough, gaps: Recorder::new()? });
        }
    }
    let done = with_provider(run.provider, Measure { stage: &mut stage, run, lanes: &mut lanes });
    let (mut parts, mut all) = (Vec::new(), Recorder::new()?);
    for Lane { direction, item, gaps, .. } in &lanes {
        all.add(gaps)?;
        let bytes = item.0.len();
        let name = format!("{}, {bytes} B", format!("{direction:?}").to_lowercase());
        let made = Part::of(name, bytes as f64, gaps, gaps.per_second());
        let bytes_per_s = Some(gaps.per_second() * bytes as f64);
        parts.push(Part { bytes_per_s, ..made });
    }
    stage.report(&typed, parts, &all, done)
}

/// A ring whose frames hold the largest item.
fn ring_for(bytes: usize) -> u32 {
    crate::plan::ring_for(bytes + 64, 256 << 10)
}
