//! Calls between the files of one type: what a reader of it has to follow.

use std::collections::{HashMap, HashSet};

/// Size of a type whose methods are in several files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) files: usize,
    pub(super) methods: usize,
    /// Calls of a method by a method in another file, without those of accessors.
    pub(super) between: usize,
}

/// Counts the methods of a type and the calls between its files. Each file: its path and its text.
pub(super) fn of_type<'a>(name: &str, files: impl Iterator<Item = (&'a str, &'a str)>) -> Calls {
    let methods: Vec<_> = files
        .flat_map(|(path, text)| methods(name, text).into_iter().map(move |(name, body)| (path, name, body)))
        .collect();
    let homes: HashMap<&str, &str> = methods.iter().map(|(path, name, _)| (*name, *path)).collect();
    let accessors: HashSet<&str> =
        methods.iter().filter(|(_, _, body)| is_accessor(body)).map(|(_, name, _)| *name).collect();
    let leaves = |path: &str, called: &str| {
        homes.get(called).is_some_and(|home| *home != path) && !accessors.contains(called)
    };
    let between =
        methods.iter().map(|(path, _, body)| called(body).filter(|name| leaves(path, name)).count()).sum();
    let mut paths: Vec<_> = methods.iter().map(|(path, ..)| path).collect();
    paths.dedup();
    Calls { files: paths.len(), methods: homes.len(), between }
}

/// Returns the files of one folder that lead back to themselves by what they use of each other: names, and methods of
/// `of` on `self`. Each file: its path and its text.
pub(super) fn circle<'a>(of: &str, files: &[(&'a str, &'a str)]) -> Vec<&'a str> {
    let name = |path: &'a str| path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let defines = |text: &str, called: &str| methods(of, text).iter().any(|(method, _)| *method == called);
    let uses = |from: &(&'a str, &'a str), to: &(&'a str, &'a str)| {
        let (is_parent, of_parent) = (name(from.0) == "mod", name(to.0) == "mod");
        let own = from.1.split("\n#[cfg(test)]\nmod ").next().unwrap_or(from.1);
        let imports = own.lines().filter(|line| line.starts_with("use ")).any(|line| {
            let path = line.trim_start_matches("use ").trim_start_matches("super::");
            let is_item =
                line.starts_with("use super::") && path.starts_with(|c: char| c == '{' || c.is_uppercase());
            let is_sibling = line.starts_with("use super::") || is_parent;
            (of_parent && is_item) || (is_sibling && path.starts_with(&format!("{}::", name(to.0))))
        });
        let calls =
            || methods(of, own).iter().any(|(_, body)| called(body).any(|called| defines(to.1, called)));
        from.0 != to.0 && (imports || calls())
    };
    let mut leads: Vec<Vec<bool>> =
        files.iter().map(|from| files.iter().map(|to| uses(from, to)).collect()).collect();
    for over in 0..files.len() {
        for from in 0..files.len() {
            for to in 0..files.len() {
                leads[from][to] |= leads[from][over] && leads[over][to];
            }
        }
    }
    (0..files.len()).filter(|file| leads[*file][*file]).map(|file| files[file].0).collect()
}

/// Returns the fields that the module above may change.
pub(super) fn shared_fields(text: &str) -> impl Iterator<Item = &str> {
    let is_field = |line: &&str| {
        let name = line.strip_prefix("    pub(super) ").and_then(|rest| rest.split(':').next());
        line.ends_with(',') && name.is_some_and(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
    };
    text.lines().filter(is_field)
}

/// Returns the methods in the `impl` blocks of a type with their bodies, without those of unit tests.
fn methods<'a>(of: &str, text: &'a str) -> Vec<(&'a str, &'a str)> {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    let blocks = text.split("\nimpl").skip(1).filter(|block| {
        let head = block.split('{').next().unwrap_or("");
        head.split(['<', ' ', '\n']).filter(|word| !word.is_empty()).any(|word| word == of)
            && !head.contains(" for ")
    });
    let within = |block: &'a str| block.split("\n}\n").next().unwrap_or("").split("\n    }\n");
    let method = |body: &'a str| {
        let (_, from_name) = body.trim_end_matches("\n    }").split_once("fn ")?;
        Some((from_name.split(['(', '<']).next()?, from_name))
    };
    blocks.flat_map(within).filter_map(method).collect()
}

/// True if a method returns a field, and no more.
fn is_accessor(body: &str) -> bool {
    let mut lines = body.lines().skip(1);
    lines.next().is_some_and(|line| line.contains("self.") && !line.contains('(')) && lines.next().is_none()
}

/// Returns the names of the methods that a body calls on `self`.
fn called(body: &str) -> impl Iterator<Item = &str> {
    body.split("self.").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        rest[end..].starts_with('(').then(|| &rest[..end])
    })
}

#[test]
fn calls_between_files_are_counted() {
    let a = "\nimpl Nic {\n    fn a(&self) {\n        self.b();\n        self.c(1);\n    }\n\n    fn b(&self) {\n        self.x.c();\n    }\n\n    fn d(&self) -> &u32 {\n        &self.x\n    }\n}\n";
    let b = "\nimpl<'a> Nic<'a> {\n    pub fn c(&self, n: u32) {\n        self.a();\n        self.d();\n    }\n}\n\nimpl Drop for Nic {\n    fn drop(&mut self) {\n        self.b();\n    }\n}\n";
    let counted = of_type("Nic", [("a", a), ("b", b)].into_iter());
    assert_eq!(counted, Calls { files: 2, methods: 4, between: 2 });
}

#[test]
fn circles_between_files_are_found() {
    let below = (
        "x/mod.rs",
        "\nuse super::other::A;\nuse b::B;\n\nimpl Nic {\n    fn low(&self) {\n        1;\n    }\n}\n",
    );
    let b = ("x/b.rs", "\nuse crate::y;\n");
    let above = (
        "x/c.rs",
        "\nuse super::{Nic, Z};\n\nimpl Nic {\n    fn high(&self) {\n        self.low();\n    }\n}\n",
    );
    assert!(circle("Nic", &[below, b, above]).is_empty());
    let calls_up = ("x/mod.rs", "\nimpl Nic {\n    fn low(&self) {\n        self.high();\n    }\n}\n");
    assert_eq!(circle("Nic", &[calls_up, b, above]), ["x/mod.rs", "x/c.rs"]);
    let uses = ("x/b.rs", "use super::c::Z;\n");
    let used = ("x/c.rs", "use super::b::Y;\n");
    assert_eq!(circle("Nic", &[uses, used]), ["x/b.rs", "x/c.rs"]);
    assert_eq!(
        shared_fields("    pub(super) a: u8,\n    pub b: u8,\n    pub(super) fn c(d: u8,\n").count(),
        1
    );
}
