//! The fuzz target of heads without a fuzzer: its committed corpus, and seeded changes of it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::path::PathBuf;

use gimmal_testkit::Choices;

#[test]
fn the_corpus_and_changes_of_it_are_taken() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http_head");
    let wanted: u64 = std::env::var("GIMMAL_FUZZ_INPUTS").map_or(20_000, |it| it.parse().expect("a number"));
    let files: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(!files.is_empty(), "no corpus");
    files.iter().for_each(|file| gimmal_http::fuzz::read(file));
    for (seed, file) in (0..wanted).zip(files.iter().cycle()) {
        let (mut choices, mut input) = (Choices::Seed(seed), file.clone());
        for _ in 0..=choices.below(6) {
            choices.spoil(&mut input);
        }
        let outcome = std::panic::catch_unwind(|| gimmal_http::fuzz::read(&input));
        assert!(outcome.is_ok(), "seed {seed}, input {input:02x?}");
    }
}
