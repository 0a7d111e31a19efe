//! Paths in a file's code, outside of tests: those of `use`, and those in expressions, types and macros.

use crate::{
    source::Source,
    tokens::{Kind, Token},
};

/// A path of two or more segments, or the first of them.
#[derive(Clone, Debug)]
pub struct Spelt {
    /// Its segments, without arguments of types.
    pub path: Vec<String>,
    /// The line of its last segment.
    pub line: usize,
    /// The number of the token behind it, among the file's code.
    pub next: usize,
}

/// Paths outside of `use`.
#[must_use]
pub fn inline(tokens: &[&Token]) -> Vec<Spelt> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].is("use") {
            while at < tokens.len() && !tokens[at].is_punct(';') {
                at += 1;
            }
            continue;
        }
        let follows_path = at > 0
            && (tokens[at - 1].is_punct(':') && is_joint(tokens, at - 2) || tokens[at - 1].is_punct('.'));
        if tokens[at].kind != Kind::Ident || follows_path {
            at += 1;
            continue;
        }
        let (mut path, mut line) = (vec![tokens[at].text.clone()], tokens[at].lines.start);
        at += 1;
        while is_joint(tokens, at) && tokens.get(at + 2).is_some_and(|token| token.kind == Kind::Ident) {
            path.push(tokens[at + 2].text.clone());
            line = tokens[at + 2].lines.start;
            at += 3;
        }
        if path.len() > 1 {
            found.push(Spelt { path, line, next: at });
        }
    }
    found
}

/// Whether `::` is at this place.
fn is_joint(tokens: &[&Token], at: usize) -> bool {
    tokens.get(at).is_some_and(|token| token.kind == Kind::Punct(':', true))
        && tokens.get(at + 1).is_some_and(|token| token.is_punct(':'))
}

/// A path without the mark of one that begins with `::`.
fn bare(path: &[String]) -> Vec<String> {
    path.iter().filter(|segment| *segment != "::").cloned().collect()
}

/// Every path of a file: those of `use`, and those elsewhere, the first segment replaced by what it was imported from.
#[must_use]
pub fn all(source: &Source) -> Vec<Spelt> {
    let imports = source.items.imports.iter().filter(|import| !import.is_test);
    let mut paths: Vec<Spelt> = imports
        .clone()
        .map(|import| Spelt { path: bare(&import.path), line: import.line, next: usize::MAX })
        .collect();
    for mut spelt in inline(&source.code_tokens()) {
        if let Some(import) = imports.clone().find(|import| import.name == spelt.path[0]) {
            spelt.path.splice(..1, bare(&import.path));
        }
        paths.push(spelt);
    }
    paths
}
