//! Import circles inside a crate: files that need each other, by way of others or directly.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Found, Rule};
use crate::{
    crates::{Named, Target},
    house::House,
    items::Import,
    paths,
    source::Source,
};

/// The rules of this module.
pub const RULES: &[Rule] =
    &[Rule { name: "files in import circles inside a crate", limit: 0, find: circles }];

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Files in circles. A name that another file only exports again is imported from where it is defined.
fn circles(house: &House) -> Found {
    let mut found: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for (number, target) in house.crates.targets.iter().enumerate().filter(|(_, target)| !target.is_test()) {
        let graph = imports(house, number, target);
        for circle in strong(&graph) {
            let edges = circle.iter().map(|file| {
                let inside = graph[file].iter().filter(|to| circle.contains(to)).map(|to| short(to, target));
                format!("{} -> {}", short(file, target), inside.collect::<Vec<_>>().join(", "))
            });
            let text = edges.collect::<Vec<_>>().join("\n          ");
            found.entry(circle).or_insert_with(|| format!("{}: {text}", target.package.name));
        }
    }
    let files: usize = found.keys().map(Vec::len).sum();
    let offenders = found.iter().map(|(circle, text)| format!("{} files in {text}", circle.len()));
    Found { number: files, offenders: offenders.collect(), notes: Vec::new() }
}

fn short(file: &str, target: &Target) -> String {
    file[target.package.folder.len()..].trim_start_matches('/').trim_start_matches("src/").to_owned()
}

/// What each file of a target imports of the others, outside of tests.
fn imports(house: &House, number: usize, target: &Target) -> Graph {
    let mut graph = Graph::new();
    for (at, module) in target.modules.iter().enumerate().filter(|(_, module)| !module.is_test) {
        let source = &house.sources[&module.file];
        let edges = graph.entry(module.file.clone()).or_default();
        let mut add = |path: &[String]| {
            let Some(named) = house.crates.resolve(number, at, path) else { return };
            // A module that is imported is used by the paths that begin with it.
            if let (Named::Item(of, _), Some(file)) = (&named, house.crates.file(&named))
                && *of == number
                && file != module.file
            {
                edges.insert(file.to_owned());
            }
        };
        for import in module.imports.iter().filter(|import| is_used(import, source)) {
            add(&import.path);
        }
        // Paths of modules inside of a file are read with the file's own.
        if module.path.len() == own_depth(target, at) {
            for spelt in paths::inline(&source.code_tokens()) {
                add(&spelt.path);
            }
        }
        if let Some(glob) =
            module.imports.iter().find(|import| import.name == "*" && !import.is_exported && !import.is_test)
            && let Some(Named::Module(of, other)) = house.crates.resolve(number, at, &glob.path)
        {
            let file = &target.modules[other].file;
            if of == number && *file != module.file {
                edges.insert(file.clone());
            }
        }
    }
    graph
}

/// How deep the outermost module of a module's file is.
fn own_depth(target: &Target, module: usize) -> usize {
    let file = &target.modules[module].file;
    let depths = target.modules.iter().filter(|it| it.file == *file).map(|it| it.path.len());
    depths.min().unwrap_or_default()
}

/// Whether the file needs what it imports, and does not only export it again.
fn is_used(import: &Import, source: &Source) -> bool {
    if import.is_test || import.name == "*" {
        return false;
    }
    !import.is_exported || uses_outside_imports(source, &import.name)
}

fn uses_outside_imports(source: &Source, name: &str) -> bool {
    let mut is_import = false;
    for token in source.code() {
        if token.is("use") {
            is_import = true;
        } else if token.is_punct(';') {
            is_import = false;
        } else if !is_import && token.is(name) {
            return true;
        }
    }
    false
}

/// Sets of files of which each reaches every other, of two or more, largest first (Tarjan).
fn strong(graph: &Graph) -> Vec<Vec<String>> {
    let mut search = Search::new(graph);
    for file in graph.keys() {
        if !search.number.contains_key(file.as_str()) {
            search.visit(file);
        }
    }
    let mut found = search.found;
    found.iter_mut().for_each(|circle| circle.sort());
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

struct Search<'a> {
    graph: &'a Graph,
    number: BTreeMap<&'a str, usize>,
    lowest: BTreeMap<&'a str, usize>,
    path: Vec<&'a str>,
    found: Vec<Vec<String>>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self { graph, number: BTreeMap::new(), lowest: BTreeMap::new(), path: Vec::new(), found: Vec::new() }
    }

    fn visit(&mut self, file: &'a str) {
        let own = self.number.len();
        self.number.insert(file, own);
        self.lowest.insert(file, own);
        self.path.push(file);
        for next in self.graph.get(file).into_iter().flatten() {
            let reached = match self.number.get(next.as_str()) {
                None => {
                    self.visit(next);
                    self.lowest.get(next.as_str()).copied()
                }
                Some(number) => self.path.contains(&next.as_str()).then_some(*number),
            };
            if let Some(lowest) = self.lowest.get_mut(file) {
                *lowest = (*lowest).min(reached.unwrap_or(usize::MAX));
            }
        }
        if self.lowest[file] == own {
            let start = self.path.iter().position(|it| *it == file).unwrap_or_default();
            let circle: Vec<String> = self.path.drain(start..).map(str::to_owned).collect();
            if circle.len() > 1 {
                self.found.push(circle);
            }
        }
    }
}
