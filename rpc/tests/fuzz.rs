//! The fuzz targets without a fuzzer: a committed corpus and seeded mutations of valid input, on every toolchain.
//!
//! `GIMMAL_FUZZ_INPUTS` says how many inputs each target gets (20,000); `fuzz/` has the same targets for libFuzzer.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod peer;

use std::path::PathBuf;

use gimmal_testkit::Choices;
use peer::targets::TARGETS;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target)
}

/// R6, R8, R66 to R69, R72, R91: what was once interesting, and what was once a finding.
#[test]
fn the_corpus_is_taken() {
    for target in &TARGETS {
        let files = std::fs::read_dir(corpus(target.name)).unwrap();
        let mut inputs = 0;
        for file in files {
            (target.run)(&std::fs::read(file.unwrap().path()).unwrap());
            inputs += 1;
        }
        println!("{}: {inputs} inputs", target.name);
        assert!(inputs > 0, "{} has no corpus", target.name);
    }
}

/// R6, R8, R66 to R69, R72, R91: valid input, spoiled in a few places.
#[test]
fn mutations_are_taken() {
    let wanted: u64 =
        std::env::var("GIMMAL_FUZZ_INPUTS").map_or(20_000, |wanted| wanted.parse().expect("a number"));
    for target in &TARGETS {
        let inputs = (wanted * target.share / 1000).max(1);
        for seed in 0..inputs {
            let mut choices = Choices::Seed(seed);
            let mut input = (target.valid)(&mut choices);
            for _ in 0..choices.below(6) {
                choices.spoil(&mut input);
            }
            let outcome = std::panic::catch_unwind(|| (target.run)(&input));
            assert!(outcome.is_ok(), "{}: seed {seed}, input {input:02x?}", target.name);
        }
        println!("{}: {inputs} mutated inputs", target.name);
    }
}

/// Writes the corpus that is committed: a few valid inputs of each kind, and spoiled ones.
#[test]
#[ignore = "writes the corpus of the fuzz targets, by hand"]
fn write_the_corpus() {
    for target in &TARGETS {
        let folder = corpus(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        for seed in 0..12 {
            let mut choices = Choices::Seed(1000 + seed);
            let mut input = (target.valid)(&mut choices);
            if seed % 2 == 1 {
                choices.spoil(&mut input);
            }
            std::fs::write(folder.join(format!("seed-{seed:02}")), input).unwrap();
        }
    }
}
