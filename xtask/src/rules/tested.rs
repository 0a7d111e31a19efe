//! What must be named elsewhere: fields in the guide to tuning, methods of builders in a test, faults in tests.

use std::collections::BTreeSet;

use super::rule::{Found, Rule};
use crate::{
    house::House,
    tokens::{Kind, Token},
};

/// The rules of this module.
pub const RULES: &[Rule] = &[
    Rule { name: "every config field is in tuning.md", limit: 0, find: undocumented_knobs },
    Rule { name: "every method of a builder is tested in pairs", limit: 0, find: untested_builders },
    Rule {
        name: "every test named in tests/faults.md and docs/limits.md exists",
        limit: 0,
        find: untested_faults,
    },
];

/// What a Markdown text has between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn undocumented_knobs(house: &House) -> Found {
    let guide = house.tree.text("tuning.md").unwrap_or_default();
    let known: BTreeSet<&str> = quoted(guide).filter_map(|name| name.rsplit('.').next()).collect();
    let found = house.listed("configs").flat_map(|source| {
        let fields = source.items.definitions.iter().filter(|it| !it.is_test).flat_map(|it| &it.fields);
        fields
            .filter(|field| !known.contains(field.as_str()))
            .map(|field| format!("{}: {field}", source.path))
    });
    found.collect::<Vec<_>>().into()
}

/// Methods of builders that no test of the same file calls in pairs with the others.
fn untested_builders(house: &House) -> Found {
    let files = house.listed("builders").filter(|source| !house.is_in(&source.path, "no_builders"));
    let found = files.flat_map(|source| {
        let is_text = |token: &&Token| token.is_test && token.kind == Kind::Literal;
        let tested: BTreeSet<&str> =
            source.tokens.iter().filter(is_text).map(|token| token.text.trim_matches('"')).collect();
        let methods = source.items.functions.iter().filter(|it| it.is_builder && it.is_public && !it.is_test);
        methods
            .filter(move |it| !tested.contains(it.name.as_str()))
            .map(|it| format!("{}: {}", source.path, it.name))
    });
    found.collect::<Vec<_>>().into()
}

/// Names in backquotes in the tables of faults and limits that are no test. A macro makes some tests, so any word of the code counts.
fn untested_faults(house: &House) -> Found {
    let words =
        house.sources.values().flat_map(|source| &source.tokens).filter(|token| token.kind == Kind::Ident);
    let words: BTreeSet<&str> = words.map(|token| token.text.as_str()).collect();
    let tables = ["tests/faults.md", "docs/limits.md"].map(|path| house.tree.text(path).unwrap_or_default());
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    };
    let named: BTreeSet<&str> = tables.into_iter().flat_map(quoted).filter(is_name).collect();
    named.into_iter().filter(|name| !words.contains(name)).map(str::to_owned).collect::<Vec<_>>().into()
}
