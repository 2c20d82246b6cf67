//! Rules of the conformance bench that rdma_rxe breaks.

use roxie_conform::report::Report;
use roxie_conform::verdict::Verdict;

/// Checks that rdma_rxe of Linux 6.1 breaks.
pub const BY_6_1: [&str; 14] = [
    "rc/sequence/send_first_short",
    "rc/sequence/send_above_receive",
    "rc/rnr/ahead_is_silent",
    "rc/ghost/ack_beyond_the_last",
    "rc/ghost/sequence_nak_beyond_the_last",
    "rc/ghost/access_nak_beyond_the_last",
    "rc/read_response/first_short",
    "rc/read_response/middle_first",
    "rc/read_response/only_too_short",
    "rc/read_response/atomic_answer",
    "uc/dropped/gap_in_message",
    "uc/dropped/short_first",
    "ud/dropped/above_receive",
    "rc/error/posted_later_is_flushed",
];

/// Checks that rdma_rxe of Linux 7.2 breaks: fewer than those of 6.1.
pub const BY_NEWEST: [&str; 11] = [
    "rc/sequence/send_above_receive",
    "rc/rnr/ahead_is_silent",
    "rc/ghost/ack_beyond_the_last",
    "rc/ghost/sequence_nak_beyond_the_last",
    "rc/ghost/access_nak_beyond_the_last",
    "rc/read_response/first_short",
    "rc/read_response/middle_first",
    "rc/read_response/only_too_short",
    "rc/read_response/atomic_answer",
    "uc/dropped/gap_in_message",
    "rc/error/posted_later_is_flushed",
];

/// Returns a kernel's broken checks.
fn recorded(kernel: &str) -> &'static [&'static str] {
    if kernel.starts_with("6.1.") { &BY_6_1 } else { &BY_NEWEST }
}

/// Returns each difference between a run's broken checks and those recorded of the kernel.
pub fn differences(report: &Report, kernel: &str) -> Vec<String> {
    let recorded = recorded(kernel);
    let mut differences = Vec::new();
    for check in &report.checks {
        let is_recorded = recorded.contains(&check.name.as_str());
        match check.verdict {
            Verdict::Breaks if !is_recorded => {
                differences.push(format!("{} is broken: {}", check.name, check.came));
            }
            Verdict::Breaks => {}
            verdict if is_recorded => {
                differences.push(format!(
                    "{} is recorded as broken, and is: {}",
                    check.name,
                    verdict.words()
                ));
            }
            _ => {}
        }
    }
    let ran = |name: &&&str| report.checks.iter().any(|check| check.name == **name);
    differences.extend(recorded.iter().filter(|name| !ran(name)).map(|name| format!("{name} did not run")));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/conform.md, which describes them.
    const PAGE: &str = include_str!("../../../docs/conform.md");

    #[test]
    fn broken_checks_exist_and_are_described() {
        let checks = roxie_conform::checks::all();
        for name in BY_6_1.iter().chain(&BY_NEWEST) {
            assert!(checks.iter().any(|check| check.name == *name), "{name}");
            assert!(PAGE.contains(&format!("`{name}`")), "{name}");
        }
    }
}
