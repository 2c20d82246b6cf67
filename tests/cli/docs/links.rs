//! Where links lead, which files prose names, and what the sources say.

use std::path::{Component, Path, PathBuf};

use crate::docs::page::Page;
use crate::docs::{read, root};

pub struct Link {
    pub line: usize,
    pub target: String,
}

/// Folders with files that prose names by path.
const FOLDERS: [&str; 8] =
    ["tests/", "src/", "docs/", "interop/", "uverbs-shim/", "benches/", "examples/", ".ci/"];

/// A line in turn outside and inside of backticks, beginning outside.
fn parts(line: &str) -> impl Iterator<Item = (bool, &str)> {
    line.split('`').enumerate().map(|(i, part)| (i % 2 == 1, part))
}

/// The links of a page; not those in backticks, and none of rustdoc's.
pub fn of(page: &Page) -> Vec<Link> {
    let mut all = Vec::new();
    for (line, text) in &page.prose {
        // A link's text may be code; where it leads is never.
        let plain: String = parts(text).filter(|(code, _)| !code).map(|(_, part)| part).collect();
        for rest in plain.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or("").to_owned();
            if !target.starts_with("crate::") {
                all.push(Link { line: *line, target });
            }
        }
    }
    all
}

/// `a/../b` is `b`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

pub fn broken(page: &Page) -> Vec<String> {
    let folder = Path::new(&page.name).parent().unwrap_or(Path::new(""));
    let why = |link: &Link| -> Option<&str> {
        let outside = ["https://", "http://"].iter().any(|scheme| link.target.starts_with(scheme));
        if outside {
            return None;
        }
        let (path, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
        let to = if path.is_empty() { PathBuf::from(&page.name) } else { plain(&folder.join(path)) };
        if !path.is_empty() && !root().join(&to).exists() {
            return Some("there is no such file");
        }
        if anchor.is_empty() {
            return None;
        }
        let anchors = if path.is_empty() {
            page.anchors()
        } else {
            Page::parse(&to.to_string_lossy(), &read(&to)).anchors()
        };
        (!anchors.iter().any(|known| known == anchor)).then_some("there is no such heading")
    };
    of(page)
        .iter()
        .filter_map(|link| Some(format!("{}:{}: {}: {}", page.name, link.line, link.target, why(link)?)))
        .collect()
}

/// Paths in backticks that are of this repository and not there.
pub fn missing_files(page: &Page) -> Vec<String> {
    let mut missing = Vec::new();
    for (line, text) in &page.prose {
        for (_, part) in parts(text).filter(|(code, _)| *code) {
            let is_path = FOLDERS.iter().any(|folder| part.starts_with(folder));
            let free = part.contains(['*', '…', ' ', '{']) || part.split('/').any(|name| name == "N");
            let exists = |name: &str| root().join(name).exists();
            if is_path && !free && !exists(part) && !exists(&format!("{part}.rs")) {
                missing.push(format!("{}:{line}: `{part}` is not there", page.name));
            }
        }
    }
    missing
}

fn collect(folder: &Path, into: &mut String) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, into);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            into.push_str(&text);
        }
    }
}

/// Returns the text of all sources with messages for users. Strings over several lines are joined.
pub fn sources() -> String {
    let mut text = String::new();
    for folder in ["src", "uverbs-shim/src", ".ci"] {
        collect(&root().join(folder), &mut text);
    }
    let mut out = String::new();
    for line in text.lines() {
        let line = if out.ends_with('\\') {
            out.pop();
            line.trim_start()
        } else {
            out.push('\n');
            line
        };
        out.push_str(line);
    }
    out
}
