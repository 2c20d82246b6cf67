//! Annotations in the sources: `//= IBTA clause: rule` where a rule is kept, `//= test: IBTA clause: rule` above a test
//! that holds it, or in it, at the case that does. Several rules of a clause stand behind one another, with commas.

use std::fs;
use std::path::Path;

use crate::tree::{files_below, is_rust};

/// The prefix of an annotation.
const MARK: &str = "//= ";

/// A line that names a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The file, from the repository on.
    pub file: String,
    /// Its line, from 1 on.
    pub line: usize,
    /// The clause that it names.
    pub clause: String,
    /// The rule that it names.
    pub rule: String,
    /// True if the annotation stands at a test.
    pub is_test: bool,
    /// The function, type or constant that it is in, or right above.
    pub item: String,
}

/// Returns all annotations below a folder of the repository, by file and line. Errors go into `wrong`.
pub fn annotations(root: &Path, folder: &str, wrong: &mut Vec<String>) -> Vec<Annotation> {
    let mut annotations = Vec::new();
    for path in files_below(&root.join(folder), is_rust) {
        let name = path.strip_prefix(root).expect("below the root").display().to_string();
        let text = fs::read_to_string(&path).expect("readable");
        annotations.extend(of_file(&name, &text, wrong));
    }
    annotations
}

/// The annotations of one file.
pub fn of_file(name: &str, text: &str, wrong: &mut Vec<String>) -> Vec<Annotation> {
    let lines: Vec<&str> = text.lines().collect();
    let mut annotations = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(annotation) = line.trim_start().strip_prefix(MARK) else { continue };
        match read(annotation, &lines, at) {
            Ok((clause, rules, item)) => annotations.extend(rules.split(", ").map(|rule| Annotation {
                file: name.to_owned(),
                line: at + 1,
                clause: clause.to_owned(),
                rule: rule.to_owned(),
                is_test: item.is_test,
                item: item.name.clone(),
            })),
            Err(why) => wrong.push(format!("{name}:{}: {why}", at + 1)),
        }
    }
    annotations
}

/// The clause, the rules and the item.
fn read<'a>(said: &'a str, lines: &[&str], at: usize) -> Result<(&'a str, &'a str, Item), String> {
    let (is_test, rest) = match said.strip_prefix("test: ") {
        Some(rest) => (true, rest),
        None => (false, said),
    };
    let named = rest.strip_prefix("IBTA ").and_then(|rest| rest.split_once(": "));
    let (clause, rules) =
        named.ok_or("an annotation is //= IBTA 9.7.1: name-of-a-rule, a test's begins with //= test:")?;
    let item = item_at(lines, at).ok_or("an annotation stands in an item, or right above one")?;
    if is_test != item.is_test {
        let why = if is_test { "is no #[test]" } else { "is a #[test]: //= test: names what it holds" };
        return Err(format!("{} {why}", item.name));
    }
    Ok((clause, rules, item))
}

struct Item {
    name: String,
    is_test: bool,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Comments and attributes, which may stand between an annotation and its item.
fn is_aside(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("#[")
}

/// Returns the item that begins after line `at`, or encloses the line.
fn item_at(lines: &[&str], at: usize) -> Option<Item> {
    let next = (at + 1..lines.len()).find(|below| !is_aside(lines[*below]))?;
    let first = match name_of(lines[next]) {
        Some(_) if indent(lines[next]) == indent(lines[at]) => next,
        _ => enclosing(lines, at)?,
    };
    let (keyword, name) = name_of(lines[first])?;
    let above = lines[..first].iter().rev().take_while(|line| is_aside(line));
    let is_test = keyword == "fn" && above.into_iter().any(|line| line.trim() == "#[test]");
    let owner = enclosing(lines, first).and_then(|above| name_of(lines[above]));
    let name = match owner {
        Some((kind, owner)) if kind == "impl" || kind == "trait" => format!("{owner}::{name}"),
        _ => name,
    };
    Some(Item { name, is_test })
}

/// The nearest line above with less indentation that begins an item.
fn enclosing(lines: &[&str], at: usize) -> Option<usize> {
    let mut inner = indent(lines[at]);
    // The line behind a function's parameters has the indentation of the function's first line.
    let continues =
        |line: &str| line.is_empty() || [")", "{", "where"].iter().any(|begin| line.starts_with(begin));
    for above in (0..at).rev().filter(|above| !continues(lines[*above].trim_start())) {
        if indent(lines[above]) < inner {
            inner = indent(lines[above]);
            if name_of(lines[above]).is_some() {
                return Some(above);
            }
        }
    }
    None
}

/// Returns keyword and name of the item that a line begins. An `impl` has the name of its type.
fn name_of(line: &str) -> Option<(&str, String)> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(inside) => inside.split_once(')')?.1.trim_start(),
            None => after.strip_prefix(' ')?,
        };
    }
    for modifier in ["const fn ", "unsafe fn ", "async fn "] {
        if let Some(name) = rest.strip_prefix(modifier) {
            return Some(("fn", identifier(name)?));
        }
    }
    let (keyword, name) = rest.split_once([' ', '<'])?;
    match keyword {
        "fn" | "struct" | "enum" | "const" | "static" | "trait" | "mod" | "type" => {
            Some((keyword, identifier(name)?))
        }
        "impl" => {
            let head = rest.trim_end_matches('{').trim_end();
            let of = head.rsplit_once(" for ").map_or_else(|| without_generics(&head[4..]), |(_, of)| of);
            Some((keyword, identifier(of.trim_start())?))
        }
        _ => None,
    }
}

fn without_generics(head: &str) -> &str {
    match head.strip_prefix('<') {
        Some(generic) => generic.split_once("> ").map_or("", |(_, of)| of),
        None => head,
    }
}

fn identifier(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}
