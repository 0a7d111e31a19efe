//! The tokens of a Rust file as a flat list, each marked when it belongs to a test or to a doc comment.
//!
//! Spans stay in the thread that read them; places here are lines and byte offsets, so that files are read by several threads.

use std::ops::Range;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A word, keywords included.
    Ident,
    /// A number, string, character or byte string.
    Literal,
    /// One character of punctuation; `true`: the next one follows without a space and is punctuation too.
    Punct(char, bool),
    /// The beginning of a group.
    Open(char),
    /// The end of a group.
    Close(char),
}

/// A token and its place.
#[derive(Clone, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// As it is spelt.
    pub text: String,
    /// The lines that it is on, from 1.
    pub lines: Range<usize>,
    /// Its bytes in the file.
    pub bytes: Range<usize>,
    /// Whether it is compiled in tests only.
    pub is_test: bool,
    /// Whether it stands for a doc comment.
    pub is_doc: bool,
}

impl Token {
    /// Whether it is this word.
    #[must_use]
    pub fn is(&self, word: &str) -> bool {
        self.kind == Kind::Ident && self.text == word
    }

    /// Whether it is this character.
    #[must_use]
    pub fn is_punct(&self, character: char) -> bool {
        matches!(self.kind, Kind::Punct(it, _) if it == character)
    }
}

/// The tokens of a file whose text is `text`.
#[must_use]
pub fn flat(stream: &TokenStream, text: &str) -> Vec<Token> {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let mut reader = Reader { text: text.as_bytes(), ends, tokens: Vec::new() };
    reader.read(stream, false);
    reader.tokens
}

struct Reader<'a> {
    text: &'a [u8],
    /// Where lines end.
    ends: Vec<usize>,
    tokens: Vec<Token>,
}

impl Reader<'_> {
    fn read(&mut self, stream: &TokenStream, is_test: bool) {
        let trees: Vec<TokenTree> = stream.clone().into_iter().collect();
        let mut test_until = 0;
        for (at, tree) in trees.iter().enumerate() {
            if at >= test_until && begins_test(&trees[at..]) {
                test_until = at + item_length(&trees[at..]);
            }
            let is_test = is_test || at < test_until;
            let _is_doc = match tree {
                TokenTree::Ident(ident) => {
                    self.push(Kind::Ident, ident.to_string(), ident.span().byte_range(), is_test)
                }
                TokenTree::Literal(literal) => {
                    self.push(Kind::Literal, literal.to_string(), literal.span().byte_range(), is_test)
                }
                TokenTree::Punct(punct) => {
                    let kind = Kind::Punct(punct.as_char(), punct.spacing() == Spacing::Joint);
                    self.push(kind, punct.as_char().to_string(), punct.span().byte_range(), is_test)
                }
                TokenTree::Group(group) => {
                    let (open, close) = delimiters(group);
                    let is_doc = self.push(
                        Kind::Open(open),
                        open.to_string(),
                        group.span_open().byte_range(),
                        is_test,
                    );
                    if !is_doc {
                        self.read(&group.stream(), is_test);
                    }
                    self.push(Kind::Close(close), close.to_string(), group.span_close().byte_range(), is_test)
                }
            };
        }
    }

    /// Adds a token; whether it comes from a doc comment: its place in the text is that of the whole comment.
    fn push(&mut self, kind: Kind, text: String, bytes: Range<usize>, is_test: bool) -> bool {
        let begins = self.text.get(bytes.start) == Some(&b'/')
            && kind != Kind::Punct('/', true)
            && kind != Kind::Punct('/', false);
        // The end of its group is the end of the comment.
        let closes = kind == Kind::Close(']')
            && self.tokens.last().is_some_and(|token| token.is_doc && token.kind == Kind::Open('['));
        let is_doc = begins || closes;
        let lines = self.line(bytes.start)..self.line(bytes.end.saturating_sub(1).max(bytes.start)) + 1;
        self.tokens.push(Token { kind, text, lines, bytes, is_test, is_doc });
        is_doc
    }

    fn line(&self, byte: usize) -> usize {
        self.ends.partition_point(|end| *end < byte) + 1
    }
}

