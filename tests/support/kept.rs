//! Formats that are kept in a file: a change without a new version fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A format: its version, and its parts as lines.
pub(crate) type Format = (u32, BTreeSet<String>);

/// The variable that makes a test write the file instead of failing, if the versions allow it.
const WRITE: &str = "WRITE_FORMATS";

/// Compares formats, by name, with those of a file. `advice` says where the versions are. In the same version no part
/// may go or change, and none may be added unless readers ignore parts that they do not know (`may_grow`).
#[track_caller]
pub(crate) fn compare(file: &Path, now: &BTreeMap<String, Format>, may_grow: bool, advice: &str) {
    let recorded = read(&fs::read_to_string(file).unwrap_or_default());
    let (mut wrong, mut differs) = (String::new(), recorded.len() != now.len());
    for (name, (before, parts)) in &recorded {
        let Some((version, new)) = now.get(name) else {
            let _ = writeln!(wrong, "{name}: gone");
            continue;
        };
        differs |= (before, parts) != (version, new);
        let missing: Vec<_> = parts.difference(new).cloned().collect();
        let added: Vec<_> = new.difference(parts).cloned().collect();
        if version < before || version == before && !(missing.is_empty() && (may_grow || added.is_empty())) {
            let _ = writeln!(
                wrong,
                "{name} is still version {version}:\n- {}\n+ {}",
                missing.join("\n- "),
                added.join("\n+ ")
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}The format has changed: raise its version ({advice}), then {WRITE}=1");
    if !differs {
        return;
    }
    let name = file.display();
    assert!(
        std::env::var_os(WRITE).is_some(),
        "{name} lacks what is new: run this test with {WRITE}=1, and commit the file"
    );
    fs::write(file, text(now)).expect("the file of formats");
}

fn read(text: &str) -> BTreeMap<String, Format> {
    let mut formats = BTreeMap::<String, Format>::new();
    let mut last = None;
    for line in text.lines() {
        match line.strip_prefix("# ").and_then(|head| head.rsplit_once(' ')) {
            Some((name, version)) => {
                formats.insert(name.to_owned(), (version.parse().expect("a version"), BTreeSet::new()));
                last = Some(name.to_owned());
            }
            None => {
                let (_, parts) =
                    last.as_ref().and_then(|name| formats.get_mut(name)).expect("a head comes first");
                parts.insert(line.to_owned());
            }
        }
    }
    formats
}

fn text(formats: &BTreeMap<String, Format>) -> String {
    let mut text = String::new();
    for (name, (version, parts)) in formats {
        let _ = writeln!(text, "# {name} {version}");
        parts.iter().for_each(|part| text += &format!("{part}\n"));
    }
    text
}
