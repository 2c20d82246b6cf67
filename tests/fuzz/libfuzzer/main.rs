//! Runs a target of `tests/fuzz/targets.rs` under libFuzzer; `ROXIE_FUZZ_TARGET` names it.

#![no_main]
#![allow(unreachable_pub)]

#[path = "../calls.rs"]
mod calls;
#[path = "../commands.rs"]
mod commands;
#[path = "../congestion.rs"]
mod congestion;
#[path = "../input.rs"]
mod input;
#[path = "../management.rs"]
mod management;
#[path = "../targets.rs"]
mod targets;

use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 7] = [
    ("parser", targets::parser),
    ("capture", targets::capture),
    ("packets", targets::packets),
    ("commands", targets::commands),
    ("queues", targets::queues),
    ("management", management::management),
    ("calls", calls::calls),
];

fn chosen() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("ROXIE_FUZZ_TARGET").unwrap_or_default();
        let target = TARGETS.iter().find(|(known, _)| *known == name);
        let known = TARGETS.map(|(known, _)| known).join(", ");
        target.unwrap_or_else(|| panic!("ROXIE_FUZZ_TARGET={name}: choose one of {known}")).1
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chosen()(bytes));
