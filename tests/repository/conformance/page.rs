//! The page that rules and annotations make.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::conformance::rules::{Chapter, Rule};
use crate::conformance::source::Annotation;

/// A rule with its code and its tests.
pub struct Kept<'a> {
    pub rule: &'a Rule,
    pub code: Vec<&'a Annotation>,
    pub tests: Vec<&'a Annotation>,
}

impl Kept<'_> {
    /// The rule has code and a test.
    pub fn is_whole(&self) -> bool {
        !self.code.is_empty() && !self.tests.is_empty()
    }
}

/// Every rule with its annotations, by chapter.
pub fn by_chapter<'a>(
    chapters: &'a [Chapter],
    annotations: &'a [Annotation],
) -> Vec<(&'a str, Vec<Kept<'a>>)> {
    let of = |rule: &'a Rule| {
        let (tests, code) = annotations.iter().filter(|a| a.rule == rule.name).partition(|a| a.is_test);
        Kept { rule, code, tests }
    };
    chapters.iter().map(|chapter| (&*chapter.title, chapter.rules.iter().map(of).collect())).collect()
}

/// How many rules there are, have code, have code and a test, are kept otherwise than they stand, and lack code or a test.
pub fn totals(chapters: &[(&str, Vec<Kept<'_>>)]) -> [(&'static str, usize); 6] {
    let count = |is_so: fn(&Kept<'_>) -> bool| {
        chapters.iter().flat_map(|(_, rules)| rules).filter(|kept| is_so(kept)).count()
    };
    [
        ("rules", count(|_| true)),
        ("with code", count(|kept| !kept.code.is_empty())),
        ("with code and a test", count(|kept| kept.is_whole())),
        (
            "of these, kept in another way than the rule has it",
            count(|k| k.is_whole() && k.rule.today.is_some()),
        ),
        ("with code and without a test", count(|kept| !kept.code.is_empty() && kept.tests.is_empty())),
        ("missing: without code", count(|kept| kept.code.is_empty())),
    ]
}

const HEAD: &str = "\
# Conformance

Rules of the InfiniBand Architecture Specification, volume 1, for RC, XRC, UC, UD and raw packets, in our words: the code that keeps each,
and the tests that fail if it is broken. Clauses are of release 1.4, as others cite them. A14 is the annex of XRC, A16 of RoCE v1, A17 of
RoCE v2, A19 of memory placement; C9-140 is a compliance statement. Some name a chapter alone. Not listed, and not counted as
missing: rules of the link and of management.

`make conformance` writes this page: [how to add a rule](../CONTRIBUTING.md#a-rule-of-the-specification).
";

/// The page.
pub fn write(chapters: &[(&str, Vec<Kept<'_>>)]) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n| | |\n| --- | ---: |\n");
    for (what, count) in totals(chapters) {
        writeln!(page, "| {what} | {count} |").expect("a string grows");
    }
    open(&mut page, chapters);
    for (title, rules) in chapters {
        let kept: Vec<&Kept<'_>> = rules.iter().filter(|kept| !kept.code.is_empty()).collect();
        let Some(usual) = most_common_services(&kept) else { continue };
        write!(page, "\n## {title}\n\nServices, unless a rule names others: {usual}.\n\n")
            .expect("a string grows");
        page.push_str("| clause | rule | code | tests |\n| --- | --- | --- | --- |\n");
        for kept in kept {
            row(&mut page, kept, &usual);
        }
    }
    page
}

/// Returns the list of missing and deviating rules.
fn open(page: &mut String, chapters: &[(&str, Vec<Kept<'_>>)]) {
    let rules = || chapters.iter().flat_map(|(_, rules)| rules);
    let mut list = |title: &str, is_so: fn(&Kept<'_>) -> bool| {
        write!(page, "\n## {title}\n\n").expect("a string grows");
        for Kept { rule, .. } in rules().filter(|kept| is_so(kept)) {
            let today = rule.today.as_ref().map(|today| format!(" Today: {today}")).unwrap_or_default();
            writeln!(page, "- {} ({}): {}{today}", rule.clause, rule.services.join(", "), rule.text)
                .expect("a string grows");
        }
    };
    list("Missing", |kept| kept.code.is_empty());
    if rules().any(|kept| !kept.code.is_empty() && kept.tests.is_empty()) {
        list("Without a test", |kept| !kept.code.is_empty() && kept.tests.is_empty());
    }
    list("Kept in another way", |kept| kept.is_whole() && kept.rule.today.is_some());
}

/// Services of most rules, which a chapter names once. `None`: there are no rules.
fn most_common_services(rules: &[&Kept<'_>]) -> Option<String> {
    let all: Vec<String> = rules.iter().map(|kept| kept.rule.services.join(", ")).collect();
    let count = |services: &&String| all.iter().filter(|other| other == services).count();
    // `max_by_key` returns the last of several with the same count: from the end, that is the first.
    all.iter().rev().max_by_key(count).cloned()
}

fn row(page: &mut String, Kept { rule, code, tests }: &Kept<'_>, usual: &str) {
    let services = rule.services.join(", ");
    let services = if services == usual { String::new() } else { format!("{services}: ") };
    let text = rule.text.replace('|', "\\|");
    writeln!(page, "| {} | {services}{text} | {} | {} |", rule.clause, places(code), places(tests))
        .expect("a string grows");
}

/// Items with links to their files.
fn places(annotations: &[&Annotation]) -> String {
    if annotations.is_empty() {
        return "**missing**".to_owned();
    }
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for annotation in annotations {
        let items = files.entry(&annotation.file).or_default();
        if !items.contains(&annotation.item.as_str()) {
            items.push(&annotation.item);
        }
    }
    let links =
        files.iter().flat_map(|(file, items)| items.iter().map(move |item| format!("[`{item}`](../{file})")));
    links.collect::<Vec<_>>().join(", ")
}
