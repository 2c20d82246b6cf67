use super::*;

fn outcome(name: &str, chapter: &str, verdict: Verdict) -> Outcome {
    Outcome {
        name: name.into(),
        chapter: chapter.into(),
        clause: "9.7.5".into(),
        stimulus: "a SEND & a <WRITE>".into(),
        asks: "an \"ACK\"".into(),
        verdict,
        came: if verdict == Verdict::Keeps { String::new() } else { "nothing \u{1b}[31m <b>".into() },
        seconds: 0.25,
        ladder: if verdict == Verdict::Breaks { "|-- SEND -->|".into() } else { String::new() },
        adapters: Vec::new(),
        script: if verdict == Verdict::Breaks { "pair RC first=0x1".into() } else { String::new() },
        capture: Vec::new(),
    }
}

fn report(verdicts: &[(&str, Verdict)]) -> Report {
    let device =
        BTreeMap::from([("device".to_owned(), "rxe0".to_owned()), ("fw".to_owned(), "<1>".to_owned())]);
    let mut report = Report::new("192.0.2.2".into(), "192.0.2.1".into(), "raw", device);
    report.checks = verdicts.iter().map(|(name, verdict)| outcome(name, "One", *verdict)).collect();
    report
}

const MIXED: [(&str, Verdict); 4] =
    [("a", Verdict::Keeps), ("b", Verdict::Breaks), ("c", Verdict::Lenient), ("d", Verdict::NotTested)];

#[test]
fn json_is_read_back() {
    let report = report(&MIXED);
    assert_eq!(Report::read(&report.json()).unwrap(), report);
    assert!(Report::read("{}").unwrap_err().contains("no report"));
    let older = report.json().replace("\"version\"", "\"format\"");
    assert_eq!(Report::read(&older).unwrap(), report, "of releases that call it so");
    let other = report.json().replace("\"version\": 1", "\"version\": 9");
    assert!(Report::read(&other).unwrap_err().contains("version 9"));
}

#[test]
fn chapters_and_summary_count_verdicts() {
    let report = report(&MIXED);
    assert_eq!(report.chapters(), [("One", [1, 1, 1, 1])]);
    assert_eq!(report.summary(), "1 keep, 1 break, 1 lenient, 1 not tested");
}

/// Returns the names of the elements of a document, or the place where it is not well-formed.
fn elements(xml: &str) -> Result<Vec<String>, String> {
    let (mut open, mut seen, mut rest) = (Vec::new(), Vec::new(), xml);
    while let Some(at) = rest.find('<') {
        if rest[..at].contains('>') {
            return Err(format!("a bare > before {}", &rest[at..]));
        }
        let end = rest[at..].find('>').ok_or("a tag without an end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('?') || tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            if last.as_deref() != Some(name) {
                return Err(format!("</{name}> closes {last:?}"));
            }
            continue;
        }
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("<{tag}> has an odd number of quotes"));
        }
        let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        seen.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(seen) } else { Err(format!("left open: {open:?}")) }
}

#[test]
fn junit_is_well_formed_and_counts() {
    let xml = junit(&report(&MIXED));
    let names = elements(&xml).unwrap();
    let count = |name: &str| names.iter().filter(|element| *element == name).count();
    assert_eq!((count("testsuite"), count("testcase"), count("failure"), count("skipped")), (1, 4, 1, 1));
    assert!(xml.contains("tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"1\""), "{xml}");
    assert!(!xml.contains('\u{1b}') && xml.contains("&lt;b&gt;"), "{xml}");
}

#[test]
fn page_escapes_and_shows_failures_first() {
    let html = page(&report(&MIXED));
    assert!(html.contains("prefers-color-scheme:dark") && !html.contains("<b>") && !html.contains("<script"));
    let (broken, chapter) = (html.find("Broken rules").unwrap(), html.find("<h2>One</h2>").unwrap());
    assert!(broken < chapter && html[broken..chapter].contains("|-- SEND --&gt;|"));
    assert!(html[broken..chapter].contains("pair RC first=0x1"));
    // The page loads nothing.
    assert!(!html.contains("http") && !html.contains("src="));
}

#[test]
fn diff_names_what_changed() {
    let before = report(&[("a", Verdict::Keeps), ("b", Verdict::Breaks), ("gone", Verdict::Keeps)]);
    let after = report(&[("a", Verdict::Breaks), ("b", Verdict::Keeps), ("new", Verdict::Keeps)]);
    let changes = diff(&before, &after);
    let words: Vec<String> = changes.iter().map(Change::words).collect();
    assert_eq!(
        words,
        ["a: keeps -> breaks", "b: breaks -> keeps", "new: absent -> keeps", "gone: keeps -> absent"]
    );
    assert_eq!(changes.iter().map(Change::is_worse).collect::<Vec<_>>(), [true, false, false, false]);
    assert!(diff(&before, &before).is_empty());
}
