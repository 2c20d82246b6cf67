//! What releases after rdma-core 44 have added to the library, whichever headers it was built with.

use super::{PORTS, Site, compiled, skip};

#[test]
fn calls_of_newer_releases_work_or_say_that_the_device_has_no_such_thing() {
    let name = "calls_of_newer_releases_work_or_say_that_the_device_has_no_such_thing";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("newer_calls", &["-libverbs", "-ldl"]);
    let site = Site::new("newer");
    for port in PORTS {
        let ended = site.near(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.said.contains("all so"), "{port}: {ended:?}");
    }
}
