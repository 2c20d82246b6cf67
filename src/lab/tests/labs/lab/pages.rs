//! Properties that all labs share.

use std::fs;

use serde_json::Value;

use crate::lab::{browser, data, lab, refused, text};

/// Columns of a terminal.
const COLUMNS: usize = 80;

fn names() -> Vec<String> {
    let all = data("list");
    let name = |about: &Value| about["name"].as_str().expect("a name").to_owned();
    all["labs"].as_array().expect("a list").iter().map(name).collect()
}

/// Returns the text between `begin` and the next `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let from = text.find(begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let to = text[from..].find(end).unwrap_or_else(|| panic!("no {end} behind {begin}"));
    &text[from..from + to]
}

/// Returns the report embedded in a page.
pub(crate) fn embedded(page: &str) -> Value {
    let json = between(page, "<script type=\"application/json\" id=\"report\">", "</script>");
    serde_json::from_str(json).expect("JSON")
}

#[test]
fn each_lab_fits_a_terminal() {
    for name in names() {
        let text = text(&name);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(long.is_empty(), "{name}: {long:#?}");
        let places = ["What you will see", "Numbers", "Now change something"].map(|part| text.find(part));
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{name}: {places:?}");
    }
}

#[test]
fn suggested_changes_are_valid() {
    for name in names() {
        let report = data(&name);
        for line in report["change"].as_array().expect("lines").iter().filter_map(Value::as_str) {
            for change in line
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|code| code.starts_with("--") && !code.ends_with("hex"))
            {
                let output = lab(&format!("{name} {change} --json"));
                assert!(output.status.success(), "{name} {change}: {output:?}");
            }
        }
    }
}

#[test]
fn page_has_the_data_and_is_self_contained() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in names() {
        let report = data(&name);
        assert_eq!(report, data(&name), "{name}: a second run says the same");
        assert!(report["runs"].as_array().is_some_and(|runs| !runs.is_empty()), "{name}");
        let file = folder.path().join(format!("{name}.html"));
        let silent = text(&format!("{name} --html {}", file.display()));
        assert!(silent.is_empty(), "{name}: {silent}");
        let page = fs::read_to_string(&file).expect("the page");
        assert_eq!(embedded(&page), report, "{name}: the page's numbers are those of --json");
        assert_eq!(page.trim_end(), text(&format!("{name} --html -")).trim_end(), "{name}");
        for foreign in ["http://", "https://", "src=\"/", "@import", "url("] {
            let own = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(foreign), "{name}: {foreign}");
        }
    }
}

#[test]
fn pages_run_without_console_messages() {
    let Some(browser) = browser::find() else {
        println!("SKIP pages_run_without_console_messages: no chromium");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let step = if std::env::var_os("ALL").is_some() { 1 } else { 6 };
    if step > 1 {
        println!("LEFT OUT pages_run_without_console_messages: five of six labs");
    }
    for name in names().into_iter().step_by(step) {
        let file = folder.path().join(format!("{name}.html"));
        text(&format!("{name} --html {}", file.display()));
        let seen = browser::open(browser, &file);
        assert!(seen.console.is_empty(), "{name}: {:#?}", seen.console);
        let report = embedded(&fs::read_to_string(&file).expect("the page"));
        let main = between(&seen.document, "<main id=\"main\">", "</main>");
        // The page shows each number of the first run, with thousands separated.
        for (fact, value) in report["runs"][0]["facts"].as_object().expect("facts") {
            let shown = between(main, &format!("<div title=\"{fact}\">"), "</div>").replace(',', "");
            let value = match &value["value"] {
                Value::String(text) => text.replace(',', ""),
                Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
                number => number.to_string().trim_end_matches(".0").to_owned(),
            };
            assert!(shown.contains(&value), "{name}: {fact} is {value}, shown is {shown}");
        }
        let blocks = report["runs"][0]["blocks"].as_array().expect("blocks").iter();
        let boxes = blocks.filter(|block| block["kind"] != "prose").count();
        assert!(main.matches("class=\"box\"").count() >= boxes, "{name}: a box for each of {boxes} blocks");
    }
    // The test detects a page with an error in its script.
    let file = folder.path().join("broken.html");
    fs::write(&file, "<main id=\"main\"></main><script>nothing.there</script>").expect("a file");
    assert!(!browser::open(browser, &file).console.is_empty(), "the console is looked at");
}

#[test]
fn invalid_arguments_are_refused_with_valid_ones() {
    refused("frame --opcode NOPE", 2, &["no opcode of that name"]);
    refused("frame --opcode RC_SEND_SOON", 2, &["RC_SEND_ONLY"]);
    refused("frame --hex abc", 2, &["3 digits are 1 bytes and a half"]);
    refused("frame --hex 02zz", 2, &["`z` at digit 3"]);
    refused("frame --hex 0200", 2, &["2 bytes that a NIC drops unread"]);
    refused("frame --capture /no/such", 1, &["/no/such: cannot open it"]);
    refused("frame --from 192.0.2.1 --to 2001:db8::1", 2, &["give two of one family"]);
    refused("frame --opcode RD_SEND_ONLY", 2, &["never sends it"]);
    refused("go-back-n --lose 0", 2, &["`0` is no number of a frame"]);
    refused("go-back-n --packets 1", 2, &["2..=32"]);
    refused("frame --html /no/such/folder/x.html", 1, &["cannot write /no/such/folder/x.html"]);
    refused("frame --html x --json", 2, &["cannot be used with"]);
    refused("list --html x", 2, &["--html is for a lab"]);
    refused("serve --json", 2, &["neither --json nor --html"]);
}
