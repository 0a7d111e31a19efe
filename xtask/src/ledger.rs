//! What each entry of `bench/ledger.toml` is worth on this machine: instructions, and interleaved pairs of the bench built with it
//! and without it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::{
    patched::{self, Copy},
    tree,
};

/// Runs of each build, in turns, at one core placement.
const PAIRS: usize = 15;
/// So many runs at most, until a core placement has enough of them.
const PAIRS_MAX: usize = 3 * PAIRS;
/// An entry stays if a row takes so many percent more instructions without it, or the median of the pairs so many more time.
const INSTRUCTIONS_PCT: f64 = 1.0;
const PAIRS_PCT: f64 = 10.0;
/// Cache-line round trips within so many percent of each other are of one core placement.
const PLACEMENT_PCT: f64 = 20.0;

/// The layer and the window of a row of `tests/instructions.txt`, and its instructions.
type Rows = BTreeMap<(String, String), f64>;

/// An entry's name, what its patch says, the folder of the programs without it, and its command of the bench.
struct Entry {
    name: String,
    title: String,
    without: PathBuf,
    command: String,
}

/// Measures the entries of `names`, or all. Whether each of them stays.
///
/// Everything is built first. Instructions are counted next; only the entries that change too few of them need pairs.
///
/// # Errors
/// The sources cannot be copied or built, a patch does not apply, or a program fails.
pub fn run(names: &[&str]) -> io::Result<bool> {
    let (with, entries) = built(names)?;
    let before = instructions(&with)?;
    let mut all_stay = true;
    for entry in entries {
        println!("{}: {}", entry.name, entry.title);
        let stays = changed(&before, &instructions(&entry.without)?) >= INSTRUCTIONS_PCT
            || pairs(&with, &entry.without, &entry.command)?;
        println!("    {}", if stays { "stays" } else { "is worth too little here" });
        all_stay &= stays;
    }
    Ok(all_stay)
}

/// Builds the bench as it is, and once without each entry.
fn built(names: &[&str]) -> io::Result<(PathBuf, Vec<Entry>)> {
    let text = fs::read_to_string(tree::root().join("bench/ledger.toml"))?;
    let table: toml::Table = text.parse().map_err(io::Error::other)?;
    let copy = Copy::make("target/ledger/source")?;
    let with = build(&copy, "with")?;
    let mut entries = Vec::new();
    for (name, patch) in patched::patches("bench/ledger", names)? {
        let command = table.get(&name).and_then(|entry| entry.get("command")?.as_str());
        let command =
            command.ok_or_else(|| io::Error::other(format!("bench/ledger.toml has no command of {name}")))?;
        let (title, command) = (patched::title(&patch)?, command.to_owned());
        let without = copy.with(&patch, || build(&copy, &name))?;
        entries.push(Entry { name, title, without, command });
    }
    Ok((with, entries))
}

/// Builds the bench from the copy and puts its programs aside.
fn build(copy: &Copy, name: &str) -> io::Result<PathBuf> {
    let target = tree::root().join("target/ledger");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "-q", "-p", "gimmal-bench", "--bins", "--examples"]);
    cargo.current_dir(copy.path()).env("CARGO_TARGET_DIR", target.join("build"));
    // Nobody reads line tables here, and without them it builds faster.
    patched::output(cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "0"))?;
    let aside = target.join(name);
    fs::create_dir_all(&aside)?;
    for program in ["gimmal-bench", "examples/pair", "examples/pair_loan", "examples/pair_rpc"] {
        let path = target.join("build/release").join(program);
        fs::copy(&path, aside.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(aside)
}

/// Instructions of a round, for every row of `tests/instructions.txt`. Rows are counted at the same time.
fn instructions(programs: &Path) -> io::Result<Rows> {
    let text = fs::read_to_string(tree::root().join("tests/instructions.txt"))?;
    let rows: Vec<(&str, &str)> = text.lines().filter_map(row).collect();
    let next = AtomicUsize::new(0);
    let count = || {
        let mut counted = Vec::new();
        while let Some((layer, window)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (few, many) =
                (collected(programs, layer, window, 1000), collected(programs, layer, window, 3000));
            counted.push(((*layer).to_owned(), (*window).to_owned(), few?, many?));
        }
        io::Result::Ok(counted)
    };
    let counted = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let counting: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
        counting
            .into_iter()
            .map(|thread| thread.join().map_err(|_| io::Error::other("a thread panicked"))?)
            .collect::<io::Result<Vec<_>>>()
    })?;
    let each = |(layer, window, few, many)| ((layer, window), (many - few) / 2000.0);
    Ok(counted.into_iter().flatten().map(each).collect())
}