fn delimiters(group: &Group) -> (char, char) {
    match group.delimiter() {
        Delimiter::Parenthesis => ('(', ')'),
        Delimiter::Brace => ('{', '}'),
        Delimiter::Bracket => ('[', ']'),
        Delimiter::None => (' ', ' '),
    }
}

/// Whether an attribute that keeps what follows out of everything but tests begins here.
fn begins_test(trees: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(group), ..] = trees else { return false };
    if hash.as_char() != '#' || group.delimiter() != Delimiter::Bracket {
        return false;
    }
    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
    match inner.as_slice() {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(condition)] => {
            name == "cfg" && cfg(&condition.stream()) == Some(false)
        }
        _ => false,
    }
}

/// What a `cfg` condition comes to in a normal build: no tests, no loom; `None` where it depends on the build.
fn cfg(stream: &TokenStream) -> Option<bool> {
    let trees: Vec<TokenTree> = stream.clone().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(name)] if name == "test" || name == "loom" => Some(false),
        [TokenTree::Ident(name), TokenTree::Group(group)] => {
            let parts: Vec<Option<bool>> = parts(&group.stream()).iter().map(cfg).collect();
            if name == "not" {
                parts.first().copied().flatten().map(|it| !it)
            } else if name == "all" {
                parts.contains(&Some(false)).then_some(false)
            } else if name == "any" && parts.contains(&Some(true)) {
                Some(true)
            } else if name == "any" && parts.iter().all(|part| *part == Some(false)) {
                Some(false)
            } else {
                None
            }
        }
        _ => None,
    }
}

/// What stands between the commas of a stream.
fn parts(stream: &TokenStream) -> Vec<TokenStream> {
    let mut parts = vec![Vec::new()];
    for tree in stream.clone() {
        match (&tree, parts.last_mut()) {
            (TokenTree::Punct(punct), _) if punct.as_char() == ',' => parts.push(Vec::new()),
            (_, Some(last)) => last.push(tree),
            (_, None) => {}
        }
    }
    parts
        .into_iter()
        .filter(|part: &Vec<_>| !part.is_empty())
        .map(|part| part.into_iter().collect())
        .collect()
}

/// Trees from an attribute to the end of what it is on: an item, a field, a variant, an arm or a statement.
fn item_length(trees: &[TokenTree]) -> usize {
    let is_attribute = |at: usize| {
        matches!(&trees[at], TokenTree::Punct(hash) if hash.as_char() == '#')
            && matches!(trees.get(at + 1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket)
    };
    let mut at = 0;
    while at < trees.len() && is_attribute(at) {
        at += 2;
    }
    let first_word = trees[at..].iter().find_map(|tree| match tree {
        TokenTree::Ident(ident) if ident != "pub" => Some(ident.to_string()),
        _ => None,
    });
    let first_word = first_word.unwrap_or_default();
    let ends_by_semicolon_only = matches!(first_word.as_str(), "use" | "const" | "static" | "let" | "type");
    let is_item = ends_by_semicolon_only
        || [
            "fn",
            "struct",
            "enum",
            "union",
            "impl",
            "mod",
            "trait",
            "unsafe",
            "async",
            "extern",
            "macro_rules",
        ]
        .contains(&first_word.as_str());
    let is_const_fn = first_word == "const"
        && trees[at..].iter().take(6).any(|tree| matches!(tree, TokenTree::Ident(ident) if ident == "fn"));
    let mut angles = 0_i32;
    while at < trees.len() {
        match &trees[at] {
            TokenTree::Punct(punct) => match punct.as_char() {
                ';' => return at + 1,
                ',' if !is_item && angles <= 0 => return at + 1,
                '<' => angles += 1,
                // The arrow of a function or an arm is no end of a list.
                '>' if !follows_dash(trees, at) => angles -= 1,
                _ => {}
            },
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && (!ends_by_semicolon_only || is_const_fn) =>
            {
                let more = matches!(trees.get(at + 1), Some(TokenTree::Punct(punct)) if matches!(punct.as_char(), ';' | ','));
                return at + 1 + usize::from(more && !is_item);
            }
            _ => {}
        }
        at += 1;
    }
    trees.len()
}

fn follows_dash(trees: &[TokenTree], at: usize) -> bool {
    at > 0 && matches!(&trees[at - 1], TokenTree::Punct(punct) if matches!(punct.as_char(), '-' | '='))
}
