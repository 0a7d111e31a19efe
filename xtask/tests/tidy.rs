//! The rules of the house, as a test.

use std::sync::LazyLock;

use xtask::{house::House, rules};

static HOUSE: LazyLock<House> = LazyLock::new(|| House::here().expect("the project can be read"));

#[test]
fn the_project_keeps_its_rules() {
    let mut broken = Vec::new();
    for rule in rules::all() {
        let verdict = rules::judge(&HOUSE, &rule);
        println!("{}", verdict.line);
        if !verdict.is_kept {
            broken.push(verdict.line);
            broken.extend(verdict.below);
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A name that no rule has keeps nothing.
#[test]
fn every_ceiling_is_of_a_rule() {
    let known = rules::all();
    for name in HOUSE.ceilings() {
        let rule = known
            .iter()
            .find(|rule| rule.name == name)
            .unwrap_or_else(|| panic!("no rule is called {name:?}"));
        assert_eq!(HOUSE.ceiling(name).unwrap().aim, rule.limit, "the aim of {name:?}");
    }
}
