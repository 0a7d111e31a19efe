//! The rules of `#[serde(rename_all = "...")]`.

/// Words of a name joined by `joint`, each letter in upper or lower case.
fn joined(words: &str, joint: &str, is_upper: bool) -> String {
    let joined = words.replace('_', joint);
    if is_upper { joined.to_uppercase() } else { joined }
}

fn capital(word: &str, is_upper: bool) -> String {
    let mut letters = word.chars();
    let Some(first) = letters.next() else { return String::new() };
    let first = if is_upper { first.to_ascii_uppercase() } else { first.to_ascii_lowercase() };
    format!("{first}{}", letters.as_str())
}

/// The name of a field, which is written in snake case, by a rule.
pub(super) fn field(rule: Option<&str>, name: &str) -> String {
    let pascal = || name.split('_').map(|word| capital(word, true)).collect::<String>();
    match rule {
        Some("UPPERCASE" | "SCREAMING_SNAKE_CASE") => joined(name, "_", true),
        Some("PascalCase") => pascal(),
        Some("camelCase") => capital(&pascal(), false),
        Some("kebab-case") => joined(name, "-", false),
        Some("SCREAMING-KEBAB-CASE") => joined(name, "-", true),
        _ => name.to_owned(),
    }
}

/// The name of a variant, which is written in Pascal case, by a rule.
pub(super) fn variant(rule: Option<&str>, name: &str) -> String {
    let snake = || {
        let mut out = String::new();
        for (at, letter) in name.char_indices() {
            if at > 0 && letter.is_uppercase() {
                out.push('_');
            }
            out.extend(letter.to_lowercase());
        }
        out
    };
    match rule {
        Some("lowercase") => name.to_ascii_lowercase(),
        Some("UPPERCASE") => name.to_ascii_uppercase(),
        Some("camelCase") => capital(name, false),
        Some("snake_case") => snake(),
        Some("SCREAMING_SNAKE_CASE") => joined(&snake(), "_", true),
        Some("kebab-case") => joined(&snake(), "-", false),
        Some("SCREAMING-KEBAB-CASE") => joined(&snake(), "-", true),
        _ => name.to_owned(),
    }
}
