//! The public API of `gimmal`, as a text in the tree (`gimmal/api.txt`): a change of it shows in review. The names come from
//! `gimmal/src/lib.rs`, what they are from the sources of the crates that define them.
//!
//! To update the text: `GIMMAL_API=write cargo test -p gimmal --test api`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use quote::ToTokens;
use syn::{
    Attribute, FnArg, ImplItem, Item, ItemImpl, ItemUse, ReturnType, Signature, TraitItem, Type, UseTree,
    Visibility, parse_quote,
};

/// Names at the root beside the modules.
const ROOT_MAX: usize = 40;

/// A name of the facade, and where it comes from.
struct Name {
    /// `codec::Postcard`.
    path: String,
    /// The crate that defines it, by its folder.
    folder: &'static str,
    /// The path in that crate.
    source: Vec<String>,
}

/// The items of a crate, by name.
#[derive(Default)]
struct Sources {
    /// With the file that each lies in.
    items: BTreeMap<String, Vec<(PathBuf, Item)>>,
    /// By the name of the type that they are for.
    impls: BTreeMap<String, Vec<ItemImpl>>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Tokens as rustfmt would space them, near enough.
fn spelled(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        ("& ", "&"),
        (" ,", ","),
        (" ;", ";"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" : ", ": "),
        (" .", "."),
        ("-> (", "-> ("),
        ("[ ", "["),
        ("? ", "?"),
        ("=(", "= ("),
        (", }", " }"),
        (" ]", "]"),
    ] {
        text = text.replace(from, to);
    }
    text.replace("->", " -> ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    let hidden: Attribute = parse_quote!(#[doc(hidden)]);
    let test: Attribute = parse_quote!(#[cfg(test)]);
    attributes.contains(&hidden) || attributes.contains(&test)
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

/// The `cfg` of an item, which is a part of what it is.
fn condition(attributes: &[Attribute]) -> String {
    let cfg = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfg.map(|attribute| format!("{} ", spelled(attribute))).collect()
}

impl Sources {
    fn of(folder: &str) -> Self {
        let mut sources = Self::default();
        sources.walk(&root().join(folder).join("src"));
        sources
    }

    fn walk(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.walk(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
                self.add(&path, file.items);
            }
        }
    }

    fn add(&mut self, path: &Path, items: Vec<Item>) {
        for item in items {
            let name = match &item {
                Item::Struct(item) => &item.ident,
                Item::Enum(item) => &item.ident,
                Item::Trait(item) => &item.ident,
                Item::Type(item) => &item.ident,
                Item::Const(item) => &item.ident,
                Item::Fn(item) => &item.sig.ident,
                Item::Mod(item) if is_hidden(&item.attrs) => continue,
                Item::Mod(module) => {
                    let items = module.content.clone().map(|(_, items)| items).unwrap_or_default();
                    self.add(path, items);
                    continue;
                }
                Item::Impl(item) => {
                    if let Type::Path(ty) = &*item.self_ty {
                        let name = ty.path.segments.last().unwrap().ident.to_string();
                        self.impls.entry(name).or_default().push(item.clone());
                    }
                    continue;
                }
                _ => continue,
            };
            self.items.entry(name.to_string()).or_default().push((path.to_owned(), item));
        }
    }

    /// The public item of this path; where several have its name, the one whose file the path names.
    fn find(&self, path: &[String]) -> Option<&Item> {
        let (name, modules) = path.split_last()?;
        let public = |(_, item): &&(PathBuf, Item)| match item {
            Item::Struct(item) => is_public(&item.vis),
            Item::Enum(item) => is_public(&item.vis),
            Item::Trait(item) => is_public(&item.vis),
            Item::Type(item) => is_public(&item.vis),
            Item::Const(item) => is_public(&item.vis),
            Item::Fn(item) => is_public(&item.vis),
            _ => false,
        };
        let found: Vec<_> = self.items.get(name)?.iter().filter(public).collect();
        let in_file = |(path, _): &&&(PathBuf, Item)| {
            modules.iter().all(|module| {
                path.iter().any(|part| part.to_string_lossy().trim_end_matches(".rs") == module)
            })
        };
        let [(_, item)] = found[..] else { return found.iter().find(in_file).map(|(_, item)| item) };
        Some(item)
    }
}

/// The names that a `use` brings, each with the path that it comes from.
fn names(tree: &UseTree, path: &mut Vec<String>, seen: &mut impl FnMut(String, Vec<String>)) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            names(&step.tree, path, seen);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, path, seen)),
        UseTree::Name(name) => {
            path.push(name.ident.to_string());
            seen(name.ident.to_string(), path.clone());
            path.pop();
        }
        UseTree::Rename(renamed) => {
            path.push(renamed.ident.to_string());
            seen(renamed.rename.to_string(), path.clone());
            path.pop();
        }
        UseTree::Glob(_) => panic!("{} lists no names: the facade names each", path.join("::")),
    }
}

fn exported(item: &ItemUse, module: &str, out: &mut Vec<Name>) {
    names(&item.tree, &mut Vec::new(), &mut |name, source| {
        let path = format!("{module}{name}");
        let (folder, skipped) = match source.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["gimmal_rpc", "engine", "transport", ..] => ("transport", 3),
            ["gimmal_rpc", "engine", ..] => ("engine", 2),
            ["gimmal_rpc", ..] => ("rpc", 1),
            ["self", ..] => ("gimmal", 1),
            _ => panic!("{path} comes from {}: the facade stands on the RPC layer", source.join("::")),
        };
        out.push(Name { path, folder, source: source[skipped..].to_vec() });
    });
}

