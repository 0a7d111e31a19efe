//! One Rust file, read once: its tokens, comments and items.

use std::{collections::BTreeSet, ops::Range, str::FromStr};

use proc_macro2::TokenStream;

use crate::{
    items::{self, Items},
    tokens::{self, Token},
};

/// A comment, or the part of it that is on one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Comment {
    /// Its line, from 1.
    pub line: usize,
    /// Without the slashes.
    pub text: String,
    /// Whether rustdoc shows it.
    pub is_doc: bool,
}

/// A Rust file.
#[derive(Debug)]
pub struct Source {
    /// From the root of the project.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// Every token.
    pub tokens: Vec<Token>,
    /// Every line of a comment.
    pub comments: Vec<Comment>,
    /// What is defined and imported.
    pub items: Items,
    /// Why it could not be read.
    pub error: Option<String>,
}

impl Source {
    /// Reads a file.
    #[must_use]
    pub fn read(path: &str, text: &str) -> Self {
        let mut source = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens: Vec::new(),
            comments: Vec::new(),
            items: Items::default(),
            error: None,
        };
        let stream = match TokenStream::from_str(text) {
            Ok(stream) => stream,
            Err(error) => {
                source.error = Some(error.to_string());
                return source;
            }
        };
        source.tokens = tokens::flat(&stream, text);
        source.comments = comments(text, &source.tokens);
        match syn::parse2(stream) {
            Ok(file) => source.items = items::of(&file, &source.tokens),
            Err(error) => source.error = Some(error.to_string()),
        }
        forget_spans();
        source
    }

    /// The tokens that are compiled outside of tests, without doc comments.
    pub fn code(&self) -> impl Iterator<Item = &Token> {
        self.tokens.iter().filter(|token| !token.is_test && !token.is_doc)
    }

    /// The tokens of the code in order, for rules that look at neighbours.
    #[must_use]
    pub fn code_tokens(&self) -> Vec<&Token> {
        self.code().collect()
    }

    /// Lines with code: no tests, comments or blank lines.
    #[must_use]
    pub fn code_lines(&self) -> usize {
        self.code().flat_map(|token| token.lines.clone()).collect::<BTreeSet<_>>().len()
    }

    /// `path:line`.
    #[must_use]
    pub fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }

    /// `path:line: the line`.
    #[must_use]
    pub fn show(&self, line: usize) -> String {
        format!("{}: {}", self.at(line), self.line(line).trim())
    }

    /// A line of the text, from 1.
    #[must_use]
    pub fn line(&self, line: usize) -> &str {
        self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default()
    }

    /// The last segment of the path.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Spans of a thread name places in every file that it has read; none of this one is needed any more.
fn forget_spans() {
    proc_macro2::extra::invalidate_current_thread_spans();
}

/// What lies between tokens, and doc comments, line by line.
fn comments(text: &str, tokens: &[Token]) -> Vec<Comment> {
    let mut found = Vec::new();
    let mut end = 0;
    let mut last_doc = usize::MAX;
    for token in tokens {
        if token.is_doc {
            if token.bytes.start != last_doc && token.bytes.start >= end {
                plain(text, end..token.bytes.start, &mut found);
                last_doc = token.bytes.start;
                end = token.bytes.end;
                lines_of(text, token.bytes.clone(), true, &mut found);
            }
            continue;
        }
        plain(text, end..token.bytes.start.max(end), &mut found);
        end = token.bytes.end.max(end);
    }
    plain(text, end..text.len(), &mut found);
    found
}

fn plain(text: &str, gap: Range<usize>, into: &mut Vec<Comment>) {
    if text.get(gap.clone()).is_some_and(|gap| gap.contains('/')) {
        lines_of(text, gap, false, into);
    }
}

fn lines_of(text: &str, bytes: Range<usize>, is_doc: bool, into: &mut Vec<Comment>) {
    let first = text[..bytes.start].matches('\n').count() + 1;
    for (line, content) in (first..).zip(text[bytes].split('\n')) {
        let content = content.trim();
        let bare = content.trim_start_matches(['/', '!', '*']);
        if bare.len() < content.len() || (is_doc && !content.is_empty()) {
            into.push(Comment { line, text: bare.trim().to_owned(), is_doc });
        }
    }
}
