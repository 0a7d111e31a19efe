//! How much a reader must hold: the contract, a type's methods, the facade's names, message kinds, long files and functions,
//! and names that stand for two things.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Found, Rule};
use crate::{
    crates::{Crates, Named},
    house::House,
    items::Definition,
};

/// The rules of this module.
pub const RULES: &[Rule] = &[
    Rule { name: "methods that a provider can implement", limit: 24, find: contract_methods },
    Rule { name: "public inherent methods of a type", limit: 20, find: inherent_methods },
    Rule { name: "names at the root of gimmal", limit: 40, find: root_names },
    Rule { name: "kinds of RPC message", limit: 8, find: message_kinds },
    Rule { name: "code lines of a file without its tests", limit: 500, find: code_lines },
    Rule { name: "lines of a function", limit: 70, find: function_lines },
    Rule { name: "public types of one crate that share a name", limit: 0, find: public_homonyms },
    Rule { name: "types imported into one file that share a name", limit: 0, find: imported_homonyms },
];

/// Methods of the data side's traits and of the traits above them that are defined beside them.
fn contract_methods(house: &House) -> Found {
    let traits: BTreeMap<&str, &Definition> = house
        .listed("contract")
        .flat_map(|source| &source.items.definitions)
        .filter(|it| it.keyword == "trait" && !it.is_test)
        .map(|it| (it.name.as_str(), it))
        .collect();
    let wanted = house.lists("contract").into_iter().flat_map(|(_, names)| names);
    let mut open: Vec<&str> = wanted.filter(|name| traits.contains_key(name)).collect();
    let mut counted = BTreeMap::new();
    while let Some(name) = open.pop() {
        if let Some(it) = traits.get(name)
            && counted.insert(name, it.methods.len()).is_none()
        {
            open.extend(it.above.iter().map(String::as_str));
        }
    }
    let number = counted.values().sum();
    let parts: Vec<String> = counted.iter().map(|(name, methods)| format!("{name} {methods}")).collect();
    let mut offenders = Vec::new();
    if counted.is_empty() {
        return Found {
            number: usize::MAX,
            offenders: vec!["no trait of the contract was found".to_owned()],
            notes: Vec::new(),
        };
    }
    offenders.push(parts.join(", "));
    Found { number, offenders, notes: Vec::new() }
}

fn inherent_methods(house: &House) -> Found {
    let mut public: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut methods: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for source in house.product() {
        let Some(package) = house.crates.package_of(&source.path) else { continue };
        let types = source.items.definitions.iter().filter(|it| it.is_public && !it.is_test);
        public.extend(types.map(|it| (package.folder.as_str(), it.name.as_str())));
        for method in source.items.functions.iter().filter(|it| it.is_public && !it.is_test) {
            if let Some(of) = &method.of {
                methods.entry((package.folder.as_str(), of)).or_default().insert(&method.name);
            }
        }
    }
    let counted = methods.into_iter().filter(|(key, _)| public.contains(key));
    Found::largest(counted.map(|((folder, name), methods)| (methods.len(), format!("{folder}: {name}"))), 20)
}

