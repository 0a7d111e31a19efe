//! A pool of threads behind a service: overload is refused at once instead of queued, and work whose caller has given
//! up is not begun.
//!
//! `pool`, `pool tcp://127.0.0.1:0` or, in the lab, `pool rdma://$GIMMAL_RXE_ADDR:7613`

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use gimmal::{CallOptions, CancelToken, Client, Config, Cx, Server};

#[gimmal::service]
trait Work {
    /// Takes `ms` milliseconds of one of the pool's threads.
    async fn grind(&self, cx: &Cx, ms: u64) -> u64;
}

/// Calls that the server takes from one client at once.
const SERVED: usize = 8;
/// Threads of the pool.
const THREADS: usize = 2;

/// What a handler waits for.
#[derive(Default)]
struct Slot {
    is_done: bool,
    waker: Option<Waker>,
}

struct Job {
    ms: u64,
    caller: CancelToken,
    slot: Arc<Mutex<Slot>>,
}

struct Pool {
    jobs: SyncSender<Job>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work for Pool {
    async fn grind(&self, cx: &Cx, ms: u64) -> u64 {
        let slot = Arc::<Mutex<Slot>>::default();
        // Never full: the server takes no more calls than the queue holds.
        let _ = self.jobs.try_send(Job { ms, caller: cx.cancelled(), slot: Arc::clone(&slot) });
        poll_fn(|context| {
            let mut slot = lock(&slot);
            slot.waker = Some(context.waker().clone());
            if slot.is_done { Poll::Ready(ms) } else { Poll::Pending }
        })
        .await
    }
}

/// One thread of the pool.
fn work(jobs: &Mutex<Receiver<Job>>, begun: &AtomicU64) {
    loop {
        let Ok(job) = lock(jobs).recv() else { return };
        if job.caller.is_cancelled() {
            continue; // nobody waits for it
        }
        begun.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(job.ms));
        let mut slot = lock(&job.slot);
        slot.is_done = true;
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("shm://pool-{}", std::process::id()));
    let (jobs, queue) = sync_channel(SERVED);
    let (queue, begun) = (Arc::new(Mutex::new(queue)), Arc::new(AtomicU64::new(0)));
    for _ in 0..THREADS {
        let (queue, begun) = (Arc::clone(&queue), Arc::clone(&begun));
        thread::spawn(move || work(&queue, &begun));
    }
    let config = Config { serving_max: SERVED, ..Config::default() };
    let server = Server::builder().service(serve_work(Pool { jobs })).config(config).listen(&url)?;
    let client = WorkClient::new(Client::connect(&server.address().to_string())?);

    // Every call is on its way before the first is waited for.
    let calls: Vec<_> = (0..3 * SERVED).map(|_| client.grind(50)).collect();
    let mut ends = BTreeMap::new();
    for call in calls {
        let end = match call.wait() {
            Ok(_) => "answered".to_owned(),
            Err(error) => error.to_string(),
        };
        *ends.entry(end).or_insert(0) += 1;
    }
    println!("{} calls at once, {SERVED} are taken:", 3 * SERVED);
    ends.iter().for_each(|(end, count)| println!("  {count:>2} {end}"));

    begun.store(0, Ordering::Relaxed);
    let impatient = client.with_options(CallOptions::default().timeout(Duration::from_millis(75)));
    let calls: Vec<_> = (0..SERVED).map(|_| impatient.grind(50)).collect();
    let answered = calls.into_iter().filter_map(|call| call.wait().ok()).count();
    thread::sleep(Duration::from_millis(200));
    let begun = begun.load(Ordering::Relaxed);
    println!("{SERVED} calls with 75 ms for 50 ms of work: {answered} answered, {begun} begun");
    Ok(())
}
