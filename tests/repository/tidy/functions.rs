//! Lengths of functions.

use super::names::{Token, tokens, until};

/// Maximum number of lines of a function, from `fn` to its closing brace.
pub(super) const LONGEST: usize = 70;

/// A function of a source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Line of its `fn`.
    pub(super) line: usize,
    /// Number of its lines.
    pub(super) length: usize,
}

/// Returns the functions of a source that have a body.
pub(super) fn functions(text: &str) -> Vec<Function> {
    let tokens = tokens(text);
    let begins = tokens.iter().enumerate().filter(|(_, (word, _))| word == "fn");
    begins.filter_map(|(at, _)| function(&tokens[at..])).collect()
}

/// Returns the function that begins with the first token. `None`: a declaration, the type of a pointer, or the pattern
/// of a macro.
fn function(tokens: &[Token]) -> Option<Function> {
    let (name, line) = tokens.get(1)?;
    let open = until(tokens, &["{", ";"]);
    let has_body = tokens.get(open).is_some_and(|(token, _)| token == "{");
    if !has_body || !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return None;
    }
    let close = open + 1 + until(&tokens[open + 1..], &[]);
    let length = tokens.get(close)?.1 - line + 1;
    Some(Function { name: name.clone(), line: *line, length })
}
