//! The rules of the specification: which there are, where the code keeps them, which tests hold them to it, and the
//! page that says so.
//!
//! [`rules`] reads the registry, [`source`] the annotations, [`page`] makes `docs/conformance.md` and its table of
//! both. `CONFORMANCE=write` writes them instead of comparing them.

#![allow(unreachable_pub)]

mod page;
mod rules;
mod source;

use std::fs;

use crate::tree::root;
use rules::{Chapter, Rule};
use source::Annotation;

const PAGE: &str = "docs/conformance.md";
const TABLE: &str = "docs/conformance.csv";

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn registry() -> Vec<Chapter> {
    rules::parse(&read("tests/repository/conformance/rules.txt"))
        .unwrap_or_else(|wrong| panic!("\n{}", wrong.join("\n")))
}

/// All annotations of the crate and of its tests.
fn annotations() -> Vec<Annotation> {
    let mut wrong = Vec::new();
    let mut all = source::annotations(&root(), "src", &mut wrong);
    all.extend(source::annotations(&root(), "tests", &mut wrong));
    // Annotations that a test of this file makes up do not count.
    all.retain(|annotation| !annotation.file.starts_with("tests/repository/conformance/"));
    none(&wrong);
    all
}

/// Annotations that name no rule, or a rule's clause wrongly.
fn strays(chapters: &[Chapter], annotations: &[Annotation]) -> Vec<String> {
    let all: Vec<&Rule> = chapters.iter().flat_map(|chapter| &chapter.rules).collect();
    let stray = |a: &Annotation| {
        let place = format!("{}:{}", a.file, a.line);
        match all.iter().find(|rule| rule.name == a.rule) {
            None => Some(format!("{place}: {} is no rule of tests/repository/conformance/rules.txt", a.rule)),
            Some(rule) if rule.clause != a.clause => {
                Some(format!("{place}: {} is of clause {}, not {}", a.rule, rule.clause, a.clause))
            }
            Some(_) => None,
        }
    };
    annotations.iter().filter_map(stray).collect()
}

/// Rules without code that do not say what happens instead.
fn unexplained(chapters: &[Chapter], annotations: &[Annotation]) -> Vec<String> {
    let by_chapter = page::by_chapter(chapters, annotations);
    let silent = by_chapter
        .iter()
        .flat_map(|(_, rules)| rules)
        .filter(|kept| kept.code.is_empty() && (kept.rule.today.is_none() || !kept.tests.is_empty()));
    silent
        .map(|kept| {
            let name = &kept.rule.name;
            match kept.tests.first() {
                Some(test) => format!("{name}: {} holds it, and no code says that it keeps it", test.item),
                None => format!("{name}: no code keeps it, and it does not say what happens today"),
            }
        })
        .collect()
}

#[test]
fn every_annotation_names_a_rule_by_its_clause() {
    let annotations = annotations();
    assert!(annotations.len() > 200, "{} annotations: are they still read?", annotations.len());
    none(&strays(&registry(), &annotations));
}

#[test]
fn a_rule_without_code_says_what_happens_today() {
    none(&unexplained(&registry(), &annotations()));
}

/// Compares a file with its contents as rules and annotations make them, or writes it.
fn compare(path: &str, made: &str) {
    if std::env::var("CONFORMANCE").is_ok_and(|wish| wish == "write") {
        return fs::write(root().join(path), made).expect("the file is written");
    }
    let there = read(path);
    let differs = there.lines().zip(made.lines()).find(|(there, made)| there != made);
    let (there_is, made_is) = differs.unwrap_or(("its end", "its end"));
    assert!(
        there == made,
        "{path} is not up to date: `make conformance` writes it\n  there: {there_is}\n  made:  {made_is}"
    );
}

#[test]
fn the_page_is_what_rules_and_annotations_make() {
    let (chapters, annotations) = (registry(), annotations());
    let by_chapter = page::by_chapter(&chapters, &annotations);
    for (what, count) in page::totals(&by_chapter) {
        println!("{count:>4} {what}");
    }
    compare(PAGE, &page::write(&by_chapter));
    compare(TABLE, &page::table(&by_chapter));
}

