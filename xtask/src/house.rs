//! Everything that the rules look at: the files, read once, and the settings of `tests/tidy.toml`.

use std::{collections::BTreeMap, io, thread};

use crate::{crates::Crates, source::Source, tree::Tree};

/// The settings' file.
pub const SETTINGS: &str = "tests/tidy.toml";

/// The project as the rules see it.
#[derive(Debug)]
pub struct House {
    /// Every text file.
    pub tree: Tree,
    /// Every Rust file that is no example of a compile error.
    pub sources: BTreeMap<String, Source>,
    /// The crates that they make.
    pub crates: Crates,
    settings: toml::Table,
}

/// How far a rule is allowed to be from its limit for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ceiling {
    /// The most that is allowed.
    pub now: usize,
    /// The rule's limit.
    pub aim: usize,
}

impl House {
    /// The working tree.
    ///
    /// # Errors
    /// The files cannot be listed, or the settings are no TOML.
    pub fn here() -> io::Result<Self> {
        Self::of(Tree::here()?)
    }

    /// The files of `tree`.
    ///
    /// # Errors
    /// The settings are no TOML.
    pub fn of(tree: Tree) -> io::Result<Self> {
        let settings = tree.text(SETTINGS).unwrap_or_default().to_owned();
        Self::with(tree, &settings)
    }

    /// The files of `tree`, with other settings than its own.
    ///
    /// # Errors
    /// The settings are no TOML.
    pub fn with(tree: Tree, settings: &str) -> io::Result<Self> {
        let settings = settings.parse().map_err(|error| io::Error::other(format!("{SETTINGS}: {error}")))?;
        let sources = read(&tree);
        let crates = Crates::of(&tree, &sources);
        Ok(Self { tree, sources, crates, settings })
    }

    /// The paths that the settings list under `key`. A folder ends with a slash.
    #[must_use]
    pub fn paths(&self, key: &str) -> Vec<&str> {
        let list =
            self.settings.get("paths").and_then(|paths| paths.get(key)).and_then(toml::Value::as_array);
        list.into_iter().flatten().filter_map(toml::Value::as_str).collect()
    }

    /// A word that the settings have in a section.
    #[must_use]
    pub fn word(&self, section: &str, key: &str) -> Option<&str> {
        self.settings.get(section)?.get(key)?.as_str()
    }

    /// The lists of a section by their names.
    #[must_use]
    pub fn lists(&self, section: &str) -> Vec<(&str, Vec<&str>)> {
        let table = self.settings.get(section).and_then(toml::Value::as_table);
        table
            .into_iter()
            .flatten()
            .map(|(name, value)| {
                let entries = value.as_array().into_iter().flatten().filter_map(toml::Value::as_str);
                (name.as_str(), entries.collect())
            })
            .collect()
    }

    /// Whether the settings list `path`, or a folder above it, under `key`.
    #[must_use]
    pub fn is_in(&self, path: &str, key: &str) -> bool {
        self.paths(key).iter().any(|entry| covers(entry, path))
    }

    /// The Rust files that the settings list under `key`, without those that are compiled in tests only.
    pub fn listed<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Source> {
        let tests = self.crates.test_files();
        self.sources
            .values()
            .filter(move |source| self.is_in(&source.path, key) && !tests.contains(source.path.as_str()))
    }

    /// Rust files of libraries and programs: no tests, benches or examples.
    pub fn product(&self) -> impl Iterator<Item = &Source> {
        let tests = self.crates.test_files();
        self.sources.values().filter(move |source| {
            let folder = self.crates.package_of(&source.path).map_or("", |package| package.folder.as_str());
            let inside = source.path[folder.len()..].trim_start_matches('/');
            inside.starts_with("src/") && !tests.contains(source.path.as_str())
        })
    }

    /// The ceiling of a rule.
    #[must_use]
    pub fn ceiling(&self, rule: &str) -> Option<Ceiling> {
        let table = self.settings.get("ceilings")?.get(rule)?;
        let number = |key| usize::try_from(table.get(key)?.as_integer()?).ok();
        Some(Ceiling { now: number("now")?, aim: number("aim")? })
    }

    /// The rules that have a ceiling.
    #[must_use]
    pub fn ceilings(&self) -> Vec<&str> {
        let table = self.settings.get("ceilings").and_then(toml::Value::as_table);
        table.into_iter().flat_map(toml::Table::keys).map(String::as_str).collect()
    }

    /// Entries of the settings' paths that no file is at.
    #[must_use]
    pub fn dead_paths(&self) -> Vec<String> {
        let paths = self.settings.get("paths").and_then(toml::Value::as_table);
        let entries = paths.into_iter().flatten().flat_map(|(key, list)| {
            list.as_array().into_iter().flatten().filter_map(toml::Value::as_str).map(move |path| (key, path))
        });
        let dead = entries.filter(|(_, entry)| !self.tree.files().any(|(path, _)| covers(entry, path)));
        dead.map(|(key, entry)| format!("{SETTINGS}: {key}: no file is at {entry}")).collect()
    }
}

/// Whether an entry is `path` or a folder above it.
#[must_use]
pub fn covers(entry: &str, path: &str) -> bool {
    if entry.ends_with('/') { path.starts_with(entry) } else { path == entry }
}

/// Reads the Rust files, with a thread for each processor.
fn read(tree: &Tree) -> BTreeMap<String, Source> {
    let files: Vec<(&str, &str)> = tree.files().filter(|(path, _)| path.ends_with(".rs")).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<Vec<Source>> = thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|first| {
                let files = &files;
                let part = files.iter().skip(first).step_by(threads);
                scope.spawn(|| part.map(|(path, text)| Source::read(path, text)).collect())
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap_or_default()).collect()
    });
    parts.into_iter().flatten().map(|source| (source.path.clone(), source)).collect()
}
