//! gloo, PyTorch's collective operations, over its ibverbs transport.

use std::path::Path;

use super::{Site, compiled, ports, skip};

/// Repetitions of each operation and size. gloo's device thread polls the non-blocking descriptor of its completion
/// channel, and aborts the process if `ibv_get_cq_event` then has no event.
const ROUNDS: u32 = 50;

#[test]
fn gloo_collectives_are_right() {
    let name = "gloo_collectives_are_right";
    if skip(name, &["c++"]) {
        return;
    }
    if !Path::new("/usr/include/gloo/context.h").exists() {
        println!("SKIP {name}: libgloo-dev not installed (.ci/setup test)");
        return;
    }
    let (_place, program) =
        compiled("gloo_collectives", &["-O1", "-lgloo", "-libverbs", "-lstdc++", "-lm", "-lpthread"]);
    let site = Site::new("gloo");
    for port in ports() {
        let addresses = tempfile::tempdir().unwrap();
        let command = |rank: u32| {
            format!("{} roxie0 1 {rank} 2 {} {ROUNDS}", program.display(), addresses.path().display())
        };
        let local = site.local(port, &command(0));
        let remote = site.remote(port, &command(1)).finish();
        let local = local.finish();
        for ended in [local, remote] {
            assert!(
                ended.status.success() && ended.output.contains("100000 elements: right"),
                "{port}: {ended:?}"
            );
        }
    }
}
