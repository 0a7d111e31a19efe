//! What a live server does: its health, connections and counters.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use gimmal_rpc::reflect::{ConnectionInfo, Health, ReflectionClient};
use serde_json::{Value, json};

use crate::{
    live::{Done, Server, explain},
    say::{is_unread, printable},
};

/// How often a server is shown, and how.
#[derive(Debug)]
pub(crate) struct Updates {
    pub(crate) interval: Duration,
    pub(crate) count: u64,
    pub(crate) json: bool,
}

/// What a server said of itself.
struct Seen {
    health: Health,
    connections: Vec<ConnectionInfo>,
    counters: Vec<(String, u64)>,
}

/// `gimmal health`: prints whether a service takes calls, and returns it.
pub(crate) fn health(server: &Server, service: String, json: bool) -> Done<bool> {
    let reflection = ReflectionClient::new(server.connect()?);
    let health = reflection.health(service).wait().map_err(explain)?;
    let text = if json { json!({ "health": word(health) }).to_string() } else { word(health).to_owned() };
    is_read(writeln!(io::stdout(), "{text}"))?;
    Ok(health == Health::Serving)
}

/// Whether somebody reads what was printed. The exit code is an answer of its own.
fn is_read(printed: io::Result<()>) -> io::Result<bool> {
    match printed {
        Err(error) if !is_unread(&error) => Err(error),
        printed => Ok(printed.is_ok()),
    }
}

/// `gimmal top`: shows a server until it is interrupted, also over its restarts. Returns whether it was healthy when
/// it was last asked.
pub(crate) fn top(server: &Server, updates: &Updates) -> Done<bool> {
    let reflection = ReflectionClient::new(server.connect()?);
    let mut before = None;
    let mut is_well = true;
    for round in 0..updates.count.max(1) {
        if round > 0 {
            std::thread::sleep(updates.interval);
        }
        let seen = seen(&reflection);
        is_well = seen.as_ref().is_ok_and(|seen| seen.health == Health::Serving);
        let text = match (&seen, updates.json) {
            (Ok(seen), true) => format!("{}\n", line(seen, before.as_ref(), updates.interval)),
            (Ok(seen), false) => printable(&page(seen, before.as_ref(), updates.interval)),
            // The client connects again by itself.
            (Err(error), true) => format!("{}\n", json!({ "error": error })),
            (Err(error), false) => format!("no answer: {}\n", printable(error)),
        };
        if let (Err(error), 0) = (&seen, round) {
            return Err(error.clone().into());
        }
        if !is_read(write!(io::stdout(), "{text}"))? {
            break;
        }
        before = seen.ok();
    }
    Ok(is_well)
}

fn seen(reflection: &ReflectionClient) -> Result<Seen, String> {
    Ok(Seen {
        counters: reflection.counters().wait().map_err(explain)?,
        connections: reflection.connections().wait().map_err(explain)?,
        health: reflection.health(String::new()).wait().map_err(explain)?,
    })
}

const fn word(health: Health) -> &'static str {
    match health {
        Health::Serving => "serving",
        Health::NotServing => "not serving",
        Health::Unknown => "unknown",
    }
}

/// How fast a counter moves; 0 after a restart, which set it back.
fn rate(name: &str, value: u64, before: Option<&Seen>, interval: Duration) -> Option<u64> {
    let (_, old) = before?.counters.iter().find(|(old, _)| old == name)?;
    let ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
    Some(value.saturating_sub(*old).saturating_mul(1000) / ms)
}

fn page(seen: &Seen, before: Option<&Seen>, interval: Duration) -> String {
    let number = seen.connections.len();
    let plural = if number == 1 { "" } else { "s" };
    let mut out = format!("health: {}, {number} connection{plural}\n", word(seen.health));
    for ConnectionInfo { peer, provider, device, authenticated, age_ms } in &seen.connections {
        let proved = if *authenticated { ", key proved" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(out, "  {provider:5} {peer} on {device}, {:.1} s{proved}", *age_ms as f64 / 1000.0);
    }
    let _ = writeln!(out, "{:20} {:>14} {:>12}", "counter", "total", "per second");
    for (name, value) in &seen.counters {
        if *value > 0 {
            let rate = rate(name, *value, before, interval).map(|rate| rate.to_string()).unwrap_or_default();
            let _ = writeln!(out, "{name:20} {value:>14} {rate:>12}");
        }
    }
    out
}

fn line(seen: &Seen, before: Option<&Seen>, interval: Duration) -> Value {
    let rates = seen
        .counters
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), Value::from(rate(name, *value, before, interval)?))));
    let counters = seen.counters.iter().map(|(name, value)| (name.clone(), Value::from(*value)));
    json!({
        "health": word(seen.health),
        "connections": seen.connections,
        "counters": counters.collect::<serde_json::Map<_, _>>(),
        "per_second": rates.collect::<serde_json::Map<_, _>>(),
    })
}
