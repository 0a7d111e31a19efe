//! The crates of the workspace, their files by module, and what a path names.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    items::{Definition, Import},
    source::Source,
    tree::Tree,
};

/// A package.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its folder, without a slash at the end; empty for the root.
    pub folder: String,
    /// Its name, as Rust code spells it.
    pub name: String,
}

/// A program, library or test: a root file and everything below it.
#[derive(Debug)]
pub struct Target {
    /// The package that it is of.
    pub package: Package,
    /// Its root file.
    pub root: String,
    /// Its modules, the root first.
    pub modules: Vec<Module>,
}

/// A module of a target.
#[derive(Debug)]
pub struct Module {
    /// Where it stands.
    pub path: Vec<String>,
    /// The file that its text is in.
    pub file: String,
    /// Whether it is compiled in tests only.
    pub is_test: bool,
    /// Whether other crates can name it, as far as its own words go.
    pub is_public: bool,
    /// Children by name.
    pub children: BTreeMap<String, usize>,
    /// The module above it.
    pub parent: Option<usize>,
    /// What it defines.
    pub definitions: Vec<Definition>,
    /// What it imports.
    pub imports: Vec<Import>,
}

/// Every package of a tree, and the targets of them.
#[derive(Default, Debug)]
pub struct Crates {
    /// In the order of their folders.
    pub packages: Vec<Package>,
    /// In the order of their roots.
    pub targets: Vec<Target>,
}

/// What a path names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Named {
    /// A module: of this target, with this number.
    Module(usize, usize),
    /// Something that this module defines, or seems to.
    Item(usize, usize),
    /// Something of a crate that is not of the workspace, by its path from there.
    Foreign(Vec<String>),
}

impl Crates {
    /// Reads the packages of `tree`, whose Rust files are `sources`.
    #[must_use]
    pub fn of(tree: &Tree, sources: &BTreeMap<String, Source>) -> Self {
        let packages: Vec<Package> = tree.files().filter_map(|(path, text)| package(path, text)).collect();
        let mut crates = Self { packages, targets: Vec::new() };
        for path in sources.keys() {
            let Some(package) = crates.package_of(path) else { continue };
            let inside = path[package.folder.len()..].trim_start_matches('/');
            if is_root(inside) || is_named_root(tree, package, inside) {
                let target = Target::of(package.clone(), path, sources);
                crates.targets.push(target);
            }
        }
        crates
    }

    /// The package that a file belongs to.
    #[must_use]
    pub fn package_of(&self, path: &str) -> Option<&Package> {
        let owns = |package: &&Package| {
            package.folder.is_empty()
                || path.strip_prefix(&package.folder).is_some_and(|rest| rest.starts_with('/'))
        };
        self.packages.iter().filter(owns).max_by_key(|package| package.folder.len())
    }

    /// The library of the package that code calls `name`.
    #[must_use]
    pub fn library(&self, name: &str) -> Option<usize> {
        self.targets.iter().position(|target| target.is_library() && target.package.name == name)
    }

    /// Files of libraries and programs that are compiled in tests only, and those of test targets.
    #[must_use]
    pub fn test_files(&self) -> BTreeSet<&str> {
        let mut uses: BTreeMap<&str, bool> = BTreeMap::new();
        for target in &self.targets {
            for module in &target.modules {
                let is_test = module.is_test || target.is_test();
                uses.entry(&module.file).and_modify(|only| *only &= is_test).or_insert(is_test);
            }
        }
        uses.into_iter().filter(|(_, only)| *only).map(|(file, _)| file).collect()
    }

    /// What `path` names, seen from a module of a target.
    #[must_use]
    pub fn resolve(&self, target: usize, module: usize, path: &[String]) -> Option<Named> {
        self.walk(target, module, path, 0)
    }

    fn walk(&self, target: usize, module: usize, path: &[String], depth: usize) -> Option<Named> {
        // A circle of imports names nothing.
        if depth > 24 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let modules = &self.targets[target].modules;
        let named = match first.as_str() {
            "crate" => Named::Module(target, 0),
            "self" => Named::Module(target, module),
            "::" => return self.walk_crate(rest, depth),
            "super" => Named::Module(target, modules[module].parent?),
            name => match self.member(target, module, name, depth) {
                Some(named) => named,
                None => return self.walk_crate(path, depth),
            },
        };
        self.follow(named, rest, depth)
    }

    /// What a path names that begins with a crate.
    fn walk_crate(&self, path: &[String], depth: usize) -> Option<Named> {
        match self.library(path.first()?) {
            Some(library) => self.follow(Named::Module(library, 0), &path[1..], depth),
            None => Some(Named::Foreign(path.to_vec())),
        }
    }

    fn follow(&self, named: Named, rest: &[String], depth: usize) -> Option<Named> {
        let mut named = named;
        for segment in rest {
            named = match named {
                Named::Module(target, module) if segment == "super" => {
                    Named::Module(target, self.targets[target].modules[module].parent?)
                }
                // What a macro makes is not seen, and is the module's own.
                Named::Module(target, module) => {
                    self.member(target, module, segment, depth).unwrap_or(Named::Item(target, module))
                }
                Named::Foreign(path) => Named::Foreign([path, vec![segment.clone()]].concat()),
                item @ Named::Item(..) => return Some(item),
            };
        }
        Some(named)
    }

