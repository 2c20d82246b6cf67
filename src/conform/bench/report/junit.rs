//! JUnit XML, as test runners and their dashboards read it.

use std::fmt::Write as _;

use super::{Report, escaped};
use crate::verdict::Verdict;

/// Returns the report as JUnit XML: a suite a chapter, failures for what breaks, skipped for what was not tested.
pub fn junit(report: &Report) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let seconds: f64 = report.checks.iter().map(|outcome| outcome.seconds).sum();
    let (breaks, skipped) = (report.count(Verdict::Breaks), report.count(Verdict::NotTested));
    let _ = writeln!(
        xml,
        "<testsuites name=\"roxie conform {}\" tests=\"{}\" failures=\"{breaks}\" errors=\"0\" skipped=\"{skipped}\" time=\"{seconds:.3}\">",
        escaped(&report.target),
        report.checks.len()
    );
    for (chapter, [keeps, breaks, lenient, skipped]) in report.chapters() {
        let checks = || report.checks.iter().filter(|outcome| outcome.chapter == chapter);
        let seconds: f64 = checks().map(|outcome| outcome.seconds).sum();
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{breaks}\" errors=\"0\" skipped=\"{skipped}\" time=\"{seconds:.3}\">",
            escaped(chapter),
            keeps + breaks + lenient + skipped
        );
        let _ = writeln!(xml, "    <properties>");
        for (name, value) in &report.device {
            let _ =
                writeln!(xml, "      <property name=\"{}\" value=\"{}\"/>", escaped(name), escaped(value));
        }
        let _ = writeln!(xml, "    </properties>");
        for outcome in checks() {
            let _ = write!(
                xml,
                "    <testcase name=\"{}\" classname=\"{}\" time=\"{:.3}\">",
                escaped(&outcome.name),
                escaped(chapter),
                outcome.seconds
            );
            let message = escaped(&outcome.came);
            match outcome.verdict {
                Verdict::Keeps => {}
                Verdict::Breaks => {
                    let _ = write!(
                        xml,
                        "<failure message=\"{message}\" type=\"breaks\">{} {}: {}\n{}{}</failure>",
                        escaped(&outcome.clause),
                        escaped(&outcome.stimulus),
                        escaped(&outcome.asks),
                        escaped(&outcome.script),
                        escaped(&outcome.ladder)
                    );
                }
                Verdict::NotTested => {
                    let _ = write!(xml, "<skipped message=\"{message}\"/>");
                }
                Verdict::Lenient => {
                    let _ = write!(xml, "<system-out>lenient: {message}</system-out>");
                }
            }
            xml.push_str("</testcase>\n");
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}