fn signature(sig: &Signature) -> String {
    let inputs = sig.inputs.iter().map(|input| match input {
        FnArg::Receiver(receiver) => spelled(receiver),
        FnArg::Typed(typed) => spelled(&typed.ty),
    });
    let inputs: Vec<_> = inputs.collect();
    let output = match &sig.output {
        ReturnType::Default => String::new(),
        ReturnType::Type(_, ty) => format!(" -> {}", spelled(ty)),
    };
    let asyncness = sig.asyncness.map_or("", |_| "async ");
    let (_, _, bounds) = sig.generics.split_for_impl();
    let bounds =
        bounds.map(|bounds| format!(" {}", spelled(bounds).trim_end_matches(','))).unwrap_or_default();
    let generics = spelled(&sig.generics);
    format!("{asyncness}fn {}{generics}({}){output}{bounds}", sig.ident, inputs.join(", "))
}

/// What an item is, and below it what a user of it can name.
fn described(name: &Name, sources: &Sources, out: &mut String) {
    let Name { path, source, .. } = name;
    let mut below = BTreeSet::new();
    let kind = match sources.find(source) {
        None => "made by a macro".to_owned(),
        Some(Item::Struct(item)) => {
            let public = item.fields.iter().filter(|field| is_public(&field.vis) && !is_hidden(&field.attrs));
            for (at, field) in public.enumerate() {
                let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
                below.insert(format!("field {name}: {}", spelled(&field.ty)));
            }
            format!("struct{}", spelled(&item.generics))
        }
        Some(Item::Enum(item)) => {
            for variant in &item.variants {
                let mut variant = variant.clone();
                variant.attrs.clear();
                variant.fields.iter_mut().for_each(|field| field.attrs.clear());
                below.insert(format!("variant {}", spelled(&variant)));
            }
            format!("enum{}", spelled(&item.generics))
        }
        Some(Item::Trait(item)) => {
            for inner in &item.items {
                match inner {
                    TraitItem::Fn(inner) if !is_hidden(&inner.attrs) => {
                        let default = if inner.default.is_some() { "provided " } else { "" };
                        below.insert(format!("{default}{}", signature(&inner.sig)));
                    }
                    TraitItem::Type(inner) => {
                        below.insert(format!("type {}{}", inner.ident, spelled(&inner.generics)));
                    }
                    _ => {}
                }
            }
            format!("trait{}", spelled(&item.generics))
        }
        Some(Item::Type(item)) => format!("type{} = {}", spelled(&item.generics), spelled(&item.ty)),
        Some(Item::Const(item)) => format!("const: {}", spelled(&item.ty)),
        Some(Item::Fn(item)) => signature(&item.sig),
        Some(_) => unreachable!("only what `find` finds"),
    };
    let written = source.last().unwrap();
    let matching = sources.impls.get(written).into_iter().flatten().filter(|item| item.trait_.is_none());
    for item in matching {
        for inner in &item.items {
            if let ImplItem::Fn(method) = inner
                && is_public(&method.vis)
                && !is_hidden(&method.attrs)
            {
                below.insert(format!("{}{}", condition(&method.attrs), signature(&method.sig)));
            }
        }
    }
    writeln!(out, "{path}: {kind}").unwrap();
    below.iter().for_each(|line| writeln!(out, "    {line}").unwrap());
}

/// Every public name of the facade.
fn facade() -> Vec<Name> {
    let file = syn::parse_file(&fs::read_to_string(root().join("gimmal/src/lib.rs")).unwrap()).unwrap();
    let mut all = Vec::new();
    for item in &file.items {
        match item {
            Item::Use(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                exported(item, "", &mut all)
            }
            Item::Mod(module) if is_public(&module.vis) && !is_hidden(&module.attrs) => {
                for inner in module.content.iter().flat_map(|(_, items)| items) {
                    match inner {
                        Item::Use(inner) => exported(inner, &format!("{}::", module.ident), &mut all),
                        Item::Mod(inner) if !is_public(&inner.vis) => {}
                        _ => panic!("{} does more than name things", module.ident),
                    }
                }
            }
            Item::Fn(item) if is_public(&item.vis) => all.push(Name {
                path: item.sig.ident.to_string(),
                folder: "gimmal",
                source: vec![item.sig.ident.to_string()],
            }),
            _ => {}
        }
    }
    all.sort_by_key(|name| (name.path.contains("::"), name.path.clone()));
    all
}

#[test]
fn the_public_api_is_the_one_that_was_written_down() {
    let names = facade();
    let at_root = names.iter().filter(|name| !name.path.contains("::")).count();
    assert!(
        at_root <= ROOT_MAX,
        "{at_root} names at the root of gimmal, at most {ROOT_MAX}: move some into a module"
    );
    let crates = ["gimmal", "rpc", "engine", "transport"].map(|folder| (folder, Sources::of(folder)));
    let sources: BTreeMap<_, _> = crates.into();
    let mut found = String::new();
    for name in &names {
        described(name, &sources[name.folder], &mut found);
    }
    let path = root().join("gimmal/api.txt");
    if std::env::var_os("GIMMAL_API").is_some_and(|value| value == "write") {
        fs::write(&path, &found).unwrap();
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let lost: Vec<_> = written.lines().filter(|line| !found.lines().any(|other| other == *line)).collect();
    let new: Vec<_> = found.lines().filter(|line| !written.lines().any(|other| other == *line)).collect();
    assert!(
        written == found,
        "the public API of gimmal is not what gimmal/api.txt says\n- {}\n+ {}\nif that is meant: GIMMAL_API=write cargo test -p gimmal --test api",
        lost.join("\n- "),
        new.join("\n+ "),
    );
}
