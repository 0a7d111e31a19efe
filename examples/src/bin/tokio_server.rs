//! gimmal and axum in one process, on one tokio runtime: handlers of both use its timers, its locks and the same state.
//!
//! `tokio_server` tries itself and ends; `tokio_server serve` serves until Ctrl-C; an address, as in
//! `tokio_server tcp://127.0.0.1:0`, says where.

#![forbid(unsafe_code)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    routing::get,
};
use gimmal::{Cx, Server, Sink, tokio::Tokio};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Mutex, watch},
};

#[gimmal::service]
trait Visits {
    /// Counts a visit of `name`; returns its visits so far.
    async fn visit(&self, cx: &Cx, name: String) -> u64;
    /// Sends the number of all visits whenever it has grown, until the server shuts down.
    async fn follow(&self, cx: &Cx, totals: Sink<u64>);
}

#[derive(Clone)]
struct Book {
    visits: Arc<Mutex<BTreeMap<String, u64>>>,
    total: watch::Sender<u64>,
}

impl Visits for Book {
    async fn visit(&self, _: &Cx, name: String) -> u64 {
        let mut visits = self.visits.lock().await;
        tokio::time::sleep(Duration::from_millis(1)).await; // a database would take as long
        let count = visits.entry(name).or_default();
        *count += 1;
        self.total.send_modify(|total| *total += 1);
        *count
    }

    async fn follow(&self, cx: &Cx, mut totals: Sink<u64>) {
        let mut total = self.total.subscribe();
        let draining = cx.draining();
        tokio::pin!(draining);
        loop {
            let now = *total.borrow_and_update();
            if totals.send(&now).await.is_err() {
                return;
            }
            tokio::select! {
                changed = total.changed() => if changed.is_err() { return },
                () = &mut draining => return,
            }
        }
    }
}

/// Answers over HTTP how often `name` has visited.
async fn page(State(book): State<Book>, Path(name): Path<String>) -> String {
    let visits = book.visits.lock().await;
    format!("{name}: {}", visits.get(&name).unwrap_or(&0))
}

/// Calls of this process to both servers.
async fn try_both(url: String, http: std::net::SocketAddr) -> anyhow::Result<()> {
    let client = tokio::task::spawn_blocking(move || gimmal::connect(&url)).await??;
    let client = VisitsClient::new(client);
    let (mut totals, followed) = client.follow();
    for _ in 0..3 {
        client.visit("Ada".to_owned()).await?;
    }
    while let Some(total) = totals.next().await {
        if total? == 3 {
            break;
        }
    }
    drop((totals, followed));
    let mut stream = TcpStream::connect(http).await?;
    stream.write_all(b"GET /Ada HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("over HTTP, {}", answer.lines().last().unwrap_or_default());
    Ok(())
}

async fn serve(url: &str, until_ctrl_c: bool) -> anyhow::Result<()> {
    let book = Book { visits: Arc::default(), total: watch::Sender::new(0) };
    let server =
        Server::builder().service(serve_visits(book.clone())).runtime(Tokio::current()?).listen(url)?;
    let url = server.address().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let http = listener.local_addr()?;
    println!("serving on {url} and http://{http}");

    let (stop, stopped) = watch::channel(());
    let end = |mut stopped: watch::Receiver<()>| async move {
        // A sender that is gone says the same.
        let _ = stopped.changed().await;
    };
    let router = Router::new().route("/{name}", get(page)).with_state(book);
    let http_server = axum::serve(listener, router).with_graceful_shutdown(end(stopped.clone()));
    let http_server = tokio::spawn(http_server.into_future());
    let server = tokio::spawn(server.serve_until(end(stopped), Duration::from_secs(5)));

    if until_ctrl_c {
        tokio::signal::ctrl_c().await?;
    } else {
        try_both(url, http).await?;
    }
    stop.send(())?;
    http_server.await??;
    println!("all calls had ended: {}", server.await?);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let (words, urls): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|word| word == "serve");
    let url = urls.into_iter().next().unwrap_or_else(|| format!("shm://visits-{}", std::process::id()));
    let serve = serve(&url, !words.is_empty());
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve)
}
