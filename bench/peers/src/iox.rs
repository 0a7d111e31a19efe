//! iceoryx2's request-response, polled on both sides.

use std::{path::Path, time::Duration};

use anyhow::{Result, anyhow, ensure};
use gimmal::Instant;
use gimmal_bench::recorder::Recorder;
use iceoryx2::prelude::{LogLevel, NodeBuilder, ServiceName, ipc, set_log_level};

use crate::{
    case::BYTES,
    measure::{Job, Stretch, Times},
    post::Post,
};

/// For an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A name that nobody else has: that of the folder both sides know.
fn name(place: &Path) -> Result<ServiceName> {
    // It warns that it found no file of its own.
    set_log_level(LogLevel::Error);
    let text = format!("gimmal-peers{}", place.display());
    ServiceName::new(&text).map_err(|error| anyhow!("{error:?}"))
}

/// Until `stop`.
pub(crate) fn serve(post: &Post) -> Result<()> {
    let place = post.place.path();
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(|error| anyhow!("{error:?}"))?;
    let service = node.service_builder(&name(place)?).request_response::<[u8; BYTES], [u8; BYTES]>();
    let service = service.open_or_create().map_err(|error| anyhow!("{error:?}"))?;
    let server = service.server_builder().create().map_err(|error| anyhow!("{error:?}"))?;
    std::fs::write(place, "")?;
    while !post.is_over() {
        while let Some(request) = server.receive().map_err(|error| anyhow!("{error:?}"))? {
            let answer = request.loan_uninit().map_err(|error| anyhow!("{error:?}"))?;
            answer.write_payload(*request).send().map_err(|error| anyhow!("{error:?}"))?;
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// The job's calls after a tenth of that to warm up.
pub(crate) fn call(job: &Job) -> Result<Times> {
    let (place, calls) = (job.place.path(), job.calls);
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(|error| anyhow!("{error:?}"))?;
    let service = node.service_builder(&name(place)?).request_response::<[u8; BYTES], [u8; BYTES]>();
    let service = service.open_or_create().map_err(|error| anyhow!("{error:?}"))?;
    let client = service.client_builder().create().map_err(|error| anyhow!("{error:?}"))?;
    let body = [7; BYTES];
    let mut recorder = Recorder::new()?;
    let mut stretch = Stretch::begin(job);
    for number in 0..calls + calls / 10 {
        if number == calls / 10 {
            stretch = Stretch::begin(job);
        }
        let start = Instant::now();
        let request = client.loan_uninit().map_err(|error| anyhow!("{error:?}"))?;
        let pending = request.write_payload(body).send().map_err(|error| anyhow!("{error:?}"))?;
        let mut looks = 0u32;
        loop {
            if let Some(answer) = pending.receive().map_err(|error| anyhow!("{error:?}"))? {
                ensure!(*answer == body, "another body");
                break;
            }
            looks = looks.wrapping_add(1);
            ensure!(!looks.is_multiple_of(1 << 12) || start.elapsed() < PATIENCE, "no answer");
            std::hint::spin_loop();
        }
        if number >= calls / 10 {
            recorder.record(u64::try_from(start.elapsed().as_nanos())?);
        }
    }
    stretch.end(&mut recorder)
}
