//! What code may not do: lock in hot files, pack numbers by hand, copy uncounted, wake, start threads, leave checks out.

use super::rule::{Found, Rule};
use crate::{
    house::House,
    paths,
    source::Source,
    tokens::{Kind, Token},
};

/// The rules of this module.
pub const RULES: &[Rule] = &[
    Rule {
        name: "no locks and no unbounded queues in the files every message passes",
        limit: 0,
        find: locks_in_hot_files,
    },
    Rule { name: "threads are started by transport::thread::spawn", limit: 0, find: threads_with_signals },
    Rule { name: "lines of a file", limit: 600, find: long_files },
    Rule { name: "numbers are packed by pack.rs", limit: 0, find: packed_by_hand },
    Rule { name: "checks hold in release builds too", limit: 0, find: left_out_of_releases },
    Rule { name: "copies of requests and answers are counted", limit: 0, find: uncounted_copies },
    Rule { name: "nothing left to do in the code", limit: 0, find: left_to_do },
    Rule { name: "only one file of rpc wakes", limit: 0, find: bare_wakes },
    Rule { name: "calls that a signal can interrupt are started again", limit: 0, find: interruptible_calls },
];

/// Shows the lines of a source where `breaks` holds for the tokens that begin at a place.
fn places<'a>(
    source: &'a Source,
    breaks: impl Fn(&[&Token]) -> bool + 'a,
) -> impl Iterator<Item = String> + 'a {
    let tokens = source.code_tokens();
    let lines: Vec<usize> =
        (0..tokens.len()).filter(|at| breaks(&tokens[*at..])).map(|at| tokens[at].lines.start).collect();
    lines.into_iter().map(|line| source.show(line))
}

/// Whether tokens are spelt like this, one after the other.
fn spell(tokens: &[&Token], words: &[&str]) -> bool {
    tokens.len() >= words.len() && words.iter().zip(tokens).all(|(word, token)| token.text == *word)
}

fn locks_in_hot_files(house: &House) -> Found {
    const LOCKS: &[&str] = &["Mutex", "RwLock", "Condvar", "SegQueue", "Injector", "LinkedList"];
    let breaks = |tokens: &[&Token]| {
        tokens[0].kind == Kind::Ident && LOCKS.contains(&tokens[0].text.as_str())
            || spell(tokens, &["mpsc", ":", ":", "channel"])
            || spell(tokens, &["channel", ":", ":", "unbounded"])
    };
    house.listed("hot").flat_map(|source| places(source, breaks)).collect::<Vec<_>>().into()
}

/// Threads that std starts take signals from the application; ours are started with a name.
fn threads_with_signals(house: &House) -> Found {
    let files = house.listed("threads").filter(|source| !house.is_in(&source.path, "starts_threads"));
    let found = files.flat_map(|source| {
        let starts = paths::all(source).into_iter().filter(|spelt| {
            let path: Vec<&str> = spelt.path.iter().map(String::as_str).collect();
            matches!(path.as_slice(), ["std", "thread", "spawn" | "scope" | "Builder", ..])
        });
        starts.map(|spelt| source.show(spelt.line))
    });
    found.collect::<Vec<_>>().into()
}

fn long_files(house: &House) -> Found {
    Found::largest(
        house.sources.values().map(|source| (source.text.lines().count(), source.path.clone())),
        600,
    )
}

/// Shifts of anything but a constant number, which could push it into its neighbour.
fn packed_by_hand(house: &House) -> Found {
    let files = house.listed("packed").filter(|source| !house.is_in(&source.path, "packs"));
    let found = files.flat_map(|source| {
        let tokens = source.code_tokens();
        let shifts = (1..tokens.len()).filter(|at| {
            let [first, second] = [tokens[*at], *tokens.get(at + 1).unwrap_or(&tokens[*at])];
            let is_shift = first.kind == Kind::Punct('<', true)
                && second.is_punct('<')
                && first.bytes.end == second.bytes.start;
            // rustfmt puts spaces around a shift, and none around arguments of types.
            let byte = |at: usize| source.text.as_bytes().get(at).copied().unwrap_or_default();
            let is_apart = byte(first.bytes.start.wrapping_sub(1)) == b' '
                && matches!(byte(second.bytes.end), b' ' | b'=');
            is_shift && is_apart && tokens[at - 1].kind != Kind::Literal
        });
        let lines = shifts.map(|at| tokens[at].lines.start).collect::<Vec<_>>();
        let allowed = |line: &usize| source.line(*line).contains("// cut on purpose: ");
        lines.into_iter().filter(move |line| !allowed(line)).map(|line| source.show(line))
    });
    found.collect::<Vec<_>>().into()
}

