//! Boundaries between crates: `unsafe`, the C libraries, providers, other crates.

use super::rule::{Found, Rule};
use crate::{house::House, paths};

/// The rules of this module.
pub const RULES: &[Rule] = &[
    Rule {
        name: "every path of tests/tidy.toml is there",
        limit: 0,
        find: |house| house.dead_paths().into(),
    },
    Rule { name: "every Rust file can be read", limit: 0, find: unreadable },
    Rule { name: "unsafe only where tests/tidy.toml allows it", limit: 0, find: unsafe_outside },
    Rule { name: "forbid(unsafe_code) in every other crate", limit: 0, find: without_forbid },
    Rule { name: "rdma_sys is named in one file", limit: 0, find: second_backend },
    Rule { name: "the rdma crate knows no word of gimmal", limit: 0, find: dependent_words },
    Rule { name: "engine and rpc name no provider", limit: 0, find: named_providers },
    Rule { name: "providers do not import each other", limit: 0, find: provider_imports },
];

fn unreadable(house: &House) -> Found {
    let broken = house.sources.values().filter(|source| !source.path.contains("/tests/"));
    let broken = broken.filter_map(|source| Some(format!("{}: {}", source.path, source.error.as_ref()?)));
    broken.collect::<Vec<_>>().into()
}

fn unsafe_outside(house: &House) -> Found {
    let outside = house.sources.values().filter(|source| !house.is_in(&source.path, "unsafe"));
    let found = outside.flat_map(|source| {
        let words = source.tokens.iter().filter(|token| token.is("unsafe"));
        words.map(|token| source.show(token.lines.start))
    });
    found.collect::<Vec<_>>().into()
}

fn without_forbid(house: &House) -> Found {
    let may =
        |folder: &str| house.paths("unsafe").iter().any(|entry| entry.starts_with(&format!("{folder}/")));
    let is_root = |path: &str| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let roots = house
        .sources
        .values()
        .filter(|source| is_root(&source.path) && !house.is_in(&source.path, "outside_workspace"));
    let roots = roots
        .filter(|source| house.crates.package_of(&source.path).is_some_and(|package| !may(&package.folder)));
    let bare = roots.filter(|source| !source.items.attributes.iter().any(|it| it == "forbid(unsafe_code)"));
    bare.map(|source| source.path.clone()).collect::<Vec<_>>().into()
}

fn second_backend(house: &House) -> Found {
    let others = house.sources.values().filter(|source| !house.is_in(&source.path, "rdma_sys"));
    let named = others.filter(|source| source.tokens.iter().any(|token| token.is("rdma_sys")));
    named.map(|source| source.path.clone()).collect::<Vec<_>>().into()
}

/// Words of the layers above, in code or comments of an independent library.
fn dependent_words(house: &House) -> Found {
    let words: Vec<&str> = house.lists("independent").into_iter().flat_map(|(_, words)| words).collect();
    let files = house.sources.values().filter(|source| house.is_in(&source.path, "independent"));
    let found = files.flat_map(|source| {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let lines = (1..).zip(source.text.lines());
        let named = lines.filter(|(_, line)| {
            let line = line.to_lowercase();
            line.split(|character| !is_word(character)).any(|word| words.contains(&word))
        });
        named.map(|(number, line)| format!("{}: {}", source.at(number), line.trim())).collect::<Vec<_>>()
    });
    found.collect::<Vec<_>>().into()
}

/// The provider that a file belongs to.
fn provider_of<'a>(house: &'a House, path: &str) -> Option<&'a str> {
    let covers = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    house.lists("providers").into_iter().find(|(_, folders)| covers(folders)).map(|(name, _)| name)
}

/// The providers that a file names by path: its line and the provider.
fn providers_named<'a>(house: &'a House, path: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (number, target) in house.crates.targets.iter().enumerate() {
        for (module, _) in
            target.modules.iter().enumerate().filter(|(_, module)| module.file == path && !module.is_test)
        {
            for spelt in paths::all(&house.sources[path]) {
                let Some(named) = house.crates.resolve(number, module, &spelt.path) else { continue };
                if let Some(provider) = house.crates.file(&named).and_then(|file| provider_of(house, file)) {
                    found.push((spelt.line, provider));
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn named_providers(house: &House) -> Found {
    let found = house.listed("above_providers").flat_map(|source| {
        let named = providers_named(house, &source.path);
        named.into_iter().map(|(line, provider)| format!("{provider}: {}", source.show(line)))
    });
    found.collect::<Vec<_>>().into()
}

fn provider_imports(house: &House) -> Found {
    let found = house.product().filter_map(|source| Some((source, provider_of(house, &source.path)?)));
    let found = found.flat_map(|(source, own)| {
        let others =
            providers_named(house, &source.path).into_iter().filter(move |(_, provider)| *provider != own);
        others.map(|(line, provider)| format!("{provider}: {}", source.show(line)))
    });
    found.collect::<Vec<_>>().into()
}
