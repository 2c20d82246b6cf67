//! Numbers of descriptors that become others.

use super::{Site, compiled, skip};

#[test]
fn reused_channel_number_is_the_new_files() {
    if skip("reused_channel_number_is_the_new_files", &["cc"]) {
        return;
    }
    let (_place, program) = compiled("reused", &["-lrdmacm", "-libverbs"]);
    let ended = Site::new("reused").near("udp", &program.display().to_string()).finish();
    assert!(ended.status.success(), "{ended:?}");
}
