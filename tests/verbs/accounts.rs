//! Who holds on to what, and what is left of what is gone.

use super::{PORTS, Site, compiled, skip};

#[test]
fn objects_go_in_their_order_and_their_events_and_completions_with_them() {
    let name = "objects_go_in_their_order_and_their_events_and_completions_with_them";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("accounts", &["-libverbs"]);
    let site = Site::new("accounts");
    for port in PORTS {
        let ended = site.near(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.said.contains("all so"), "{port}: {ended:?}");
    }
}
