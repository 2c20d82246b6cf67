//! Formats a report for a terminal of 80 columns.

use std::fmt::Write as _;

use roxie_report::chart::{self, Line};
use roxie_report::ladder;
use roxie_report::words::folded;
use serde_json::Value;

use super::document::{Bars, Block, Bytes, Chart, Facts, Report, Run, Steps, Table, Timeline};

/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Characters for the lines of a chart.
const MARKS: [char; 12] = ['*', '+', 'o', 'x', '#', '%', '@', '=', '-', '~', ':', 'v'];

/// Formats a report.
pub(super) fn draw(report: &Report) -> String {
    let mut text = format!("{}\n\n", paragraph(&format!("{}: {}", report.about.name, report.about.line), 0));
    text += "What you will see\n";
    for line in report.about.see {
        let _ = writeln!(text, "{}", paragraph(line, 2));
    }
    if let Some(run) = report.runs.first() {
        text += &draw_run(run);
    }
    if !report.across.is_empty() {
        text += "\nAll runs\n";
        report.across.iter().for_each(|block| text += &draw_block(block));
    }
    text += "\nNow change something\n";
    for line in report.about.change {
        let _ = writeln!(text, "{}", paragraph(line, 2));
    }
    text
}

fn draw_run(run: &Run) -> String {
    let mut text = String::new();
    if !run.choice.is_empty() {
        let choices: Vec<String> = run.choice.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
        let _ = writeln!(text, "\nThis run: {}", choices.join(", "));
    }
    run.blocks.iter().for_each(|block| text += &draw_block(block));
    text + &draw_facts(&run.facts)
}

fn draw_facts(facts: &Facts) -> String {
    let mut text = String::new();
    if facts.0.is_empty() {
        return text;
    }
    text += "\nNumbers\n";
    let value =
        |fact: &super::document::Fact| format!("{} {}", cell(&fact.value), fact.unit).trim_end().to_owned();
    let width = facts.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let wide = facts.0.iter().map(|(_, fact)| value(fact).chars().count()).max().unwrap_or(0).min(24);
    for (name, fact) in &facts.0 {
        let head = format!("  {name:width$}  {:>wide$}  ", value(fact));
        text += &hanging(&head, fact.about);
    }
    text
}

fn draw_block(block: &Block) -> String {
    let body = match block {
        Block::Prose { text } => paragraph(text, 0) + "\n",
        Block::Table(table) => draw_table(table),
        Block::Chart(chart) => draw_chart(chart),
        Block::Bars(bars) => draw_bars(bars),
        Block::Ladder(ladder) => {
            format!("{}\n{}", ladder.heading, ladder::draw_text_within(&ladder.ladder, COLUMNS))
        }
        Block::Bytes(bytes) => draw_bytes(bytes),
        Block::Timeline(timeline) => draw_timeline(timeline),
        Block::Steps(steps) => draw_steps(steps),
    };
    format!("\n{body}")
}

/// Formats a value, with thousands separated.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => grouped(whole),
            None => number.as_f64().map_or_else(String::new, |n| format!("{}", super::document::round(n))),
        },
        other => other.to_string(),
    }
}

fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && digits.len() > 4 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

fn draw_table(table: &Table) -> String {
    let mut rows: Vec<Vec<String>> = vec![table.columns.iter().map(|name| (*name).to_owned()).collect()];
    rows.extend(table.rows.iter().map(|row| row.iter().map(cell).collect()));
    let count = table.columns.len();
    let is_number: Vec<bool> = (0..count)
        .map(|i| table.rows.iter().all(|row| row.get(i).is_some_and(|v| v.is_number() || v.is_null())))
        .collect();
    let letters = |text: &String| text.chars().count();
    // A column of numbers is as wide as its numbers; its title may wrap.
    let width = |i: usize| {
        let cells = rows.iter().skip(usize::from(is_number[i])).filter_map(|row| row.get(i)).map(letters);
        let words = rows[0][i].split(' ').map(|word| word.chars().count());
        cells.chain(words).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..count).map(width).collect();
    shrink(&mut widths, &is_number);
    let mut text = format!("{}\n", table.title);
    for (number, row) in rows.iter().enumerate() {
        if number == 1 || (table.sum && number + 1 == rows.len()) {
            let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(text, "  {}", dashes.join("  "));
        }
        text += &draw_row(row, &widths, &is_number);
    }
    text
}

