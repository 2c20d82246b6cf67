//! The figures of the pages: tables, and a chart, that follow from `docs/performance/MACHINE.csv`.
//!
//! A page has `<!-- figures: MACHINE; TABLE; against COLUMN; columns A, B -->`, the table, and `<!-- end of figures
//! -->`. `against` prints ratios to that column, `columns` chooses and orders columns. `FIGURES=write` writes tables
//! and chart instead of comparing them.

use std::fmt::Write;
use std::fs;

use crate::tree::root;

/// First line of a file behind its comments.
const FIELDS: &str = "date,commit,command,table,row,column,unit,value,least,most";
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";
const CHART: &str = "docs/performance/tcp.svg";
/// Machines of the chart. Marks of the first are filled.
const MACHINES: [&str; 2] = ["epyc", "xeon"];
/// Ports of the chart with their style.
const PORTS: [(&str, &str); 3] = [("AF_XDP", "xdp"), ("packet", "packet"), ("UDP", "udp")];
const TCP: &str = "TCP";
/// Unit of a value that was recorded as a ratio to the table's first column.
const RATIO: &str = "ratio";

/// One measured value.
#[derive(Debug)]
struct Figure {
    table: String,
    row: String,
    column: String,
    unit: String,
    value: String,
    least: String,
    most: String,
}

/// Contents of a marker.
#[derive(Debug)]
struct Request<'a> {
    machine: &'a str,
    table: &'a str,
    against: Option<&'a str>,
    columns: Vec<&'a str>,
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn parse(text: &str) -> Result<Vec<Figure>, String> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#'));
    if lines.next().is_none_or(|(_, line)| line != FIELDS) {
        return Err(format!("the first line is not {FIELDS}"));
    }
    lines.map(|(number, line)| figure(line).ok_or_else(|| format!("line {number}: {line}"))).collect()
}

/// Returns the value of a line. `None`: a field is missing or empty, and only unit, least and most may be empty.
fn figure(line: &str) -> Option<Figure> {
    let fields: Vec<&str> = line.split(',').collect();
    let [date, commit, command, table, row, column, unit, value, least, most] = fields[..] else {
        return None;
    };
    let needed = [date, commit, command, table, row, column, value];
    let text = |field: &str| field.to_owned();
    (!needed.contains(&"")).then(|| Figure {
        table: text(table),
        row: text(row),
        column: text(column),
        unit: text(unit),
        value: text(value),
        least: text(least),
        most: text(most),
    })
}

fn request(text: &str) -> Result<Request<'_>, String> {
    let mut parts = text.split(';').map(str::trim);
    let (Some(machine), Some(table)) = (parts.next(), parts.next()) else {
        return Err(format!("{text}: name a machine and a table"));
    };
    let mut request = Request { machine, table, against: None, columns: Vec::new() };
    for part in parts {
        if let Some(column) = part.strip_prefix("against ") {
            request.against = Some(column);
        } else if let Some(list) = part.strip_prefix("columns ") {
            request.columns = list.split(',').map(str::trim).collect();
        } else {
            return Err(format!("{text}: {part} is neither `against COLUMN` nor `columns LIST`"));
        }
    }
    Ok(request)
}

fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut out = Vec::new();
    for text in all {
        if !out.contains(&text) {
            out.push(text);
        }
    }
    out
}

