//! A program that polls its completions too late, which adapters tolerate.

use super::{Site, compiled, ports, skip};

#[test]
fn single_entry_cq_tolerates_late_polling() {
    let name = "single_entry_cq_tolerates_late_polling";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("late_poller", &["-libverbs"]);
    let site = Site::new("late");
    for port in ports() {
        let ended = site.local(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success(), "{port}: {ended:?}");
    }
}