/// Names that a user of the facade finds at its root, modules aside.
fn root_names(house: &House) -> Found {
    let Some(facade) = house.word("facade", "crate").and_then(|name| house.crates.library(name)) else {
        return Found::from(vec!["the facade was not found".to_owned()]);
    };
    let (mut names, mut modules) = (BTreeSet::new(), BTreeSet::new());
    public_names(&house.crates, (facade, 0), &mut names, &mut modules, 0);
    let offenders = vec![names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")];
    let notes = vec![format!("beside {} modules", modules.len())];
    Found { number: names.len(), offenders, notes }
}

fn public_names(
    crates: &Crates,
    (target, module): (usize, usize),
    names: &mut BTreeSet<String>,
    modules: &mut BTreeSet<String>,
    depth: usize,
) {
    let it = &crates.targets[target].modules[module];
    for definition in it.definitions.iter().filter(|it| it.is_public && !it.is_hidden && !it.is_test) {
        names.insert(definition.name.clone());
    }
    for (name, child) in &it.children {
        let child = &crates.targets[target].modules[*child];
        if child.is_public && !child.is_test && !name.starts_with("__") {
            modules.insert(name.clone());
        }
    }
    for import in it.imports.iter().filter(|import| import.is_public && !import.is_hidden && !import.is_test)
    {
        let named = crates.resolve(target, module, &import.path);
        match (import.name.as_str(), named) {
            ("*", Some(Named::Module(target, module))) if depth < 8 => {
                public_names(crates, (target, module), names, modules, depth + 1);
            }
            ("*" | "_", _) => {}
            (name, Some(Named::Module(..))) => drop(modules.insert(name.to_owned())),
            (name, _) => drop(names.insert(name.to_owned())),
        }
    }
}

/// Variants of the enum that says what a message is.
fn message_kinds(house: &House) -> Found {
    let wanted = house.word("kinds", "enum").unwrap_or_default();
    let kinds = house.listed("kinds").flat_map(|source| &source.items.definitions);
    let Some(kinds) = kinds.into_iter().find(|it| it.keyword == "enum" && it.name == wanted && !it.is_test)
    else {
        return Found {
            number: usize::MAX,
            offenders: vec![format!("the enum {wanted} was not found")],
            notes: Vec::new(),
        };
    };
    Found { number: kinds.variants.len(), offenders: vec![kinds.variants.join(" ")], notes: Vec::new() }
}

fn code_lines(house: &House) -> Found {
    Found::largest(house.sources.values().map(|source| (source.code_lines(), source.path.clone())), 500)
}

fn function_lines(house: &House) -> Found {
    let functions = house.sources.values().flat_map(|source| {
        source.items.functions.iter().map(|it| (it.lines, format!("{} {}", source.at(it.line), it.name)))
    });
    Found::largest(functions, 70)
}

fn is_type(definition: &Definition) -> bool {
    ["struct", "enum", "union", "type", "trait"].contains(&definition.keyword)
}

fn public_homonyms(house: &House) -> Found {
    let mut places: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for source in house.product() {
        let Some(package) = house.crates.package_of(&source.path) else { continue };
        for it in source.items.definitions.iter().filter(|it| is_type(it) && it.is_public && !it.is_test) {
            places.entry((&package.folder, &it.name)).or_default().insert(source.path.clone());
        }
    }
    let shared = places.into_iter().filter(|(_, places)| places.len() > 1);
    let shared = shared
        .map(|((_, name), places)| format!("{name}: {}", places.into_iter().collect::<Vec<_>>().join(", ")));
    shared.collect::<Vec<_>>().into()
}

/// Types of one name that one file imports from two places, one of them under another name or in another block.
fn imported_homonyms(house: &House) -> Found {
    let mut found = BTreeSet::new();
    for (number, target) in house.crates.targets.iter().enumerate() {
        let mut places: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
        for (at, module) in target.modules.iter().enumerate().filter(|(_, module)| !module.is_test) {
            for import in module
                .imports
                .iter()
                .filter(|import| !import.is_test && !import.is_exported && import.name != "_")
            {
                let Some(name) = import
                    .path
                    .last()
                    .filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase()))
                else {
                    continue;
                };
                if name.chars().all(|character| character.is_ascii_uppercase() || character == '_') {
                    continue;
                }
                // What is imported from a workspace crate is where it is defined; anything else is its path.
                let place = match house.crates.resolve(number, at, &import.path) {
                    Some(Named::Foreign(path)) => path.join("::"),
                    Some(named) => house.crates.file(&named).unwrap_or_default().to_owned(),
                    None => import.path.join("::"),
                };
                places.entry((&module.file, name)).or_default().insert(place);
            }
        }
        let shared = places.into_iter().filter(|(_, places)| places.len() > 1);
        found.extend(shared.map(|((file, name), places)| {
            format!("{file}: {name}: {}", places.into_iter().collect::<Vec<_>>().join(", "))
        }));
    }
    found.into_iter().collect::<Vec<_>>().into()
}