/// Returns a count with a comma at each thousand, from 10,000 on. Any other text stays.
fn grouped(value: &str) -> String {
    if value.len() < 5 || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return value.to_owned();
    }
    let mut out = String::new();
    for (at, digit) in value.chars().enumerate() {
        if at > 0 && (value.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn number(figure: &Figure) -> Result<f64, String> {
    figure.value.parse().map_err(|_| format!("{}: {} is no number", figure.row, figure.value))
}

/// Returns how many times better than `reference` a value is: a time is better if it is shorter.
fn ratio(figure: &Figure, reference: &Figure) -> Result<f64, String> {
    let (own, other) = (number(figure)?, number(reference)?);
    Ok(if ["us", "ms"].contains(&&*figure.unit) { other / own } else { own / other })
}

fn with_unit(text: &str, unit: &str) -> String {
    if unit.is_empty() || unit == RATIO { text.to_owned() } else { format!("{text}, {unit}") }
}

fn table(all: &[Figure], request: &Request<'_>) -> Result<String, String> {
    let own: Vec<&Figure> = all.iter().filter(|figure| figure.table == request.table).collect();
    let rows = distinct(own.iter().map(|figure| &*figure.row));
    let mut columns = distinct(own.iter().map(|figure| &*figure.column));
    if let Some(unknown) = request.columns.iter().chain(&request.against).find(|name| !columns.contains(name))
    {
        return Err(format!("{} of {} has no column {unknown}", request.table, request.machine));
    }
    if !request.columns.is_empty() {
        columns.clone_from(&request.columns);
    }
    let units = |column: &str| {
        distinct(own.iter().filter(|figure| figure.column == column).map(|figure| &*figure.unit))
    };
    // Columns of different units name them in the head, others in the row.
    let all_units: Vec<Vec<&str>> = columns.iter().map(|column| units(column)).collect();
    let in_head = all_units.iter().all(|units| units.len() == 1)
        && distinct(all_units.iter().map(|units| units[0])).len() > 1;
    let mut out = String::from("|");
    for (&column, units) in columns.iter().zip(&all_units) {
        let name = if in_head { with_unit(column, units[0]) } else { column.to_owned() };
        match request.against {
            Some(against) if against != column => write!(out, " | {name} / {against}"),
            _ => write!(out, " | {name}"),
        }
        .expect("a string grows");
    }
    writeln!(out, " |\n|{}", " --- |".repeat(columns.len() + 1)).expect("a string grows");
    for row in rows {
        let of_row = |column: &str| own.iter().find(|figure| figure.row == row && figure.column == column);
        let unit = own.iter().find(|figure| figure.row == row && figure.unit != RATIO);
        let unit = unit.filter(|_| !in_head).map_or("", |figure| &*figure.unit);
        write!(out, "| {}", with_unit(row, unit)).expect("a string grows");
        for &column in &columns {
            out.push_str(" |");
            let Some(figure) = of_row(column) else { continue };
            let reference = request.against.filter(|against| *against != column && figure.unit != RATIO);
            if let Some(reference) = reference.and_then(of_row) {
                write!(out, " {:.2}", ratio(figure, reference)?).expect("a string grows");
                continue;
            }
            write!(out, " {}", grouped(&figure.value)).expect("a string grows");
            if !figure.least.is_empty() {
                write!(out, " ({}-{})", grouped(&figure.least), grouped(&figure.most))
                    .expect("a string grows");
            }
        }
        out.push_str(" |\n");
    }
    Ok(out)
}

fn figures(machine: &str) -> Result<Vec<Figure>, String> {
    let path = format!("docs/performance/{machine}.csv");
    let text = fs::read_to_string(root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
    parse(&text).map_err(|why| format!("{path}: {why}"))
}

/// Returns a page with the tables that its markers ask for.
fn with_tables(page: &str) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), page);
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (marker, behind) = after.split_once(" -->\n").ok_or("a marker does not end")?;
        let (_, behind) = behind.split_once(END).ok_or_else(|| format!("{marker}: {END} is missing"))?;
        let request = request(marker)?;
        let table = table(&figures(request.machine)?, &request)?;
        write!(out, "{before}{BEGIN}{marker} -->\n\n{table}\n{END}").expect("a string grows");
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// Position of a ratio, on a logarithmic scale from 0.2 to 10.
fn position(ratio: f64) -> f64 {
    300.0 + (ratio.ln() - 0.2_f64.ln()) / (10.0_f64.ln() - 0.2_f64.ln()) * 560.0
}

fn of_tcp(all: &[Figure], row: &str, column: &str) -> Option<f64> {
    let find = |column: &str| {
        all.iter().find(|figure| figure.table == "tcp" && figure.row == row && figure.column == column)
    };
    let figure = find(column)?;
    if figure.unit == RATIO {
        return number(figure).ok();
    }
    ratio(figure, find(TCP)?).ok()
}

/// The chart: a mark for each ratio to TCP, with a line for each measurement.
fn chart() -> Result<String, String> {
    let machines: Vec<Vec<Figure>> =
        MACHINES.iter().map(|machine| figures(machine)).collect::<Result<_, _>>()?;
    let first = machines[0].iter().filter(|figure| figure.table == "tcp");
    let rows = distinct(first.map(|figure| &*figure.row));
    let bottom = 96 + 26 * rows.len();
    let mut out = HEAD.replace("HEIGHT", &(bottom + 30).to_string());
    for (i, (port, style)) in PORTS.iter().enumerate() {
        let x = 520 + 110 * i;
        let text = format!("<text class=\"soft\" x=\"{}\" y=\"48\">{port}</text>", x + 10);
        writeln!(out, "<circle class=\"{style}\" cx=\"{x}\" cy=\"44\" r=\"4\"/>{text}")
            .expect("a string grows");
    }
    for tick in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0] {
        let (x, style) = (position(tick), if tick == 1.0 { "tcp" } else { "grid" });
        let text = format!("<text class=\"soft middle\" x=\"{x:.1}\" y=\"{}\">{tick}</text>", bottom + 18);
        writeln!(
            out,
            "<line class=\"{style}\" x1=\"{x:.1}\" y1=\"66\" x2=\"{x:.1}\" y2=\"{bottom}\"/>{text}"
        )
        .expect("a string grows");
    }
    for (i, row) in rows.iter().enumerate() {
        let y = 84 + 26 * i;
        writeln!(out, "<text class=\"end\" x=\"285\" y=\"{}\">{}</text>", y + 4, row.replace('`', ""))
            .expect("a string grows");
        for (all, (hollow, y)) in machines.iter().zip([("", y - 4), (" hollow", y + 4)]) {
            for (port, style) in PORTS {
                let Some(ratio) = of_tcp(all, row, port) else { continue };
                let x = position(ratio);
                writeln!(out, "<circle class=\"{style}{hollow}\" cx=\"{x:.1}\" cy=\"{y}\" r=\"4\"/>")
                    .expect("a string grows");
            }
        }
    }
    out.push_str("</svg>\n");
    Ok(out)
}

