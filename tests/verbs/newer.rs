//! Additions of releases after rdma-core 44, whichever headers the library was built with.

use super::{Site, compiled, ports, skip};

#[test]
fn newer_calls_work_or_return_eopnotsupp() {
    let name = "newer_calls_work_or_return_eopnotsupp";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("newer_calls", &["-libverbs", "-ldl"]);
    let site = Site::new("newer");
    for port in ports() {
        let ended = site.local(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.output.contains("all so"), "{port}: {ended:?}");
    }
}