/// A page that is cut at random would pass a comparison with itself: whole chapters must be there.
#[test]
fn each_service_has_its_rules() {
    let chapters = registry();
    let rules: Vec<&Rule> = chapters.iter().flat_map(|chapter| &chapter.rules).collect();
    for service in ["all", "RC", "UC", "UD", "XRC", "raw"] {
        let count = rules.iter().filter(|rule| rule.services.iter().any(|s| s == service)).count();
        assert!(count >= 3, "{count} rules for {service}");
    }
    assert!(rules.len() >= 120, "{} rules", rules.len());
}

mod what_is_wrong_is_seen {
    use super::*;

    const RULES: &str = "\
= Chapter

first-rule (9.7.1; RC)
    It asks for this
    and that.

second-rule (9.7.6.1.3 C9-140; RC, UC)
    It asks for more.
    today: nothing
    happens.
";

    fn of(text: &str) -> (Vec<Annotation>, Vec<String>) {
        let mut wrong = Vec::new();
        let annotations = source::of_file("src/made_up.rs", text, &mut wrong);
        (annotations, wrong)
    }

    fn items(text: &str) -> Vec<String> {
        let (annotations, wrong) = of(text);
        none(&wrong);
        annotations.into_iter().map(|annotation| annotation.item).collect()
    }

    #[test]
    fn a_registry_reads_as_documented() {
        let chapters = rules::parse(RULES).expect("good");
        let rules = &chapters[0].rules;
        assert_eq!((chapters.len(), rules.len(), &*chapters[0].title), (1, 2, "Chapter"));
        assert_eq!((&*rules[0].text, &rules[0].today), ("It asks for this and that.", &None));
        assert_eq!(rules[1].today.as_deref(), Some("nothing happens."));
        assert_eq!(
            (&*rules[1].clause, rules[1].services.join("+")),
            ("9.7.6.1.3 C9-140", "RC+UC".to_owned())
        );
    }

    #[test]
    fn unknown_words_are_no_rule() {
        for (wrong, why) in [
            ("first-rule (9.7.1; RC)\n    x", "before the first chapter"),
            ("= C\nFirst (9.7.1; RC)\n    x", "small letters"),
            ("= C\nfirst 9.7.1 RC\n    x", "begins a rule"),
            ("= C\nfirst (9.7.x; RC)\n    x", "a clause is"),
            ("= C\nfirst (9.7.1 B9-1; RC)\n    x", "a clause is"),
            ("= C\nfirst (9.7.1; RD)\n    x", "a service is"),
            ("= C\nfirst (9.7.1; RC)\n    x\nfirst (9.7.1; RC)\n    x", "twice"),
            ("= C\nfirst (9.7.1; RC)\n", "does not say what it asks"),
            ("= C\n    x", "belongs to no rule"),
            ("= C\nfirst (9.7.1; RC)\n    x\n    today: a\n    today: b", "says twice"),
        ] {
            let message = rules::parse(wrong).expect_err(wrong);
            assert!(message.iter().any(|line| line.contains(why)), "{wrong:?}: {message:?}");
        }
    }

    #[test]
    fn annotation_belongs_to_the_item_below_or_around() {
        let text = "
//= IBTA 9.7.1: first-rule
/// Documented.
#[derive(Debug)]
pub(super) enum Verdict {
    //= IBTA 9.7.1: first-rule
    Good,
}

impl<T: Copy> Qp<T> {
    //= IBTA 9.7.1: first-rule
    const fn next(&self) -> u32 {
        0
    }

    pub fn take(
        &self,
    ) -> u32
    where
        T: Clone,
    {
        if self.is_there() {
            //= IBTA 9.7.1: first-rule
            return 1;
        }
        //= IBTA 9.7.1: first-rule
        2
    }
}

impl From<u8> for Syndrome {
    fn from(byte: u8) -> Syndrome {
        //= IBTA 9.7.1: first-rule
        Syndrome(byte)
    }
}
";
        let expected = ["Verdict", "Verdict", "Qp::next", "Qp::take", "Qp::take", "Syndrome::from"];
        assert_eq!(items(text), expected);
    }

