//! The words of names: of functions, of fields, and of what a `let` binds, in the folders that are covered.
//!
//! `cargo test --test repository tidy:: -- --nocapture names` prints how many names of each folder have a word of the
//! list.

/// Folders in which names are checked.
pub(super) const COVERED: &[&str] = &[
    "src/wire/",
    "src/base/",
    "src/port/",
    "src/nic/",
    "src/engine/",
    "src/roxie/",
    "src/daemon/",
    "src/sim/",
    "uverbs-shim/",
    "tests/",
    "interop/",
    "benches/",
    "examples/",
];

/// Words that are no part of a name, and what a name says instead.
pub(super) const WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("ask", "request, query or send"),
    ("asked", "requested"),
    ("asking", "requesting"),
    ("asks", "requests"),
    ("beside", "adjacent, or what the two are to each other"),
    ("came", "received or arrived"),
    ("come", "receive, or arrive"),
    ("comes", "receives or arrives"),
    ("elsewhere", "the place: another_worker, in_client"),
    ("far", "remote or peer"),
    ("found", "the noun: entry, route, qp"),
    ("goes", "continues, or is_sent"),
    ("gone", "closed, ended or lost"),
    ("guest", "client"),
    ("guests", "clients"),
    ("hear", "receive"),
    ("heard", "received"),
    ("hears", "receives"),
    ("house", "crate, group or registry"),
    ("kept", "saved, stored or retained"),
    ("lately", "recently"),
    ("left", "remaining, or sent"),
    ("look", "check, find or read"),
    ("looked", "checked or read"),
    ("looking", "checking"),
    ("looks", "checks"),
    ("nap", "sleep"),
    ("near", "local"),
    ("owe", "defer"),
    ("owed", "deferred or due"),
    ("owes", "has_deferred or has_due"),
    ("said", "reported, announced or message"),
    ("say", "report or print"),
    ("says", "reports"),
    ("stand", "substitute, or is"),
    ("standing", "substituting"),
    ("stands", "substitutes, or is"),
    ("stranger", "unknown_peer"),
    ("strangers", "unknown_peers"),
    ("tell", "notify or report"),
    ("tells", "notifies or reports"),
    ("told", "notified, message or event"),
    ("went", "was_sent"),
    ("whoever", "the role: caller, peer, client"),
];

/// Words that are right in a file, or below a folder, and why. `left` needs none in a file that has a name with
/// `right`: these are sides.
pub(super) const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "src/base/roster/mod.rs",
        "left",
        "the key of a field that processes of several releases read: the number of a departure",
    ),
    ("interop/", "guest", "a machine in QEMU"),
    ("interop/", "guests", "machines in QEMU"),
];
/// Maximum number of exceptions. More of them would be another list.
pub(super) const MOST_EXCEPTIONS: usize = 20;

/// Kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    Function,
    Local,
    Field,
}

/// A name that a file introduces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) kind: NameKind,
    pub(super) line: usize,
    pub(super) name: String,
}

/// A word of the list in a name of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unwanted {
    pub(super) name: Name,
    pub(super) word: &'static str,
    pub(super) better: &'static str,
}

fn has_part(name: &str, word: &str) -> bool {
    name.split('_').any(|part| part == word)
}

/// Returns the names of a source with a word of the list, and the number of all its names.
pub(super) fn unwanted(text: &str) -> (Vec<Unwanted>, usize) {
    let all = names(text);
    let count = all.len();
    let has_sides = all.iter().any(|name| has_part(&name.name, "right"));
    let of_list = |name: Name| {
        let mut words = WORDS.iter().filter(|(word, _)| !has_sides || *word != "left");
        let (word, better) = words.find(|(word, _)| has_part(&name.name, word))?;
        Some(Unwanted { name, word, better })
    };
    (all.into_iter().filter_map(of_list).collect(), count)
}

/// An identifier or one character of punctuation, and its line.
pub(super) type Token = (String, usize);

