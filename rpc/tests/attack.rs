//! A hostile peer on shared memory: it owns its segment and its socket and writes anything into both.
//!
//! Three victims: an engine in step with the attacker, where a run is its seed; an engine that another process attacks
//! as fast as it can; and a server, to which honest clients go on talking. `GIMMAL_HOSTILE_OPERATIONS` (100,000) is how
//! many operations each victim gets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;
mod peer;

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gimmal_rpc::Instant;
use gimmal_rpc::engine::transport::Address;
use gimmal_testkit::{
    Attacker, ChildGuard, Choices,
    child::{descriptors, this_program},
};
use peer::{
    script::{Method, Speaker},
    victim::{Victim, place},
};

/// What the other process is told: path, seed, operations, methods.
const ROLE: &str = "GIMMAL_ATTACK";
/// Memory that a process may have more after an attack than before, MiB: its caches, not what peers asked for.
const GROWTH_MAX_MIB: u64 = 96;

/// The tests measure their process, so they take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn operations() -> u64 {
    std::env::var("GIMMAL_HOSTILE_OPERATIONS").map_or(100_000, |wanted| wanted.parse().expect("a number"))
}

/// Methods that may be called with any arguments: the others do what they are told, for as long as they are told.
fn methods() -> Vec<Method> {
    let all = gimmal_rpc::Service::methods(&common::serve_probe(common::Prober::default()));
    let harmless = ["echo", "divide", "measure", "sum", "hang", "left", "reverse", "refuse"];
    let chosen = all.iter().filter(|method| harmless.contains(&method.name));
    chosen.map(|method| (method.id, method.signature_hash)).collect()
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn report(what: &str, counts: &BTreeMap<String, u64>) {
    println!("{what}:");
    for (name, count) in counts {
        println!("  {count:>9}  {name}");
    }
}

/// R46, R66 to R72, R74, R91: three attackers and a victim by turns, on one thread.
#[test]
fn an_engine_in_step_with_its_attackers() {
    const SEEDS: u64 = 10;
    let _alone = alone();
    let share = operations() / SEEDS;
    let (mut deeds, mut reasons) = (BTreeMap::new(), BTreeMap::new());
    let (mut done, mut accepted, mut rejected) = (0, 0, 0);
    let started = Instant::now();
    for seed in 0..SEEDS {
        let path = place("step");
        let mut victim = Victim::new(&path, seed);
        let mut attackers: Vec<_> = (0..3)
            .map(|number| {
                let choices = Choices::Seed(seed * 1000 + number);
                Attacker::new(&path, choices, Speaker::new(methods()))
            })
            .collect();
        let mut choices = Choices::Seed(seed);
        while attackers.iter().map(Attacker::operations).sum::<u64>() < share {
            for attacker in &mut attackers {
                for _ in 0..choices.below(12) {
                    attacker.operate();
                }
            }
            victim.accept();
            for _ in 0..=choices.below(3) {
                victim.turn(choices.below(400_000));
            }
        }
        for attacker in &attackers {
            for (deed, count) in attacker.counts() {
                *deeds.entry(format!("{deed:?}")).or_default() += count;
                done += count;
            }
        }
        drop(attackers);
        victim.outlive();
        accepted += victim.accepted;
        rejected += victim.rejected();
        for (reason, count) in victim.reasons() {
            *reasons.entry(reason.clone()).or_default() += count;
        }
    }
    report("operations", &deeds);
    report("ends", &reasons);
    println!(
        "{done} hostile operations in {:?}, {accepted} connections, {rejected} refused",
        started.elapsed()
    );
    // That each rule was broken is what makes the count mean something.
    let rules = [
        "bytes, the limit is",
        "beyond the credit",
        "is outside of",
        "impossible bulk offer",
        "without its seals",
        "second grant",
        "closed by the peer",
    ];
    let is_broken = |rule: &&str| reasons.keys().any(|reason| reason.contains(*rule));
    let unbroken: Vec<_> = rules.into_iter().filter(|rule| !is_broken(rule)).collect();
    // A short run meets some of them.
    let enough = if operations() < 1_000_000 { unbroken.len() < rules.len() } else { unbroken.is_empty() };
    assert!(enough, "nobody broke these rules: {unbroken:?}");
    assert!(rejected > 0 && deeds.len() > 20, "not everything was tried");
}

/// The attacker's process.
#[test]
#[ignore = "the other process of another test"]
fn attacker_process() {
    let Ok(role) = std::env::var(ROLE) else {
        println!("SKIP: this test is the other process of another one");
        return;
    };
    let mut words = role.split(' ');
    let path = PathBuf::from(words.next().unwrap());
    let [seed, wanted] = [(); 2].map(|()| words.next().unwrap().parse::<u64>().unwrap());
    let mut attackers: Vec<_> = (0..3)
        .map(|number| Attacker::new(&path, Choices::Seed(seed + number), Speaker::new(methods())))
        .collect();
    let until = Instant::now() + Duration::from_secs(240);
    let mut idle = 0_u32;
    while attackers.iter().map(Attacker::operations).sum::<u64>() < wanted && Instant::now() < until {
        let before: u64 = attackers.iter().map(Attacker::operations).sum();
        for attacker in &mut attackers {
            for _ in 0..64 {
                attacker.operate();
                if attacker.waits() {
                    break;
                }
            }
        }
        let after: u64 = attackers.iter().map(Attacker::operations).sum();
        idle = if after == before { idle + 1 } else { 0 };
        if idle > 4 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    // The test runner's own words end here.
    println!();
    for attacker in &attackers {
        for (deed, count) in attacker.counts() {
            println!("did {deed:?} {count}");
        }
    }
}

struct Assault(ChildGuard);

impl Assault {
    fn on(path: &Path, seed: u64, wanted: u64) -> Self {
        let mut attacker = this_program().unwrap();
        attacker
            .args(["--exact", "attacker_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{} {seed} {wanted}", path.display()))
            .stdout(Stdio::piped());
        Self(ChildGuard::spawn(&mut attacker).unwrap())
    }

    fn is_over(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// What it did.
    fn deeds(mut self) -> BTreeMap<String, u64> {
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        let mut deeds = BTreeMap::new();
        for line in said.lines().filter_map(|line| line.strip_prefix("did ")) {
            let (deed, count) = line.split_once(' ').unwrap();
            *deeds.entry(deed.to_owned()).or_default() += count.parse::<u64>().unwrap();
        }
        deeds
    }
}

/// R46, R66 to R72, R74: words change while they are read; nothing grows, nothing is left.
#[test]
fn an_engine_attacked_by_another_process() {
    let _alone = alone();
    let path = place("race");
    let mut victim = Victim::new(&path, 1);
    let mut last = Instant::now();
    let before = resident_mib();
    let mut assault = Assault::on(&path, 77, operations());
    while !assault.is_over() {
        for _ in 0..50 {
            let now = Instant::now();
            victim.turn(u64::try_from((now - last).as_nanos()).unwrap());
            last = now;
        }
        victim.accept();
    }
    victim.outlive();
    let deeds = assault.deeds();
    report("operations", &deeds);
    report("ends", victim.reasons());
    let done: u64 = deeds.values().sum();
    let grown = resident_mib().saturating_sub(before);
    println!(
        "{done} hostile operations, {} connections, {} messages, longest turn {:?}, {grown} MiB more",
        victim.accepted,
        victim.inline.app().messages,
        victim.longest_turn
    );
    assert!(done >= operations(), "the attacker came no further than {done}");
    assert!(grown < GROWTH_MAX_MIB, "{grown} MiB more than before");
}

/// R46, R66 to R72, R86, R87, R91: a server goes on serving others; its handlers end with their callers.
#[test]
fn a_server_attacked_by_another_process() {
    let _alone = alone();
    let fixture = common::Fixture::new("shm", "assault");
    let Address::Shm { path } = fixture.url.parse().unwrap() else { panic!() };
    let honest = fixture.client();
    assert_eq!(honest.echo("before".to_owned()).wait().unwrap(), "before");
    let (memory, fds) = (resident_mib(), descriptors().unwrap());
    let mut assault = Assault::on(&path, 99, operations());
    let mut calls = 1;
    while !assault.is_over() {
        assert_eq!(honest.echo("meanwhile".to_owned()).wait().unwrap(), "meanwhile");
        calls += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let deeds = assault.deeds();
    let done: u64 = deeds.values().sum();
    common::until("the attackers' handlers ended", || {
        fixture.hanging() == 0 && fixture.server.stats().serving == 0
    });
    common::until("their descriptors are closed", || descriptors().unwrap() <= fds + 4);
    let stats = fixture.server.stats();
    let grown = resident_mib().saturating_sub(memory);
    println!("{done} hostile operations beside {calls} honest calls; {stats:?}; {grown} MiB more");
    assert!(done >= operations(), "the attacker came no further than {done}");
    assert_eq!(stats.panics, 0);
    assert!(stats.started > calls, "no request of the attackers came through: {stats:?}");
    assert!(grown < GROWTH_MAX_MIB, "{grown} MiB more than before");
}