/// Checks that a release build leaves out. The floors, which the bench measures against, may have some.
fn left_out_of_releases(house: &House) -> Found {
    let breaks = |tokens: &[&Token]| {
        matches!(tokens[0].text.as_str(), "debug_assert" | "debug_assert_eq" | "debug_assert_ne")
            && tokens.get(1).is_some_and(|token| token.is_punct('!'))
    };
    let files = house.listed("checked").filter(|source| !house.is_in(&source.path, "floors"));
    files.flat_map(|source| places(source, breaks)).collect::<Vec<_>>().into()
}

/// Bytes of requests and answers are copied only where a counter says so, and the line says what is copied.
fn uncounted_copies(house: &House) -> Found {
    const COPIES: &[&str] = &["copy_from_slice", "extend_from_slice", "clone_from_slice"];
    const REASONS: &[&str] = &["// counted", "// an item", "// a status", "// metadata", "// a draft"];
    let breaks = |tokens: &[&Token]| {
        let name = tokens[0].text.as_str();
        let is_call = tokens.get(1).is_some_and(|token| token.kind == Kind::Open('('));
        COPIES.contains(&name) || is_call && name == "copy" || spell(tokens, &["to_vec", "(", ")"])
    };
    let found = house.listed("counted_copies").flat_map(|source| {
        let tokens = source.code_tokens();
        let lines = (1..tokens.len()).filter(|at| breaks(&tokens[*at..]) && !tokens[at - 1].is("fn"));
        let lines: Vec<usize> = lines.map(|at| tokens[at].lines.start).collect();
        let is_counted = |line: usize| {
            let text = source.line(line).trim_end();
            REASONS.iter().any(|reason| text.ends_with(reason))
                || text.contains("encode())")
                || text.contains("b\"")
        };
        lines.into_iter().filter(move |line| !is_counted(*line)).map(|line| source.show(line))
    });
    found.collect::<Vec<_>>().into()
}

fn left_to_do(house: &House) -> Found {
    let found = house.sources.values().flat_map(|source| {
        let pairs = source.tokens.windows(2).filter(|pair| {
            ["todo", "unimplemented", "dbg"].contains(&pair[0].text.as_str()) && pair[1].is_punct('!')
        });
        pairs.map(|pair| source.show(pair[0].lines.start))
    });
    found.collect::<Vec<_>>().into()
}

/// Wakers are foreign code, and may panic.
fn bare_wakes(house: &House) -> Found {
    let breaks = |tokens: &[&Token]| {
        ["waker", "task"].iter().any(|word| spell(tokens, &[word, ".", "wake", "("]))
            || spell(tokens, &["Waker", ":", ":", "wake"])
    };
    let files = house.listed("woken").filter(|source| !house.is_in(&source.path, "wakes"));
    files.flat_map(|source| places(source, breaks)).collect::<Vec<_>>().into()
}

/// System calls that a signal can interrupt, made outside of a call that starts them again. Waits are not among them: they end sooner.
fn interruptible_calls(house: &House) -> Found {
    let files = house.listed("interrupted");
    let found = files.flat_map(|source| {
        let tokens = source.code_tokens();
        let covered = covered(&tokens);
        let calls = paths::inline(&tokens).into_iter().filter(|spelt| {
            let [.., module, call] = spelt.path.as_slice() else { return false };
            let is_call = tokens.get(spelt.next).is_some_and(|token| token.kind == Kind::Open('('));
            is_call
                && is_interruptible(module, call)
                && !covered.iter().any(|range| range.contains(&spelt.next))
        });
        calls.map(|spelt| source.show(spelt.line)).collect::<Vec<_>>()
    });
    found.collect::<Vec<_>>().into()
}

fn is_interruptible(module: &str, call: &str) -> bool {
    match module {
        "fs" => ["ftruncate", "fallocate", "flock", "open", "openat", "memfd_create"].contains(&call),
        "net" => call == "connect" || ["accept", "send", "recv"].iter().any(|begin| call.starts_with(begin)),
        "rand" => call == "getrandom",
        _ => false,
    }
}

/// Arguments of the functions that start an interrupted call again.
fn covered(tokens: &[&Token]) -> Vec<std::ops::Range<usize>> {
    let begins = tokens.windows(2).enumerate().filter(|(_, pair)| {
        (pair[0].is("retry_on_intr") || pair[0].is("in_pieces")) && pair[1].kind == Kind::Open('(')
    });
    begins.map(|(at, _)| at + 1..closing(tokens, at + 1)).collect()
}

/// Where the group that opens at a place is closed.
fn closing(tokens: &[&Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}
