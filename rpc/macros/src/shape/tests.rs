//! What the derive says about attributes that a shape cannot tell, and the names that serde's rules make.

use super::{derive, rename};

fn complaint(item: &str) -> String {
    derive(&syn::parse_str(item).unwrap()).unwrap_err().to_string()
}

#[test]
fn what_a_shape_cannot_tell_is_refused_by_name() {
    for (item, said) in [
        ("struct A { #[serde(with = \"x\")] a: u8 }", "`#[serde(with)]` hides what is written"),
        ("struct A { #[serde(serialize_with = \"x\")] a: u8 }", "`#[serde(serialize_with)]` hides"),
        ("struct A { #[serde(deserialize_with = \"x\")] a: u8 }", "`#[serde(deserialize_with)]` hides"),
        ("struct A { #[serde(getter = \"x\")] a: u8 }", "`#[serde(getter)]` writes what a shape cannot tell"),
        ("#[serde(remote = \"B\")] struct A { a: u8 }", "`#[serde(remote)]` writes what a shape cannot tell"),
        ("#[serde(field_identifier)] enum A { B }", "`#[serde(field_identifier)]` writes"),
        ("#[serde(into = \"B\")] struct A { a: u8 }", "written as one type and read as another"),
        (
            "#[serde(into = \"B\", from = \"C\")] struct A { a: u8 }",
            "written as one type and read as another",
        ),
        ("struct A { #[serde(rename(serialize = \"x\"))] a: u8 }", "written by one name and read by another"),
        ("#[shape(opaque = \"A\")] struct A;", "`opaque = \"name@1\"`"),
        ("#[shape(opaque = \"A@x\")] struct A;", "`opaque = \"name@1\"`"),
        ("#[shape(other)] struct A;", "there are `crate = path`"),
        ("struct A { #[shape(other)] a: u8 }", "there are `opaque"),
        ("union A { a: u8 }", "serde writes no unions"),
    ] {
        let complaint = complaint(item);
        assert!(complaint.contains(said), "{item}: {complaint}");
    }
    for item in [
        "struct A { #[serde(with = \"x\")] #[shape(opaque = \"x@1\")] a: u8 }",
        "struct A { #[serde(with = \"x\")] #[shape(as = \"u64\")] a: u8 }",
        "struct A { #[serde(with = \"x\", skip)] a: u8 }",
        "#[serde(remote = \"B\")] #[shape(opaque = \"B@12\")] struct A { a: u8 }",
        "#[serde(into = \"B\", try_from = \"B\", bound = \"\", expecting = \"x\")] struct A { a: u8 }",
    ] {
        assert!(derive(&syn::parse_str(item).unwrap()).is_ok(), "{item}");
    }
}

#[test]
fn names_follow_serdes_rules() {
    for (rule, field, variant) in [
        ("lowercase", "two_words", "twowords"),
        ("UPPERCASE", "TWO_WORDS", "TWOWORDS"),
        ("PascalCase", "TwoWords", "TwoWords"),
        ("camelCase", "twoWords", "twoWords"),
        ("snake_case", "two_words", "two_words"),
        ("SCREAMING_SNAKE_CASE", "TWO_WORDS", "TWO_WORDS"),
        ("kebab-case", "two-words", "two-words"),
        ("SCREAMING-KEBAB-CASE", "TWO-WORDS", "TWO-WORDS"),
    ] {
        assert_eq!(rename::field(Some(rule), "two_words"), field, "{rule}");
        assert_eq!(rename::variant(Some(rule), "TwoWords"), variant, "{rule}");
    }
}
