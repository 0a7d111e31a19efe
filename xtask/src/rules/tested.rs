//! What must be named elsewhere: fields in the guide to tuning, methods of builders in a test, faults in tests, C names
//! in the table of the RDMA CM.

use std::collections::BTreeSet;

use super::rule::{Found, Rule};
use crate::{
    house::House,
    items::Function,
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
    Rule { name: "every row of docs/limits.md names its test", limit: 0, find: untested_limits },
    Rule { name: "every finding of tests/faults.md is answered", limit: 0, find: unanswered_findings },
    Rule { name: "every row of transport/rdma/CM.md has an item and a test", limit: 0, find: rows_of_the_cm },
];

/// The crate whose table it is, with its slash.
const CM_CRATE: &str = "transport/rdma/";

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

/// Rows of the tables of limits whose last cell names nothing.
fn untested_limits(house: &House) -> Found {
    let text = house.tree.text("docs/limits.md").unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let rows = lines.split(|line| !line.starts_with('|')).flat_map(|table| table.iter().skip(2));
    let test = |row: &str| row.trim_matches('|').rsplit('|').next().unwrap_or_default().to_owned();
    let open = rows.filter(|row| !test(row).contains('`'));
    open.map(|row| (*row).to_owned()).collect::<Vec<_>>().into()
}

/// How a finding is answered that no test of this repository's own shows.
const ANSWERS: [&str; 4] = ["stays: ", "by reading: ", "in a guest ", "the facade "];

/// Findings without an answer, and numbers that are left out where a table does not say that it holds the failed ones alone.
fn unanswered_findings(house: &House) -> Found {
    let text = house.tree.text("tests/faults.md").unwrap_or_default();
    let findings = text.split_once("\n## Findings\n").map_or("", |(_, rest)| rest);
    let findings = findings.split_once("\n## ").map_or(findings, |(these, _)| these);
    let mut found = Vec::new();
    for table in findings.split("\n### ").skip(1) {
        let (title, rest) = table.split_once('\n').unwrap_or((table, ""));
        let rows: Vec<Vec<&str>> = rest
            .lines()
            .filter(|line| line.starts_with('|'))
            .skip(2)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let numbers = rows.iter().filter_map(|row| row.first()?.parse::<usize>().ok());
        let has_all = rest.contains("Failed trials") || numbers.clone().eq(1..=numbers.count());
        if !has_all || rows.is_empty() {
            found.push(format!("{title}: a number is missing"));
        }
        let answered = |row: &&Vec<&str>| {
            let Some(&answer) = row.get(2) else { return false };
            answer.contains('`')
                || answer.contains(".rs")
                || ANSWERS.iter().any(|begin| answer.starts_with(begin))
        };
        let open = rows.iter().filter(|row| !answered(row));
        found.extend(open.map(|row| format!("{title}: {} is not answered", row.first().unwrap_or(&""))));
    }
    found.into()
}

/// Rows of the table of the RDMA CM with an empty cell, an item that the crate lacks, or a test that does not exist;
/// and C names that the crate declares and no row has.
fn rows_of_the_cm(house: &House) -> Found {
    let text = house.tree.text(&format!("{CM_CRATE}CM.md")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for table in lines.split(|line| !line.starts_with('|')) {
        let mut rows =
            table.iter().map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
        let titles = rows.next().unwrap_or_default();
        for row in rows.skip(1) {
            if row.len() != titles.len() || row.contains(&"") {
                found.push(format!("{}: not every cell is filled", row[0]));
            }
            for (title, cell) in titles.iter().zip(&row) {
                let names: Vec<&str> = quoted(cell).collect();
                let (is_there, is_needed): (fn(&House, &str) -> bool, bool) = match *title {
                    "Rust" => (is_item, true),
                    "Rust so far" => (is_item, false),
                    "shown by" => (is_shown, true),
                    _ => continue,
                };
                if is_needed && names.is_empty() {
                    found.push(format!("{}: {title} names nothing", row[0]));
                }
                let gone = names.iter().filter(|name| !is_there(house, name));
                found.extend(gone.map(|name| format!("{}: {title}: {name} does not exist", row[0])));
            }
        }
    }
    let rows: BTreeSet<&str> = quoted(text).collect();
    let without = declared(house).filter(|name| !rows.contains(name));
    found.extend(without.map(|name| format!("{name} is declared and has no row")));
    found.into()
}

/// Functions of librdmacm and values of its header that the crate declares.
fn declared(house: &House) -> impl Iterator<Item = &str> {
    let source = |name| house.sources.get(&format!("{CM_CRATE}src/sys/bundled/{name}.rs"));
    let functions =
        source("cm").into_iter().flat_map(|it| it.tokens.windows(2).filter(|two| two[0].is("fn")));
    let values = source("values").into_iter().flat_map(|it| &it.tokens);
    let names = functions.map(|two| &two[1]).filter(|name| name.text.starts_with("rdma_"));
    names.chain(values.filter(|name| name.text.starts_with("RDMA_"))).map(|name| name.text.as_str())
}

/// Whether the crate has the item: `module::Name` or `module::Name::member`, a method, field or variant.
fn is_item(house: &House, path: &str) -> bool {
    let mut parts = path.split("::");
    let (module, name, member) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let root = house.sources.get(&format!("{CM_CRATE}src/{module}/mod.rs"));
    let Some((root, Some(name))) = root.map(|root| (root, name)) else { return root.is_some() };
    let items = &root.items;
    let is_public = items.imports.iter().any(|it| it.is_public && it.name == name)
        || items.definitions.iter().any(|it| it.is_public && it.name == name);
    let Some(member) = member else { return is_public && parts.next().is_none() };
    let mut sources = house.sources.values().filter(|it| it.path.starts_with(CM_CRATE));
    let is_defined = sources.clone().any(|it| it.items.definitions.iter().any(|it| it.name == name));
    let has_member = sources.any(|source| {
        let functions = &source.items.functions;
        let is_method = |it: &Function| it.is_public && it.name == member && it.of.as_deref() == Some(name);
        let mut definitions = source.items.definitions.iter().filter(|it| it.is_public && it.name == name);
        // The items do not tell what a macro makes, so there any word of the file counts.
        let has_word = |word| source.code().any(|token| token.is(word));
        functions.iter().any(is_method)
            || definitions.any(|it| it.fields.iter().chain(&it.variants).any(|part| part == member))
            || !is_defined && has_word(name) && has_word(member)
    });
    is_public && has_member
}

/// Whether a function of the sources has the name, or a program or a script of the lab prints it as a case.
fn is_shown(house: &House, name: &str) -> bool {
    let text = format!("\"{name}");
    let is_case = |token: &Token| token.kind == Kind::Literal && token.text.trim_matches('"') == name;
    house.sources.values().any(|source| {
        source.items.functions.iter().any(|it| it.name == name)
            || source.path.starts_with("lab/") && source.tokens.iter().any(is_case)
    }) || house.tree.files().any(|(path, script)| path.starts_with("tests/lab/") && script.contains(&text))
}
