//! The texts: how long they are, how wide, how long their sentences, and phrases that a native reader stumbles over.

use regex::Regex;

use super::rule::{Found, Rule};
use crate::{
    house::House,
    markdown::{self, Paragraph},
    source::Source,
};

/// The rules of this module.
pub const RULES: &[Rule] = &[
    Rule { name: "words of README.md", limit: 1_300, find: |house| words(house, "README.md") },
    Rule { name: "words of ARCHITECTURE.md", limit: 4_500, find: |house| words(house, "ARCHITECTURE.md") },
    Rule { name: "lines of Markdown above 120 columns", limit: 0, find: wide_lines },
    Rule {
        name: "sentences above 40 words in README, ARCHITECTURE and the guide",
        limit: 0,
        find: long_sentences,
    },
    Rule { name: "patterns of tests/prose.txt in doc comments", limit: 0, find: patterns },
];

const SENTENCE_WORDS_MAX: usize = 40;
const COLUMNS_MAX: usize = 120;
const PATTERNS: &str = "tests/prose.txt";

fn numbered(text: &str) -> Vec<(usize, String)> {
    (1..).zip(text.lines().map(str::to_owned)).collect()
}

/// Words outside of blocks of code.
fn words(house: &House, path: &str) -> Found {
    let lines = markdown::outside_code(numbered(house.tree.text(path).unwrap_or_default()));
    let number = lines.iter().map(|(_, line)| markdown::words(line)).sum();
    Found { number, ..Found::default() }
}

/// A row of a table cannot be broken, and a link to elsewhere neither.
fn wide_lines(house: &House) -> Found {
    let texts = house.tree.files().filter(|(path, _)| path.ends_with(".md"));
    let found = texts.flat_map(|(path, text)| {
        let wide = numbered(text).into_iter().filter(|(_, line)| {
            let is_table = line.trim_start().starts_with('|');
            let is_link = line.trim_start().starts_with('[') && line.contains("]: ");
            line.chars().count() > COLUMNS_MAX && !is_table && !is_link
        });
        wide.map(move |(number, line)| format!("{path}:{number}: {} columns", line.chars().count()))
    });
    found.collect::<Vec<_>>().into()
}

/// What the guide's file says in `//!`.
fn guide(source: &Source) -> Vec<Paragraph> {
    let lines = source
        .comments
        .iter()
        .filter(|comment| comment.is_doc && source.line(comment.line).trim_start().starts_with("//!"));
    // Empty lines are no comments to the reader of comments; the text has them.
    let mut all: Vec<(usize, String)> = Vec::new();
    for comment in lines {
        all.push((comment.line, comment.text.clone()));
    }
    markdown::paragraphs(all)
}

fn long_sentences(house: &House) -> Found {
    let mut sentences: Vec<(usize, String)> = Vec::new();
    let mut add = |path: &str, paragraphs: Vec<Paragraph>| {
        for paragraph in paragraphs {
            let parts = markdown::sentences(&paragraph.text).into_iter();
            sentences
                .extend(parts.map(|it| (markdown::words(&it), format!("{path}:{}: {it}", paragraph.line))));
        }
    };
    for (path, text) in house.tree.files().filter(|(path, _)| house.is_in(path, "sentences")) {
        match house.sources.get(path) {
            Some(source) => add(path, guide(source)),
            None if path.ends_with(".md") => add(path, markdown::paragraphs(numbered(text))),
            None => {}
        }
    }
    sentences.sort_by(|one, other| other.cmp(one));
    let show = |(words, text): &(usize, String)| format!("{words} words: {text}");
    let number = sentences.iter().filter(|(words, _)| *words > SENTENCE_WORDS_MAX).count();
    let longest = sentences.iter().take(20).map(show).collect();
    let offenders = sentences.iter().take(number).skip(20).map(show).collect();
    Found { number, offenders, notes: longest }
}

/// Paragraphs of doc comments, one by one.
fn documented(source: &Source) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut block: Vec<(usize, String)> = Vec::new();
    for comment in source.comments.iter().filter(|comment| comment.is_doc) {
        let follows = block.last().is_some_and(|(line, _)| line + 1 == comment.line);
        if !follows {
            found.extend(markdown::paragraphs(std::mem::take(&mut block)));
        }
        block.push((comment.line, comment.text.clone()));
    }
    found.extend(markdown::paragraphs(block));
    found
}

/// The patterns of a text: one a line, behind it ` ## ` and the reason.
fn read_patterns(text: &str) -> Result<Vec<(Regex, &str)>, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let pattern = |line| -> Result<(Regex, &str), String> {
        let (pattern, reason) =
            str::split_once(line, " ## ").ok_or_else(|| format!("{PATTERNS}: no reason: {line}"))?;
        let pattern = Regex::new(pattern.trim()).map_err(|error| format!("{PATTERNS}: {error}"))?;
        Ok((pattern, reason.trim()))
    };
    lines.map(pattern).collect()
}

fn patterns(house: &House) -> Found {
    let patterns = match read_patterns(house.tree.text(PATTERNS).unwrap_or_default()) {
        Ok(patterns) => patterns,
        Err(error) => return Found { number: usize::MAX, offenders: vec![error], notes: Vec::new() },
    };
    let mut offenders = Vec::new();
    for source in house.sources.values() {
        for paragraph in documented(source) {
            for (pattern, reason) in &patterns {
                let found = pattern.find_iter(&paragraph.text);
                offenders.extend(found.map(|it| {
                    format!("{}: \"{}\": {reason}", source.at(paragraph.line), it.as_str().trim())
                }));
            }
        }
    }
    offenders.into()
}
