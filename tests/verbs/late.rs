//! A program that looks for its completions later than it should, and gets away with it on adapters.

use std::path::Path;
use std::process::Command;

use super::{PORTS, Site, skip};

#[test]
fn a_completion_queue_of_one_entry_has_room_for_who_polls_late() {
    let name = "a_completion_queue_of_one_entry_has_room_for_who_polls_late";
    if skip(name, &["cc"]) {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/programs/late_poller.c");
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("late_poller");
    let compiled = Command::new("cc")
        .args(["-Wall", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-libverbs")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let site = Site::new("late");
    for port in PORTS {
        let ended = site.near(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success(), "{port}: {ended:?}");
    }
}
