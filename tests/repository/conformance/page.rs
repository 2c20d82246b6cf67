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

The rules of the InfiniBand Architecture Specification, volume 1, for RC and XRC, UC, UD and raw packets: where Roxie keeps each, which test
would fail if it did not, and what is missing. Rules are in our words. Clauses are those of release 1.4 as others cite them (A17: annex of
RoCE v2, A16: of RoCE v1, A14: of XRC, A19: of memory placement; C9-140: a compliance statement); some name a chapter alone. A rule that is not
listed is not counted as missing. Rules of the link and of management are not listed.

`make conformance` writes this page from [the list of rules](../tests/repository/conformance/rules.txt) and from annotations in the sources:
[how to add one](../CONTRIBUTING.md#a-rule-of-the-specification).
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
        write!(
            page,
            "\n## {title}\n\n| clause | for | rule | code | tests |\n| --- | --- | --- | --- | --- |\n"
        )
        .expect("a string grows");
        for kept in rules {
            row(&mut page, kept);
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

fn row(page: &mut String, Kept { rule, code, tests }: &Kept<'_>) {
    let (code, tests) = (places(code), places(tests));
    writeln!(
        page,
        "| {} | {} | {} | {code} | {tests} |",
        rule.clause,
        rule.services.join(", "),
        rule.text.replace('|', "\\|")
    )
    .expect("a string grows");
}

/// Items with links to their files, each file once.
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
    let of_file = |(file, items): (&str, Vec<&str>)| {
        let items: Vec<_> = items.iter().map(|item| format!("`{item}`")).collect();
        let short = file.strip_prefix("src/").or(file.strip_prefix("tests/")).unwrap_or(file);
        format!("[{short}](../{file}) {}", items.join(", "))
    };
    files.into_iter().map(of_file).collect::<Vec<_>>().join("; ")
}