const HEAD: &str = "\
<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 HEIGHT\" width=\"900\" height=\"HEIGHT\" role=\"img\" aria-labelledby=\"title about\">
<title id=\"title\">Roxie beside TCP</title>
<desc id=\"about\">Ratios to TCP of eleven measurements over three ports on two machines; the tables of the page have the numbers.</desc>
<style>
.paper{fill:#ffffff}
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1c2430}
.title{font-size:17px;font-weight:600}
.soft{fill:#5b6675;font-size:12px}
.end{text-anchor:end}
.middle{text-anchor:middle}
.grid{stroke:#dde3ea;stroke-width:1}
.tcp{stroke:#8592a3;stroke-width:1.5}
.xdp{fill:#2f6fde;stroke:#2f6fde;stroke-width:2}
.packet{fill:#1f9d6b;stroke:#1f9d6b;stroke-width:2}
.udp{fill:#d97a1c;stroke:#d97a1c;stroke-width:2}
.hollow{fill:none}
@media (prefers-color-scheme:dark){
.paper{fill:#12161c}
text{fill:#e4e9f0}
.soft{fill:#9aa7b8}
.grid{stroke:#29323e}
.tcp{stroke:#6b7889}
}
</style>
<rect class=\"paper\" width=\"100%\" height=\"100%\"/>
<text class=\"title\" x=\"20\" y=\"28\">Beside TCP on a veth pair, two processors</text>
<text class=\"soft\" x=\"20\" y=\"48\">Ratio to TCP, more is better. Filled: EPYC. Hollow: Xeon.</text>
";

/// Compares a file with what follows from the figures, or writes it.
fn compare(path: &str, made: &str) {
    if std::env::var("FIGURES").is_ok_and(|wish| wish == "write") {
        return fs::write(root().join(path), made).expect("the file is written");
    }
    let there = if root().join(path).exists() { read(path) } else { String::new() };
    let differs = there.lines().zip(made.lines()).find(|(there, made)| there != made);
    let (there_is, made_is) = differs.unwrap_or(("its end", "its end"));
    assert!(
        there == made,
        "{path} differs from its figures: FIGURES=write writes it\n  there: {there_is}\n  made:  {made_is}"
    );
}

#[test]
fn tables_of_pages_follow_from_the_figures() {
    let mut tables = 0;
    for entry in fs::read_dir(root().join("docs")).expect("the pages") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !name.ends_with(".md") {
            continue;
        }
        let path = format!("docs/{name}");
        let page = read(&path);
        tables += page.matches(BEGIN).count();
        compare(&path, &with_tables(&page).unwrap_or_else(|why| panic!("{path}: {why}")));
    }
    assert!(tables >= 8, "{tables} tables found: are the markers still read?");
}

#[test]
fn chart_follows_from_the_figures() {
    compare(CHART, &chart().unwrap_or_else(|why| panic!("{why}")));
}

#[test]
fn wrong_figures_and_markers_are_refused() {
    let line = "2026-11-30,0123abc,make versus,t,row,TCP,us,4.0,3.0,5.0";
    let other = "2026-11-30,0123abc,make versus,t,row,UDP,us,8.0,,";
    let figures = parse(&format!("# A machine.\n{FIELDS}\n{line}\n{other}\n")).expect("two figures");
    let requested = |marker: &str| request(marker).and_then(|request| table(&figures, &request));
    assert_eq!(
        requested("m; t; against TCP"),
        Ok("| | TCP | UDP / TCP |\n| --- | --- | --- |\n| row, us | 4.0 (3.0-5.0) | 0.50 |\n".to_owned())
    );
    assert!(
        requested("m").is_err()
            && requested("m; t; against RDMA").is_err()
            && requested("m; t; sorted").is_err()
    );
    for wrong in ["2026-11-30,0123abc,make versus,t,row,TCP,us,4.0,3.0", ",0123abc,c,t,row,TCP,us,4.0,,"] {
        assert!(parse(&format!("{FIELDS}\n{wrong}\n")).is_err(), "{wrong}");
    }
    assert_eq!([grouped("9999"), grouped("3400000"), grouped("0.25")], ["9999", "3,400,000", "0.25"]);
}
