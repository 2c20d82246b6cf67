//! Descriptor numbers that are reused by other files.

use super::{Site, compiled, skip};

#[test]
fn reused_channel_number_belongs_to_new_file() {
    if skip("reused_channel_number_belongs_to_new_file", &["cc"]) {
        return;
    }
    let (_place, program) = compiled("reused", &["-lrdmacm", "-libverbs"]);
    let ended = Site::new("reused").local("udp", &program.display().to_string()).finish();
    assert!(ended.status.success(), "{ended:?}");
}
