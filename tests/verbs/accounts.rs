//! Reference counts of objects, and events and completions of destroyed ones.

use super::{Site, compiled, ports, skip};

#[test]
fn objects_are_destroyed_in_order() {
    succeeds("objects_are_destroyed_in_order", &[]);
}

/// Leaks and races are the program's alone, and it has none.
#[test]
fn sanitizers_find_nothing_in_sound_programs() {
    for sanitizer in ["address", "thread"] {
        let flag = format!("-fsanitize={sanitizer}");
        succeeds("sanitizers_find_nothing_in_sound_programs", &[&flag]);
    }
}

fn succeeds(name: &str, flags: &[&str]) {
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("accounts", &[&["-libverbs"], flags].concat());
    let site = Site::new("accounts");
    for port in ports() {
        let ended = site.local(port, &program.to_string_lossy()).finish();
        assert!(ended.status.success() && ended.output.contains("all so"), "{port}, {flags:?}: {ended:?}");
    }
}
