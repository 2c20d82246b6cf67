//! A report as one self-contained HTML page, with style, script, and the report as `--json` prints it. The script draws
//! the report and computes no number.

use roxie_report::ladder;
use serde_json::Value;

use super::document::{About, Block, Report};
use super::text;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Returns the page of a report. `again` adds a form that runs the lab with other arguments, which needs a server.
pub(super) fn draw(report: &Report, json: &str, again: bool) -> String {
    let About { name, line, .. } = report.about;
    let form = match again {
        true => format!(
            "<nav aria-label=\"lab\"><a href=\"/\">all labs</a><form method=\"get\" action=\"/{name}\"><label>arguments \
             <input name=\"arguments\" size=\"30\" value=\"{}\" autocomplete=\"off\"></label> <button>run</button></form></nav>",
            escaped(report.command.strip_prefix(&format!("roxie lab {name}")).unwrap_or("").trim())
        ),
        false => String::new(),
    };
    let body = format!(
        "{form}<main id=\"main\"></main>\n<noscript><p>Without scripts this page is what the terminal shows.</p><pre>{}</pre></noscript>\n\
         <script type=\"application/json\" id=\"report\">{}</script>\n\
         <script type=\"application/json\" id=\"pictures\">{}</script>\n<script>\n{SCRIPT}</script>\n",
        escaped(&text::draw(report)),
        in_script(json),
        in_script(&pictures(report).to_string())
    );
    page(&format!("{name}: {line}"), &body)
}

/// Returns the index page.
pub(super) fn index(labs: &[About]) -> String {
    let item = |about: &About| {
        format!("<li><a href=\"/{0}\"><strong>{0}</strong></a> {1}</li>", about.name, escaped(about.line))
    };
    let items: Vec<String> = labs.iter().map(item).collect();
    let body = format!(
        "<main><h1>The labs of Roxie</h1><p>Each is a run of the engine, with charts and controls. Every number in a page \
         is in its data.</p><ul class=\"index\">{}</ul></main>",
        items.join("\n")
    );
    page("The labs of Roxie", &body)
}

/// Returns an error page.
pub(super) fn refusal(why: &str) -> String {
    page(
        "It cannot be shown",
        &format!(
            "<main><h1>It cannot be shown</h1><pre>{}</pre><p><a href=\"/\">all labs</a></p></main>",
            escaped(why)
        ),
    )
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title)
    )
}

/// Returns the drawn ladders, by run, then by block.
fn pictures(report: &Report) -> Value {
    let of = |block: &Block| match block {
        Block::Ladder(ladder) => Value::from(ladder::draw_svg(std::slice::from_ref(&ladder.ladder))),
        _ => Value::Null,
    };
    report.runs.iter().map(|run| run.blocks.iter().map(of).collect::<Value>()).collect()
}

/// Escapes JSON for a script element, where it must not start an end tag or a comment.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
