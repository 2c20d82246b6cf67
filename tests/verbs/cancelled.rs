//! Threads of the program that are cancelled (`pthread_cancel`).

use super::{PORTS, Site, compiled, skip};

#[test]
fn calls_are_cancellation_points_only_where_those_of_rdma_core_are() {
    let name = "calls_are_cancellation_points_only_where_those_of_rdma_core_are";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("cancelled", &["-libverbs", "-lpthread"]);
    let site = Site::new("cancel");
    for port in PORTS {
        let ended = site.near(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.said.contains("all so"), "{port}: {ended:?}");
    }
}
