//! The page and the table that rules and annotations make.

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

/// How many rules there are, have code, have code and a test, are kept otherwise than they stand, and lack code or a
/// test.
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

Rules of the InfiniBand Architecture Specification, volume 1, for RC, XRC, UC, UD and raw packets, in our words. [The
table](conformance.csv) has a line for each: the code that keeps it, and the tests that fail if it is broken. Both carry the rule's name:
`grep -rn duplicate-is-not-executed src tests`. This page has the rules that Roxie does not keep as they stand.
[`roxie conform`](conform.md) checks any peer.

Clauses are of release 1.4, as others cite them. A14 is the annex of XRC, A16 of RoCE v1, A17 of RoCE v2, A19 of memory placement; C9-140 is
a compliance statement. Some name a chapter alone. Not listed, and not counted as missing: rules of the link and of management.

`make conformance` writes page and table: [how to add a rule](../CONTRIBUTING.md#a-rule-of-the-specification).
";
/// First line of the table.
const COLUMNS: &str = "chapter,clause,services,rule,text,instead,code,tests";

/// The page: counts, and rules that are missing or kept in another way.
pub fn write(chapters: &[(&str, Vec<Kept<'_>>)]) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n| | |\n| --- | ---: |\n");
    for (what, count) in totals(chapters) {
        writeln!(page, "| {what} | {count} |").expect("a string grows");
    }
    open(&mut page, chapters);
    page
}

/// The table: a line of comma-separated values for each rule.
pub fn table(chapters: &[(&str, Vec<Kept<'_>>)]) -> String {
    let mut table = format!("{COLUMNS}\n");
    for (title, rules) in chapters {
        for Kept { rule, code, tests } in rules {
            let (services, code, tests) = (rule.services.join(", "), places(code), places(tests));
            let today = rule.today.as_deref().unwrap_or_default();
            let fields: [&str; 8] =
                [title, &rule.clause, &services, &rule.name, &rule.text, today, &code, &tests];
            let quoted = fields.map(|field| format!("\"{}\"", field.replace('"', "\"\"")));
            writeln!(table, "{}", quoted.join(",")).expect("a string grows");
        }
    }
    table
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

/// Items, each file once.
fn places(annotations: &[&Annotation]) -> String {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for annotation in annotations {
        let items = files.entry(&annotation.file).or_default();
        if !items.contains(&annotation.item.as_str()) {
            items.push(&annotation.item);
        }
    }
    let of_file = |(file, items): (&str, Vec<&str>)| format!("{file}: {}", items.join(", "));
    files.into_iter().map(of_file).collect::<Vec<_>>().join("; ")
}
