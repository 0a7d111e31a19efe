//! Licences and sources that `deny.toml` does not allow, of everything that is compiled in.

use std::process::Command;

use serde_json::Value;

use super::rule::{Found, Rule};
use crate::{house::House, tree};

/// The rules of this module.
pub const RULES: &[Rule] =
    &[Rule { name: "licences and sources are those of deny.toml", limit: 0, find: foreign }];

/// Packages whose licence is a file, and what was read there.
const READ: &[(&str, &str)] = &[("rdma-sys", "MIT")];

/// cargo-deny checks more; this needs nothing but cargo.
fn foreign(house: &House) -> Found {
    match metadata() {
        Ok(metadata) => judge(&metadata, house.tree.text("deny.toml").unwrap_or_default()).into(),
        Err(error) => vec![error].into(),
    }
}

/// Everything that is compiled in, as cargo describes it.
pub(super) fn metadata() -> Result<Value, String> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .current_dir(tree::root())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
        }
        Ok(output) => Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("cargo metadata: {error}")),
    }
}

/// What of `metadata` is not allowed by the text of `deny.toml`.
pub(super) fn judge(metadata: &Value, deny: &str) -> Vec<String> {
    let table: toml::Table = deny.parse().unwrap_or_default();
    let allowed = table.get("licenses").and_then(|it| it.get("allow")).and_then(toml::Value::as_array);
    let allowed: Vec<&str> = allowed.into_iter().flatten().filter_map(toml::Value::as_str).collect();
    let packages = metadata.get("packages").and_then(Value::as_array);
    if packages.is_none_or(Vec::is_empty) {
        return vec!["cargo metadata listed no packages".to_owned()];
    }
    let mut found = Vec::new();
    for package in packages.into_iter().flatten() {
        let text = |key: &str| package.get(key).and_then(Value::as_str);
        let name = text("name").unwrap_or_default();
        let read = READ.iter().find(|(read, _)| *read == name).map(|(_, licence)| *licence);
        let licence = text("license").or(read).unwrap_or("none that the manifest names");
        if !fits(licence, &allowed) {
            found.push(format!("{name} {}: {licence}", text("version").unwrap_or_default()));
        }
        let source = text("source");
        if source.is_some_and(|source| {
            !source.starts_with("registry+https://github.com/rust-lang/crates.io-index")
        }) {
            found.push(format!("{name} comes from {}", source.unwrap_or_default()));
        }
    }
    found
}

/// Whether one of the alternatives of `licence` is allowed in all its parts.
fn fits(licence: &str, allowed: &[&str]) -> bool {
    let bare = |part: &str| part.trim_matches([' ', '(', ')']).to_owned();
    let alternatives = licence.split(" OR ").flat_map(|part| part.split('/'));
    alternatives
        .into_iter()
        .any(|choice| choice.split(" AND ").all(|part| allowed.contains(&bare(part).as_str())))
}
