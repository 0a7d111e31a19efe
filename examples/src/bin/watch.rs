//! A server that streams readings, and a reader that is slower than it: back-pressure from end to end.
//!
//! `watch`, `watch tcp://127.0.0.1:0` or, in the lab, `watch rdma://$GIMMAL_RXE_ADDR:7611`

#![forbid(unsafe_code)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gimmal::{CallOptions, Client, Config, Cx, Sink};

#[gimmal::service]
trait Gauge {
    /// Readings of a sensor, as fast as they are taken.
    async fn watch(&self, cx: &Cx, sensor: String, readings: Sink<u64>) -> u64;
    /// Ends all watching after the next reading.
    #[oneway]
    async fn stop(&self, cx: &Cx);
}

#[derive(Clone, Default)]
struct Sensor {
    taken: Arc<AtomicU64>,
    stopped: Arc<AtomicU64>,
}

impl Gauge for Sensor {
    async fn watch(&self, _: &Cx, _: String, mut readings: Sink<u64>) -> u64 {
        loop {
            let reading = self.taken.fetch_add(1, Ordering::Relaxed);
            if readings.send(&reading).await.is_err() || self.stopped.load(Ordering::Relaxed) > 0 {
                return reading + 1;
            }
        }
    }

    async fn stop(&self, _: &Cx) {
        self.stopped.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("shm://watch-{}", std::process::id()));
    let sensor = Sensor::default();
    let taken = Arc::clone(&sensor.taken);
    let server = gimmal::serve(&url, serve_gauge(sensor))?;
    // A window of 4 KiB, so that a sensor that is ahead is soon seen to wait.
    let narrow = Config { stream_window: 4096, ..Config::default() };
    let channel = Client::builder().config(narrow).connect(&server.address().to_string())?;
    let long = CallOptions::default().timeout(Duration::from_secs(60));
    let client = GaugeClient::new(channel).with_options(long);
    let (mut readings, call) = client.watch("boiler".to_owned());
    for expected in 0..10 {
        let reading = readings.blocking_next().ok_or("the stream ended")??;
        assert_eq!(reading, expected);
        std::thread::sleep(Duration::from_millis(10));
    }
    let ahead = taken.load(Ordering::Relaxed) - 10;
    println!("read 10, and the sensor is {ahead} ahead: it waits");
    assert!(ahead <= 1000, "no back-pressure");
    client.stop().wait()?;
    let mut read = 10;
    while let Some(reading) = readings.blocking_next() {
        assert_eq!(reading?, read);
        read += 1;
    }
    println!("stopped: {} readings sent, {read} read", call.wait()?);
    Ok(())
}