/// The layer and the window of a line.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    Some((words.next()?, words.next()?))
}

/// Instructions of so many rounds, together with the program's start and end.
fn collected(programs: &Path, layer: &str, window: &str, rounds: u32) -> io::Result<f64> {
    let (program, what) = match layer {
        "engine" => ("pair", "64"),
        "loan" => ("pair_loan", "1048576"),
        layer => ("pair_rpc", layer),
    };
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(programs.join(program));
    let output = valgrind.args([what, window, &rounds.to_string()]).output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let count = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.ok_or_else(|| io::Error::other(format!("callgrind counted nothing of {program} {what}: {text}")))
}

/// Prints the row that loses most without the entry; how much, percent.
fn changed(with: &Rows, without: &Rows) -> f64 {
    let change = |(row, now): (&(String, String), &f64)| {
        let was = with.get(row).copied().unwrap_or(*now);
        (row.clone(), was, *now, (now / was - 1.0) * 100.0)
    };
    let most = without.iter().map(change).max_by(|one, other| one.3.total_cmp(&other.3));
    let Some(((layer, window), was, now, change)) = most else { return 0.0 };
    println!("    {layer}, window {window}: {was:.0} instructions, without it {now:.0}  {change:+.1} %");
    change
}

/// Runs both builds in turns and prints the median of the ratios for each core placement. Whether one of them is large enough.
fn pairs(with: &Path, without: &Path, command: &str) -> io::Result<bool> {
    let is_near = |one: f64, other: f64| (one / other - 1.0).abs() * 100.0 <= PLACEMENT_PCT;
    let mut placements: Vec<(f64, Vec<f64>)> = Vec::new();
    // The host may move the cores meanwhile: what lies between two placements is left out.
    for pair in 0..PAIRS_MAX {
        if placements.iter().any(|(_, ratios)| ratios.len() >= PAIRS) {
            break;
        }
        // A B, B A: what drifts one way cancels.
        let [first, second] = if pair % 2 == 0 { [with, without] } else { [without, with] };
        let (mut one, mut other) = (measured(first, command)?, measured(second, command)?);
        if pair % 2 != 0 {
            std::mem::swap(&mut one, &mut other);
        }
        if !is_near(one.line_ns, other.line_ns) {
            continue;
        }
        let ratio = other.call_ns / one.call_ns;
        match placements.iter_mut().find(|(line_ns, _)| is_near(*line_ns, one.line_ns)) {
            Some((_, ratios)) => ratios.push(ratio),
            None => placements.push((one.line_ns, vec![ratio])),
        }
    }
    let mut is_large = false;
    for (line_ns, mut ratios) in placements {
        ratios.sort_by(f64::total_cmp);
        let (median, number) = (ratios[ratios.len() / 2], ratios.len());
        println!(
            "    cache-line round trip {line_ns:.0} ns: without it a call takes {median:.2} x, {number} pairs"
        );
        is_large |= number >= PAIRS && (median - 1.0) * 100.0 >= PAIRS_PCT;
    }
    Ok(is_large)
}

struct Measured {
    call_ns: f64,
    line_ns: f64,
}

/// One run of the bench.
fn measured(programs: &Path, command: &str) -> io::Result<Measured> {
    let mut bench = Command::new(programs.join("gimmal-bench"));
    let text =
        patched::output(bench.args(command.split(' ')).args(["--loopback", "--pairs", "1", "--json"]))?;
    let report: serde_json::Value = serde_json::from_str(text.trim()).map_err(io::Error::other)?;
    let number = |name: &str| report[name].as_f64().filter(|number| *number > 0.0);
    let call_ns = match report["test"].as_str() {
        Some("lat") => number("p50_ns"),
        _ => number("calls_per_s").map(|rate| 1e9 / rate),
    };
    let call_ns =
        call_ns.ok_or_else(|| io::Error::other(format!("the report of `{command}` has no time")))?;
    // A test without floors does not tell placements apart.
    Ok(Measured { call_ns, line_ns: number("line_floor_p50_ns").unwrap_or(1.0) })
}
