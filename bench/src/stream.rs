//! Streams: items per second and bytes per second of methods that stream down, up, and both ways.
//!
//! ```text
//!  slice:  down 64 B, up 64 B, both 64 B, down 4 KiB, …     next slice: the same …
//!  a call of its own for each; at most the stream's window of items is in flight, each way
//! ```

use clap::ValueEnum;
use gimmal::{CallOptions, Channel, Cx, Sink, Stream, stream::WINDOW};
use gimmal_engine::transport::Provider;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    args::Run,
    clock::Stamp,
    error::BenchError,
    floors::Phase,
    inline::InlineTarget,
    load::part,
    many::Stage,
    plan::{Layer, Mode},
    provider::{With, with_provider},
    recorder::Recorder,
    report::Report,
    rpc,
    target::{Target as _, body, digest, total},
};

/// The largest item that a server makes, bytes.
const ITEM_BYTES_MAX: u64 = 16 << 20;

/// Which way the items go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Direction {
    /// From the server.
    Down,
    /// To the server, which adds them up.
    Up,
    /// To the server and back.
    Both,
}

/// Bytes that serde is told to be bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item(Vec<u8>);

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Item;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Item, E> {
                Ok(Item(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// What is called.
#[gimmal::service]
pub(crate) trait Streams {
    /// So many items of so many bytes.
    async fn down(&self, cx: &Cx, items: u64, bytes: u64, down: Sink<Item>);
    /// The sum of what the items hold, and how many they were.
    async fn up(&self, cx: &Cx, up: Stream<Item>) -> (u64, u64);
    /// Items both ways.
    async fn both(&self, cx: &Cx, up: Stream<Item>, down: Sink<Item>);
}

/// What answers.
#[derive(Debug)]
pub(crate) struct Source;

impl Streams for Source {
    async fn down(&self, _: &Cx, items: u64, bytes: u64, mut down: Sink<Item>) {
        let item = Item(body(usize::try_from(bytes.min(ITEM_BYTES_MAX)).unwrap_or(0)));
        for _ in 0..items {
            if down.send(&item).await.is_err() {
                return;
            }
        }
    }

    async fn up(&self, _: &Cx, mut up: Stream<Item>) -> (u64, u64) {
        let (mut sum, mut items) = (0u64, 0);
        while let Some(Ok(item)) = up.next().await {
            sum = sum.wrapping_add(total(&item.0));
            items += 1;
        }
        (sum, items)
    }

    async fn both(&self, _: &Cx, mut up: Stream<Item>, mut down: Sink<Item>) {
        while let Some(Ok(item)) = up.next().await {
            if down.send(&item).await.is_err() {
                return;
            }
        }
    }
}

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

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Rpc(error.to_string())
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
                while let Some(item) = down.next_wait() {
                    self.check(&item.map_err(failed)?)?;
                    pace.item();
                }
                call.wait().map_err(failed)?;
            }
            Direction::Up => {
                let (mut up, call) = client.up();
                // A call that is over says why itself.
                while pace.items < items && up.send_wait(&self.item).is_ok() {
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
                } else if sent - pace.items < u64::from(WINDOW) && sink.try_send(&self.item).unwrap_or(false)
                {
                    sent += 1;
                } else {
                    break;
                }
            }
            let Some(item) = down.next_wait() else { break };
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
            Mode::Inline => {
                let client =
                    StreamsClient::new(rpc::inline(&url, &plan, ring_bytes)?).with_options(endless());
                self.slices(&client)?;
            }
            Mode::Handoff => {
                let client =
                    StreamsClient::new(rpc::handed_off(&url, &plan, ring_bytes)?).with_options(endless());
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
    stage.plan.window = WINDOW as usize;
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
        let made = part(name, bytes as f64, gaps, gaps.per_second());
        let bytes_per_s = Some(gaps.per_second() * bytes as f64);
        parts.push(crate::report::Part { bytes_per_s, ..made });
    }
    stage.report(&typed, parts, &all, done)
}

/// A ring whose frames hold the largest item.
fn ring_for(bytes: usize) -> u32 {
    crate::plan::ring_for(bytes + 64, 256 << 10)
}