    /// What `name` is in a module: a child, something it defines, something it imports.
    fn member(&self, target: usize, module: usize, name: &str, depth: usize) -> Option<Named> {
        let it = &self.targets[target].modules[module];
        if let Some(child) = it.children.get(name) {
            return Some(Named::Module(target, *child));
        }
        if it.definitions.iter().any(|definition| definition.name == name) {
            return Some(Named::Item(target, module));
        }
        let is_of =
            |import: &&Import| import.name == name && import.path.first().is_none_or(|first| first != name);
        // Of several for different builds, the one of a normal build.
        let mut imports = it.imports.iter().filter(is_of);
        if let Some(import) = imports.clone().find(|import| !import.is_test).or_else(|| imports.next()) {
            return self.walk(target, module, &import.path, depth + 1);
        }
        for import in it.imports.iter().filter(|import| import.name == "*") {
            let Some(Named::Module(target, module)) = self.walk(target, module, &import.path, depth + 1)
            else {
                continue;
            };
            if depth < 6
                && let Some(named) = self.member(target, module, name, depth + 1)
            {
                return Some(named);
            }
        }
        None
    }

    /// The file of what is named; `None` of what is elsewhere.
    #[must_use]
    pub fn file(&self, named: &Named) -> Option<&str> {
        match named {
            Named::Module(target, module) | Named::Item(target, module) => {
                Some(&self.targets[*target].modules[*module].file)
            }
            Named::Foreign(_) => None,
        }
    }
}

impl Target {
    fn of(package: Package, root: &str, sources: &BTreeMap<String, Source>) -> Self {
        let mut target = Self { package, root: root.to_owned(), modules: Vec::new() };
        target.add(root, &[], None, Vec::new(), (false, true), sources);
        target
    }

    /// Whether it is a library.
    #[must_use]
    pub fn is_library(&self) -> bool {
        self.root.ends_with("src/lib.rs")
    }

    /// Whether it is a test or a bench.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let inside = self.root[self.package.folder.len()..].trim_start_matches('/');
        inside.starts_with("tests/") || inside.starts_with("benches/")
    }

    /// Adds the module `inner` of `file`, whose path is `path`, and all below it.
    fn add(
        &mut self,
        file: &str,
        inner: &[String],
        parent: Option<usize>,
        path: Vec<String>,
        (is_test, is_public): (bool, bool),
        sources: &BTreeMap<String, Source>,
    ) -> Option<usize> {
        let source = sources.get(file)?;
        let number = self.modules.len();
        self.modules.push(Module {
            path: path.clone(),
            file: file.to_owned(),
            is_test,
            is_public,
            children: BTreeMap::new(),
            parent,
            definitions: source.items.definitions.iter().filter(|it| it.module == inner).cloned().collect(),
            imports: source.items.imports.iter().filter(|it| it.module == inner).cloned().collect(),
        });
        for declared in source.items.modules.iter().filter(|it| it.module == inner) {
            let path: Vec<String> = path.iter().cloned().chain([declared.name.clone()]).collect();
            let (flags, below) = ((is_test || declared.is_test, declared.is_public), Some(number));
            let child = if declared.is_inline {
                let inner: Vec<String> = inner.iter().cloned().chain([declared.name.clone()]).collect();
                self.add(file, &inner, below, path, flags, sources)
            } else {
                let files = places(file, number == 0, inner, declared.path.as_deref(), &declared.name);
                let found = files.into_iter().find(|file| sources.contains_key(file));
                found.and_then(|file| self.add(&file, &[], below, path, flags, sources))
            };
            // Of several by the same name, for different builds, the first that is no test.
            if let Some(child) = child {
                self.modules[number].children.entry(declared.name.clone()).or_insert(child);
            }
        }
        Some(number)
    }
}

/// Where the text of `mod name;` may lie.
fn places(file: &str, is_root: bool, inner: &[String], path: Option<&str>, name: &str) -> Vec<String> {
    let (folder, file_name) = file.rsplit_once('/').unwrap_or(("", file));
    if let Some(path) = path {
        return vec![normal(&format!("{folder}/{path}"))];
    }
    let stem = file_name.trim_end_matches(".rs");
    let mut base = folder.to_owned();
    if !is_root && stem != "mod" {
        base = format!("{base}/{stem}");
    }
    for module in inner {
        base = format!("{base}/{module}");
    }
    vec![format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]
}

/// A path without `..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

fn package(path: &str, text: &str) -> Option<Package> {
    let folder = path.strip_suffix("Cargo.toml")?.trim_end_matches('/');
    let table: toml::Table = text.parse().ok()?;
    let name = table.get("package")?.get("name")?.as_str()?;
    Some(Package { folder: folder.to_owned(), name: name.replace('-', "_") })
}

fn is_root(inside: &str) -> bool {
    let parts: Vec<&str> = inside.split('/').collect();
    match parts.as_slice() {
        ["src", "lib.rs" | "main.rs"] | ["build.rs"] => true,
        ["src", "bin", file] | ["examples" | "tests" | "benches" | "fuzz_targets", file] => {
            file.ends_with(".rs")
        }
        ["src", "bin", _, "main.rs"] | ["examples" | "tests" | "benches", _, "main.rs"] => true,
        _ => false,
    }
}

/// Whether the package's manifest names the file as a root.
fn is_named_root(tree: &Tree, package: &Package, inside: &str) -> bool {
    let manifest = format!("{}/Cargo.toml", package.folder);
    let text = tree.text(manifest.trim_start_matches('/')).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    ["bin", "example", "test", "bench"].iter().any(|kind| {
        let targets = table.get(*kind).and_then(toml::Value::as_array);
        targets.is_some_and(|targets| {
            targets.iter().any(|target| target.get("path").and_then(toml::Value::as_str) == Some(inside))
        })
    })
}
