//! The report as one page, which needs no other file.

use std::fmt::Write as _;

use super::{Report, escaped};
use crate::run::Outcome;
use crate::verdict::Verdict;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2530;--soft:#5b6675;--paper:#fff;--line:#d7dde5;--keeps:#1b7f4b;--breaks:#b3261e;\
--lenient:#9a5b00;--not-tested:#5b6675;--box:#f6f7f9}\
@media(prefers-color-scheme:dark){:root{--ink:#e3e9f0;--soft:#9aa7b8;--paper:#12161c;--line:#2c3642;--keeps:#62c894;\
--breaks:#ff8a80;--lenient:#f0b357;--not-tested:#9aa7b8;--box:#1a2029}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;padding:1.5rem 1rem;max-width:64rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}\
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}\
.keeps{color:var(--keeps)}.breaks{color:var(--breaks);font-weight:600}.lenient{color:var(--lenient)}.not-tested{color:var(--not-tested)}\
code,pre{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.86em}\
pre{background:var(--box);border:1px solid var(--line);border-radius:6px;padding:.7rem;overflow-x:auto}\
details{border-bottom:1px solid var(--line);padding:.35rem 0}summary{cursor:pointer;overflow-wrap:anywhere}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .9rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
@media(max-width:36rem){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}th,td{padding:.3rem .2rem;font-size:.8rem}}";

/// Returns the report as a page: verdicts by chapter, and each check with its stimulus, rule and packets.
pub fn page(report: &Report) -> String {
    let mut html = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    let title = format!("RoCE v2 conformance of {}", escaped(&report.target));
    let _ = writeln!(html, "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>");
    let _ = writeln!(html, "<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>");
    let _ = writeln!(html, "<p>{}: {}.</p>", escaped(&report.device_in_words()), report.summary());
    chapters(&mut html, report);
    let failures: Vec<&Outcome> =
        report.checks.iter().filter(|outcome| outcome.verdict == Verdict::Breaks).collect();
    if !failures.is_empty() {
        html.push_str("<h2>Broken rules</h2>\n");
        failures.iter().for_each(|outcome| check(&mut html, outcome, true));
    }
    for (chapter, _) in report.chapters() {
        let _ = writeln!(html, "<h2>{}</h2>", escaped(chapter));
        let of_chapter = report.checks.iter().filter(|outcome| outcome.chapter == chapter);
        of_chapter.for_each(|outcome| check(&mut html, outcome, false));
    }
    html.push_str("<h2>Target and bench</h2>\n<dl>\n");
    let own = [
        ("bench", format!("roxie {}", report.bench)),
        ("bench address", report.from.clone()),
        ("link", report.access.clone()),
        ("started (Unix time)", report.started.to_string()),
    ];
    let device = report.device.iter().map(|(key, value)| (key.as_str(), value.clone()));
    for (key, value) in own.into_iter().chain(device) {
        let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", escaped(key), escaped(&value));
    }
    html.push_str("</dl>\n</body>\n</html>\n");
    html
}

fn chapters(html: &mut String, report: &Report) {
    html.push_str("<div class=\"scroll\"><table>\n<tr><th>chapter</th>");
    for verdict in Verdict::ALL {
        let _ = write!(html, "<th class=\"number\">{}</th>", verdict.words());
    }
    html.push_str("</tr>\n");
    for (chapter, counts) in report.chapters() {
        let _ = write!(html, "<tr><td>{}</td>", escaped(chapter));
        for (verdict, count) in Verdict::ALL.iter().zip(counts) {
            let class = if count > 0 { class(*verdict) } else { "none" };
            let _ = write!(html, "<td class=\"number {class}\">{count}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Keeps => "keeps",
        Verdict::Breaks => "breaks",
        Verdict::Lenient => "lenient",
        Verdict::NotTested => "not-tested",
    }
}

fn check(html: &mut String, outcome: &Outcome, is_open: bool) {
    let _ = writeln!(
        html,
        "<details{}><summary><span class=\"{}\">{}</span> <code>{}</code></summary>\n<dl>",
        if is_open { " open" } else { "" },
        class(outcome.verdict),
        outcome.verdict.words(),
        escaped(&outcome.name)
    );
    let came = if outcome.came.is_empty() { "what is asked" } else { &outcome.came };
    for (key, value) in [
        ("stimulus", outcome.stimulus.as_str()),
        ("the specification", &format!("{} ({})", outcome.asks, outcome.clause)),
        ("came", came),
        ("adapters", &outcome.adapters.join(", ")),
    ] {
        if value.is_empty() {
            continue;
        }
        let _ = writeln!(html, "<dt>{key}</dt><dd>{}</dd>", escaped(value));
    }
    html.push_str("</dl>\n");
    for text in [&outcome.script, &outcome.ladder].into_iter().filter(|text| !text.is_empty()) {
        let _ = writeln!(html, "<pre>{}</pre>", escaped(text));
    }
    html.push_str("</details>\n");
}
