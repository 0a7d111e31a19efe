//! Prose: the paragraphs, sentences and words of Markdown, without code.

use regex::Regex;

/// A paragraph, a heading, an entry of a list or a cell of a table.
#[derive(Clone, Debug)]
pub struct Paragraph {
    /// Its first line, from 1.
    pub line: usize,
    /// Its text on one line.
    pub text: String,
}

/// Lines that are not in a block of code, with their numbers from 1.
pub fn outside_code(lines: impl IntoIterator<Item = (usize, String)>) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut outside = Vec::new();
    for (number, line) in lines {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            is_code = !is_code;
            // A block of code ends the paragraph before it.
            outside.push((number, String::new()));
        } else if !is_code {
            outside.push((number, line));
        }
    }
    outside
}

/// The paragraphs of numbered lines.
#[must_use]
pub fn paragraphs(lines: impl IntoIterator<Item = (usize, String)>) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut is_open = false;
    for (line, text) in outside_code(lines) {
        let text = text.trim();
        let begins = |marks: &[&str]| marks.iter().any(|mark| text.starts_with(mark));
        let is_numbered = text.split_once(". ").is_some_and(|(number, _)| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        if text.is_empty() {
            is_open = false;
        } else if text.starts_with('|') {
            let cells = text
                .trim_matches('|')
                .split('|')
                .map(str::trim)
                .filter(|cell| !cell.trim_matches(['-', ':']).is_empty());
            found.extend(cells.map(|cell| Paragraph { line, text: cell.to_owned() }));
            is_open = false;
        } else if begins(&["#"]) {
            found.push(Paragraph { line, text: text.to_owned() });
            is_open = false;
        } else if let Some(last) =
            found.last_mut().filter(|_| is_open && !is_numbered && !begins(&["- ", "* ", "> "]))
        {
            last.text = format!("{} {text}", last.text);
        } else {
            found.push(Paragraph { line, text: text.trim_start_matches(['-', '*', '>', ' ']).to_owned() });
            is_open = true;
        }
    }
    found
}

/// The sentences of a paragraph.
#[must_use]
pub fn sentences(paragraph: &str) -> Vec<String> {
    let link =
        Regex::new(r"\[([^\]]*)\]\([^)]*\)|\[([^\]]*)\]\[[^\]]*\]").expect("the pattern is a constant");
    let code = Regex::new(r"`[^`]*`").expect("the pattern is a constant");
    // Code is one word, and what is in it ends no sentence.
    let text = link.replace_all(paragraph, "$1$2");
    let text = code
        .replace_all(&text, |found: &regex::Captures<'_>| found[0].replace([' ', '.', '?', '!'], "\u{b7}"));
    let mut found = Vec::new();
    let mut start = 0;
    let characters: Vec<(usize, char)> = text.char_indices().collect();
    for window in characters.windows(3) {
        let [(_, end), (space_at, space), (_, next)] = [window[0], window[1], window[2]];
        let begins =
            next.is_uppercase() || next.is_ascii_digit() || matches!(next, '`' | '"' | '*' | '[' | '(');
        if matches!(end, '.' | '!' | '?' | ')')
            && space == ' '
            && begins
            && (end != ')' || text[..space_at].ends_with(".)"))
        {
            found.push(text[start..space_at].to_owned());
            start = space_at + 1;
        }
    }
    found.push(text[start..].to_owned());
    found
}

/// The number of words: what has a letter or a digit, between spaces.
#[must_use]
pub fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}