    #[test]
    fn test_annotations_stand_at_tests_only() {
        let test = "
mod tests {
    /// Why.
    //= test: IBTA 9.7.1: first-rule
    #[test]
    fn it_holds() {
        let cases = [
            //= test: IBTA 9.7.1: first-rule
            1,
        ];
    }
}
";
        assert_eq!(items(test), ["it_holds", "it_holds"]);
        let (annotations, wrong) = of("//= test: IBTA 9.7.1: first-rule\nfn helper() {}\n");
        assert!(annotations.is_empty() && wrong[0].contains("is no #[test]"), "{wrong:?}");
        let (annotations, wrong) = of("#[test]\n//= IBTA 9.7.1: first-rule\nfn it_holds() {}\n");
        assert!(annotations.is_empty() && wrong[0].contains("is a #[test]"), "{wrong:?}");
    }

    #[test]
    fn several_rules_of_a_clause() {
        let (annotations, wrong) = of("//= IBTA 9.7.1: first-rule, third-rule\nfn f() {}\n");
        none(&wrong);
        let rules: Vec<_> = annotations.iter().map(|a| (&*a.clause, &*a.rule, &*a.item)).collect();
        assert_eq!(rules, [("9.7.1", "first-rule", "f"), ("9.7.1", "third-rule", "f")]);
    }

    #[test]
    fn an_annotation_in_another_form() {
        for text in [
            "//= IBTA 9.7.1 first-rule\nfn f() {}\n",
            "//= 9.7.1: first-rule\nfn f() {}\n",
            "//= IBTA 9.7.1: first-rule\n",
        ] {
            let (annotations, wrong) = of(text);
            assert_eq!((annotations.len(), wrong.len()), (0, 1), "{text:?}");
        }
    }

    #[test]
    fn unknown_rules_and_wrong_clauses_are_reported() {
        let chapters = rules::parse(RULES).expect("good");
        let (annotations, _) =
            of("fn f() {\n    //= IBTA 9.7.1: no-rule\n    //= IBTA 9.7.2: first-rule\n}\n");
        let strays = strays(&chapters, &annotations);
        assert_eq!(strays.len(), 2, "{strays:?}");
        assert!(strays[0].contains("no rule") && strays[1].contains("of clause 9.7.1"), "{strays:?}");
    }

    #[test]
    fn a_rule_without_code_that_is_not_explained() {
        let chapters = rules::parse(RULES).expect("good");
        let message = unexplained(&chapters, &[]);
        assert_eq!(message.len(), 1, "the second says what happens: {message:?}");
        assert!(message[0].contains("first-rule"), "{message:?}");
        let (annotations, _) =
            of("//= test: IBTA 9.7.6.1.3 C9-140: second-rule\n#[test]\nfn it_holds() {}\n");
        let message = unexplained(&chapters, &annotations);
        assert!(message.iter().any(|line| line.contains("it_holds holds it")), "{message:?}");
    }

    #[test]
    fn a_page_counts_what_is_missing() {
        let chapters = rules::parse(RULES).expect("good");
        let (annotations, _) = of("//= IBTA 9.7.1: first-rule\nfn f() {}\n");
        let by_chapter = page::by_chapter(&chapters, &annotations);
        assert_eq!(page::totals(&by_chapter).map(|(_, count)| count), [2, 1, 0, 0, 1, 1]);
        let made = page::write(&by_chapter);
        let missing = "- 9.7.6.1.3 C9-140 (RC, UC): It asks for more. Today: nothing happens.";
        assert!(made.contains(missing), "{made}");
        let table = page::table(&by_chapter);
        let lines = [
            r#""Chapter","9.7.1","RC","first-rule","It asks for this and that.","","src/made_up.rs: f","""#,
            r#""Chapter","9.7.6.1.3 C9-140","RC, UC","second-rule","It asks for more.","nothing happens.","","""#,
        ];
        assert!(table.lines().skip(1).eq(lines), "{table}");
    }
}
