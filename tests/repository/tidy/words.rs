//! The words of comments and of test names, as far as they can be counted: CONTRIBUTING says how both are written.
//!
//! `cargo test --test repository tidy:: -- --nocapture words` prints the counts of each folder.

use std::collections::BTreeMap;

/// First words of a comment line that name nothing.
const PRONOUNS: &[&str] = &[
    "It", "This", "That", "These", "Those", "They", "What", "Whatever", "Who", "Whoever", "The same",
    "Likewise", "One that", "Both", "All of", "Neither", "Nor", "So",
];
/// Words for people, where a role has a noun.
const PEOPLE: &[&str] = &["who", "whoever", "whose", "nobody", "somebody", "anybody"];
/// Comment lines in a thousand that may begin with a pronoun, because the noun stands in the sentence before.
const MOST_PRONOUNS: usize = 10;
/// Comment lines in a thousand with a word for people.
const MOST_PEOPLE: usize = 5;
/// Words of a test's name.
const LONGEST_NAME: usize = 8;

/// Counts of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) comment_lines: usize,
    pub(super) pronouns: usize,
    pub(super) people: usize,
}

impl Counts {
    /// True if more lines break a rule than may. One always may, so that a folder with few comments is not judged by
    /// one line.
    pub(super) fn are_too_high(&self) -> bool {
        let most = |share: usize| (self.comment_lines * share / 1000).max(1);
        self.pronouns > most(MOST_PRONOUNS) || self.people > most(MOST_PEOPLE)
    }
}

/// Returns the text of a line that holds a comment alone. `None`: the line has none, or an annotation of a rule (`//=
/// `).
fn comment(line: &str) -> Option<&str> {
    let text = line.trim().strip_prefix("//")?;
    if text.starts_with('=') {
        return None;
    }
    let text = text.trim_start_matches(['/', '!']).trim();
    (!text.is_empty()).then_some(text)
}

fn begins_with_pronoun(text: &str) -> bool {
    PRONOUNS.iter().any(|pronoun| {
        text.strip_prefix(pronoun)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

fn names_people(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.map(str::to_lowercase).any(|word| PEOPLE.contains(&word.as_str()))
}

/// Counts the comment lines of a file.
pub(super) fn count(text: &str) -> Counts {
    let mut counts = Counts::default();
    for text in text.lines().filter_map(comment) {
        counts.comment_lines += 1;
        counts.pronouns += usize::from(begins_with_pronoun(text));
        counts.people += usize::from(names_people(text));
    }
    counts
}

/// Returns the names of tests that are too long, or that begin with `what_`.
pub(super) fn long_names(text: &str) -> Vec<&str> {
    let mut lines = text.lines().map(str::trim);
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        if line != "#[test]" {
            continue;
        }
        let function = lines.by_ref().find_map(|line| line.strip_prefix("fn "));
        let name = function.and_then(|rest| rest.split('(').next()).unwrap_or_default();
        if name.split('_').filter(|word| !word.is_empty()).count() > LONGEST_NAME || name.starts_with("what_")
        {
            names.push(name);
        }
    }
    names
}

/// Adds up the counts of files by folder: two levels of `src/`, one of the rest.
pub(super) fn by_folder<'a>(files: impl Iterator<Item = &'a (String, String)>) -> BTreeMap<String, Counts> {
    let mut folders = BTreeMap::<String, Counts>::new();
    for (path, text) in files {
        let depth = if path.starts_with("src/") { 2 } else { 1 };
        let folder: Vec<&str> = path.split('/').take(depth).collect();
        let of_file = count(text);
        let counts = folders.entry(folder.join("/")).or_default();
        counts.comment_lines += of_file.comment_lines;
        counts.pronouns += of_file.pronouns;
        counts.people += of_file.people;
    }
    folders
}