/// Returns the tokens of a source, without comments, text and characters in quotes, and lifetimes.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let starts = |at: usize, with: &str| with.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let (mut at, mut line, mut tokens) = (0, 1, Vec::new());
    while at < chars.len() {
        let begin = at;
        let hashes = chars[at..].iter().skip(1).take_while(|c| **c == '#').count();
        if starts(at, "//") {
            at += chars[at..].iter().take_while(|c| **c != '\n').count();
        } else if starts(at, "/*") {
            at += 2;
            while at < chars.len() && !starts(at, "*/") {
                at += 1;
            }
            at += 2;
        } else if chars[at] == 'r' && chars.get(at + 1 + hashes) == Some(&'"') {
            let end = format!("\"{}", "#".repeat(hashes));
            at += hashes + 2;
            while at < chars.len() && !starts(at, &end) {
                at += 1;
            }
            at += end.len();
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += 1 + usize::from(chars[at] == '\\');
            }
            at += 1;
        } else if chars[at] == '\'' {
            // A character in quotes, or a lifetime.
            if chars.get(at + 1) == Some(&'\\') {
                at += 3;
                at += chars[at.min(chars.len())..].iter().take_while(|c| **c != '\'').count() + 1;
            } else if chars.get(at + 2) == Some(&'\'') {
                at += 3;
            } else {
                at += 1;
                at += chars[at..].iter().take_while(|c| is_word(**c)).count();
            }
        } else if is_word(chars[at]) {
            let word: String = chars[at..].iter().take_while(|c| is_word(**c)).collect();
            at += word.chars().count();
            // The prefix of a byte string or C string is none of its own.
            if chars.get(at) != Some(&'"') || !["b", "c", "br"].contains(&&*word) {
                tokens.push((word, line));
            }
        } else {
            if !chars[at].is_whitespace() {
                tokens.push((chars[at].to_string(), line));
            }
            at += 1;
        }
        line += chars[begin..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// True for a name in lower case that is no keyword of a pattern or type.
fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_lowercase() || c == '_')
        && !["_", "mut", "ref", "dyn", "impl", "for", "pub", "crate", "super", "self"].contains(&token)
}

/// Returns the names that a pattern binds: those that are neither a field before its colon, nor part of a path, nor
/// called.
fn bound(pattern: &[Token], into: &mut Vec<Name>) {
    for (at, (word, line)) in pattern.iter().enumerate() {
        let next = pattern.get(at + 1).map_or("", |(next, _)| next);
        let previous = at.checked_sub(1).map_or("", |at| &pattern[at].0);
        if is_name(word)
            && ![":", "(", "!"].contains(&next)
            && !(previous == ":" && at > 1 && pattern[at - 2].0 == ":")
        {
            into.push(Name { kind: NameKind::Local, line: *line, name: word.clone() });
        }
    }
}

/// Returns the number of tokens before the one that `ends` a part at depth 0, or closes what is around it.
pub(super) fn until(tokens: &[Token], ends: &[&str]) -> usize {
    let mut depth = 0_usize;
    for (at, (token, _)) in tokens.iter().enumerate() {
        match &**token {
            token if depth == 0 && ends.contains(&token) => return at,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 0 => return at,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the names of functions, fields and locals of a source. The names of tests are sentences, and not among them.
pub(super) fn names(text: &str) -> Vec<Name> {
    let tokens = tokens(text);
    let token = |at: usize| tokens.get(at).map_or("", |(token, _)| &**token);
    let (mut names, mut is_test) = (Vec::new(), false);
    for (at, (word, _)) in tokens.iter().enumerate() {
        match &**word {
            "#" if token(at + 1) == "[" && token(at + 2) == "test" => is_test = true,
            "fn" if is_name(token(at + 1)) => {
                let (name, line) = tokens[at + 1].clone();
                if !is_test {
                    names.push(Name { kind: NameKind::Function, line, name });
                }
                is_test = false;
            }
            "let" => {
                let rest = &tokens[at + 1..];
                // The colon of a type ends a pattern, but not those of a path.
                let mut end = until(rest, &["=", ";", ":"]);
                while rest.get(end).is_some_and(|t| t.0 == ":")
                    && rest.get(end + 1).is_some_and(|t| t.0 == ":")
                {
                    end += 2 + until(&rest[end + 2..], &["=", ";", ":"]);
                }
                bound(&rest[..end], &mut names);
            }
            "struct" | "enum" | "union" => {
                let open = at + until(&tokens[at..], &["{", ";"]);
                if token(open) == "{" {
                    let close = open + 1 + until(&tokens[open + 1..], &[]);
                    for (field, (name, line)) in tokens.iter().enumerate().take(close).skip(open + 1) {
                        let before = token(field - 1);
                        let begins = ["{", ",", "]", ")", "pub"].contains(&before);
                        if begins && is_name(name) && token(field + 1) == ":" && token(field + 2) != ":" {
                            names.push(Name { kind: NameKind::Field, line: *line, name: name.clone() });
                        }
                    }
                }
            }
            _ => {}
        }
    }
    names
}
