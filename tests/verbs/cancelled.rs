//! Program threads that are cancelled (`pthread_cancel`).

use super::{Site, compiled, ports, skip};

#[test]
fn cancellation_points_match_rdma_core() {
    let name = "cancellation_points_match_rdma_core";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("cancelled", &["-libverbs", "-lpthread"]);
    let site = Site::new("cancel");
    for port in ports() {
        let ended = site.local(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.output.contains("all so"), "{port}: {ended:?}");
    }
}
