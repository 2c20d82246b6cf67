//! Rules of the conformance bench that rdma_rxe breaks.

use roxie_conform_bench::report::Report;
use roxie_conform_bench::verdict::Verdict;

/// Checks that rdma_rxe of every kernel breaks.
const BY_ALL: [&str; 12] = [
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
    "cm/dropped/short",
];

/// Checks that rdma_rxe of Linux 6.1 breaks, and newer ones keep.
const BY_6_1_ALONE: [&str; 3] =
    ["rc/sequence/send_first_short", "uc/dropped/short_first", "ud/dropped/above_receive"];

/// Returns a kernel's broken checks.
fn recorded(kernel: &str) -> Vec<&'static str> {
    let more = if kernel.starts_with("6.1.") { &BY_6_1_ALONE[..] } else { &[] };
    [&BY_ALL, more].concat()
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
        let checks = roxie_conform_bench::checks::all();
        for name in BY_ALL.iter().chain(&BY_6_1_ALONE) {
            assert!(checks.iter().any(|check| check.name == *name), "{name}");
            assert!(PAGE.contains(&format!("`{name}`")), "{name}");
        }
    }
}
