//! The oldest Rust that the project builds with. CI builds with it; this finds what needs no build.

use serde_json::Value;

use super::{
    licences,
    rule::{Found, Rule},
};
use crate::house::House;

/// The rules of this module.
pub const RULES: &[Rule] = &[Rule {
    name: "rust-version is one that every dependency builds with, and the README names it",
    limit: 0,
    find: outdated,
}];

fn outdated(house: &House) -> Found {
    match licences::metadata() {
        Ok(metadata) => judge(&metadata, house.tree.text("README.md").unwrap_or_default()).into(),
        Err(error) => vec![error].into(),
    }
}

/// The packages of `metadata` that need a newer Rust than a crate of the project declares, and that version where the text of the README
/// does not name it.
pub(super) fn judge(metadata: &Value, readme: &str) -> Vec<String> {
    let packages = || metadata.get("packages").and_then(Value::as_array).into_iter().flatten();
    let text =
        |package: &Value, key: &str| package.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let declared: Vec<String> = packages()
        .filter(|package| package.get("source").is_none_or(Value::is_null))
        .map(|package| text(package, "rust_version"))
        .collect();
    let Some(lowest) = declared.iter().min_by_key(|version| numbers(version)) else {
        return vec!["cargo metadata listed no crate of the project".to_owned()];
    };
    let mut found = Vec::new();
    for package in packages() {
        let needed = text(package, "rust_version");
        if numbers(&needed) > numbers(lowest) {
            let (name, version) = (text(package, "name"), text(package, "version"));
            found.push(format!("{name} {version} needs Rust {needed}, and {lowest} is declared"));
        }
    }
    if !readme.contains(&format!("Rust {lowest} or newer")) {
        found.push(format!("README.md does not say \"Rust {lowest} or newer\""));
    }
    found
}

/// A version as numbers that can be compared.
fn numbers(version: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = version.split('.').map(|part| part.parse().unwrap_or(0)).collect();
    numbers.resize(3, 0);
    numbers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dependency_that_needs_a_newer_rust_is_found() {
        let package = |name: &str, source: Option<&str>, rust: Option<&str>| json!({ "name": name, "version": "1.0.0", "source": source, "rust_version": rust });
        let metadata = json!({ "packages": [
            package("ours", None, Some("1.88")),
            package("same", Some("registry"), Some("1.88.0")),
            package("older", Some("registry"), Some("1.9")),
            package("silent", Some("registry"), None),
            package("newer", Some("registry"), Some("1.90")),
        ] });
        let found = judge(&metadata, "Rust 1.88 or newer.");
        assert_eq!(found, ["newer 1.0.0 needs Rust 1.90, and 1.88 is declared"]);
        assert!(judge(&metadata, "Rust 1.80 or newer.").last().unwrap().contains("README.md"));
        assert_eq!(judge(&json!({}), "").len(), 1, "nothing to judge is no success");
    }
}
