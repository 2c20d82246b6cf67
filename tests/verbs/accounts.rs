//! Reference counts of objects, and events and completions of destroyed ones.

use super::{Site, compiled, ports, skip};

#[test]
fn objects_are_destroyed_in_order() {
    let name = "objects_are_destroyed_in_order";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("accounts", &["-libverbs"]);
    let site = Site::new("accounts");
    for port in ports() {
        let ended = site.near(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.said.contains("all so"), "{port}: {ended:?}");
    }
}
