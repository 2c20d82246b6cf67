//! A program that looks for its completions later than it should, and gets away with it on adapters.

use super::{PORTS, Site, compiled, skip};

#[test]
fn a_completion_queue_of_one_entry_has_room_for_who_polls_late() {
    let name = "a_completion_queue_of_one_entry_has_room_for_who_polls_late";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("late_poller", &["-libverbs"]);
    let site = Site::new("late");
    for port in PORTS {
        let ended = site.near(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success(), "{port}: {ended:?}");
    }
}