/// Narrows text columns until the table fits.
fn shrink(widths: &mut [usize], is_number: &[bool]) {
    loop {
        let all: usize = widths.iter().map(|width| width + 2).sum();
        let widest = (0..widths.len()).filter(|i| !is_number[*i]).max_by_key(|i| widths[*i]);
        match widest {
            Some(widest) if all > COLUMNS && widths[widest] > 8 => widths[widest] -= 1,
            _ => return,
        }
    }
}

/// Formats a row with as many lines as its longest cell needs.
fn draw_row(row: &[String], widths: &[usize], is_number: &[bool]) -> String {
    let cells: Vec<Vec<String>> = row.iter().zip(widths).map(|(cell, width)| folded(cell, *width)).collect();
    let lines = cells.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for line in 0..lines {
        let parts = cells.iter().zip(widths).zip(is_number).map(|((cell, width), number)| {
            let part = cell.get(line).map_or("", String::as_str);
            if *number { format!("{part:>width$}") } else { format!("{part:width$}") }
        });
        let _ = writeln!(text, "  {}", parts.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

fn paragraph(text: &str, indent: usize) -> String {
    let space = " ".repeat(indent);
    let lines = text.lines().flat_map(|line| folded(line, COLUMNS - indent));
    lines.map(|line| format!("{space}{line}")).collect::<Vec<_>>().join("\n")
}

/// Wraps words behind a head, with a hanging indent.
fn hanging(head: &str, words: &str) -> String {
    let indent = head.chars().count();
    let mut text = String::new();
    for (i, line) in folded(words, COLUMNS.saturating_sub(indent).max(16)).iter().enumerate() {
        let space = " ".repeat(indent);
        let before = if i == 0 { head } else { &space };
        let _ = writeln!(text, "{}", format!("{before}{line}").trim_end());
    }
    text
}

fn draw_chart(chart: &Chart) -> String {
    let lines: Vec<Line> = chart
        .series
        .iter()
        .map(|series| Line { name: "", points: series.points.iter().map(|[x, y]| (*x, *y)).collect() })
        .collect();
    let ends = lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    let end = ends.fold(0.0, f64::max);
    let marked: Vec<(char, &Line)> =
        lines.iter().enumerate().map(|(i, line)| (MARKS[i % MARKS.len()], line)).collect();
    let legend: Vec<String> = chart
        .series
        .iter()
        .enumerate()
        .map(|(i, series)| format!("{} {}", MARKS[i % MARKS.len()], series.name))
        .collect();
    let title = paragraph(&format!("{} ({})", titled(&chart.title, chart.y.unit), legend.join(", ")), 0);
    let mut text = chart::draw(&title, 11, end, &format!("{end} {}", chart.x.unit), &marked, None);
    for level in &chart.levels {
        let _ = writeln!(text, "{:>12}{}: {} {}", "", level.name, level.value, chart.y.unit);
    }
    text
}

/// Joins a title and its unit, if there is one.
fn titled(title: &str, unit: &str) -> String {
    if unit.is_empty() { title.to_owned() } else { format!("{title}, {unit}") }
}

fn draw_bars(bars: &Bars) -> String {
    const WIDTH: f64 = 40.0;
    let sum = |bar: &super::document::Bar| bar.parts.iter().map(|part| part.value).sum::<f64>();
    let most = bars.bars.iter().map(sum).fold(0.0, f64::max).max(1e-9);
    let name = bars.bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0).min(20);
    let mut names: Vec<&str> = Vec::new();
    for part in bars.bars.iter().flat_map(|bar| &bar.parts) {
        if !names.contains(&&part.name[..]) {
            names.push(&part.name);
        }
    }
    let mark = |part: &str| MARKS[names.iter().position(|name| *name == part).unwrap_or(0) % MARKS.len()];
    let mut text = format!("{}, {}\n", bars.title, bars.unit);
    for bar in &bars.bars {
        let mut drawn = String::new();
        let mut reached = 0.0;
        for part in &bar.parts {
            reached += part.value;
            let until = (reached / most * WIDTH).round() as usize;
            drawn.extend(std::iter::repeat_n(mark(&part.name), until.saturating_sub(drawn.chars().count())));
        }
        let label: String = bar.name.chars().take(name).collect();
        let total = super::document::round(sum(bar)).into();
        let _ = writeln!(text, "  {label:name$} {:>10} |{drawn}", cell(&total));
    }
    let legend: Vec<String> = names.iter().map(|name| format!("{} {name}", mark(name))).collect();
    text + &paragraph(&legend.join("  "), 2) + "\n"
}

fn draw_bytes(bytes: &Bytes) -> String {
    /// Lines of 16 bytes; the payload follows after them.
    const LINES: usize = 8;
    let mut text = format!("{}\n", bytes.title);
    for (row, line) in bytes.hex.as_bytes().chunks(32).take(LINES).enumerate() {
        let pairs: Vec<&str> = line.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("")).collect();
        let _ = writeln!(text, "  {:04x}  {}", row * 16, pairs.join(" "));
    }
    if bytes.hex.len() > 32 * LINES {
        let _ = writeln!(text, "  ....  {} bytes in all", bytes.hex.len() / 2);
    }
    let mut header = "";
    for field in &bytes.fields {
        if field.header != header {
            header = &field.header;
            let _ = writeln!(text, "  {header}");
        }
        let place = match (field.bit % 8, field.bits % 8) {
            (0, 0) => format!("{:>5} {:>4}  ", field.bit / 8, field.bits / 8),
            (bit, _) => format!("{:>5}.{bit} {:>2}b ", field.bit / 8, field.bits),
        };
        let mark = if field.uncovered { "~" } else { " " };
        let head = format!("  {place:12}{mark}{:18} {}", field.name, field.value);
        match field.about.is_empty() || head.chars().count() > 52 {
            true => {
                text += &hanging(
                    &head.chars().take(34).collect::<String>(),
                    &head.chars().skip(34).collect::<String>(),
                )
            }
            false => text += &hanging(&format!("{head:52} "), &field.about),
        }
    }
    if bytes.fields.iter().any(|field| field.uncovered) {
        text += "  offset and length in bytes (b: bits); ~ not covered by the ICRC\n";
    }
    text
}

fn draw_timeline(timeline: &Timeline) -> String {
    const WIDTH: f64 = 24.0;
    let end = timeline.spans.iter().map(|span| span.to).fold(0.0, f64::max).max(1e-9);
    let mut text = format!("{}, {}\n", timeline.title, timeline.unit);
    let who = timeline.spans.iter().map(|span| span.at.chars().count()).max().unwrap_or(0);
    for span in &timeline.spans {
        let from = (span.from / end * WIDTH) as usize;
        let to = ((span.to / end * WIDTH).ceil() as usize).max(from + 1).min(WIDTH as usize + 1);
        let bar = format!("{}{}", " ".repeat(from), "=".repeat(to - from));
        let times = format!("{:>7} {:>6}", chart::number(span.from), chart::number(span.to - span.from));
        let head = format!("  {times}  {:who$}  |{bar:width$}| ", span.at, width = WIDTH as usize + 1);
        text += &hanging(&head, &span.what);
    }
    text
}

fn draw_steps(steps: &Steps) -> String {
    let mut text = format!("{}\n", steps.title);
    for step in &steps.steps {
        text += &hanging(&format!("  {:>10}  ", step.at), &step.says);
        let states: Vec<String> = steps
            .places
            .iter()
            .zip(&step.states)
            .map(|(place, (state, level))| {
                format!("{place}{} {state}", ["", "!", "#"][usize::from(*level).min(2)])
            })
            .collect();
        text += &hanging(&format!("  {:>10}  ", ""), &format!("[{}]", states.join("; ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped_from_five_digits() {
        assert_eq!([1234, 12_345, -1_234_567].map(grouped), ["1234", "12,345", "-1,234,567"]);
    }

    #[test]
    fn wide_table_wraps_its_words() {
        let table = Table {
            title: "t".into(),
            columns: vec!["a", "n"],
            rows: vec![vec!["word ".repeat(40).into(), 5.into()]],
            sum: false,
        };
        let text = draw_table(&table);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(text.matches("word").count(), 40);
    }
}
