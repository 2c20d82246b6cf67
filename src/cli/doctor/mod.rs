//! `roxie doctor`: what prevents or slows RDMA on this machine, and what to change.
//!
//! [`facts`] defines the input, [`gather`] reads it, [`findings`] judges.

mod facts;
mod findings;
mod gather;

use std::process::ExitCode;

use clap::Args;
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

use facts::Facts;
use findings::{Finding, Severity};

/// Say what to change on this machine, in order of effect
#[derive(Debug, Args)]
#[command(
    long_about = "Examines the kernel, this process's privileges, the interface and its driver, the processor, and \
        other users of the same packets. Prints what to change, the most effective first, with the command and its \
        benefit. Changes nothing, opens no device and sends nothing.\n\nA finding stops Roxie, or hurts (Roxie runs, \
        but slower or with fewer features), or is a note with nothing to fix.\n\n--json prints one object with the \
        keys interface, verdict (fine, hurts or stops), facts and findings. A finding has the keys id, severity, what, \
        change and brings; ids are stable across versions.",
    after_help = "Examples:\n  roxie doctor                       the only interface with an address\n  \
        roxie doctor --dev eth0\n  roxie doctor --json | jq -r '.findings[].change'\n\n\
        Exit codes: 0 nothing to mend, 1 something makes it slower, 2 wrong usage, 3 no device can be opened."
)]
pub(crate) struct Arguments {
    /// The interface [default: the only one besides loopback that has an address]
    #[arg(short, long, value_name = "IFACE")]
    dev: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Examines the machine and prints the findings.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let examined = gather::facts(arguments.dev.as_deref()).and_then(|facts| {
        let findings = findings::findings(&facts);
        match arguments.json {
            true => formats::print(formats::DOCTOR, as_json(&facts, &findings))?,
            false => print(&facts, &findings)?,
        }
        Ok(exit_code(&findings))
    });
    match examined {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report("doctor"),
    }
}

/// Returns the exit code for the worst severity.
fn exit_code(findings: &[Finding]) -> u8 {
    match findings.iter().map(|finding| finding.severity).min() {
        Some(Severity::Stops) => 3,
        Some(Severity::Hurts) => 1,
        Some(Severity::Note) | None => 0,
    }
}

fn as_json(facts: &Facts, findings: &[Finding]) -> Value {
    let verdict = match exit_code(findings) {
        0 => "fine",
        1 => "hurts",
        _ => "stops",
    };
    let findings: Vec<Value> = findings.iter().map(Finding::json).collect();
    json!({ "interface": facts.nic.name, "verdict": verdict, "facts": facts.json(), "findings": findings })
}

fn print(facts: &Facts, findings: &[Finding]) -> Result<(), Failure> {
    for (label, text) in facts.lines() {
        output::line(format_args!("{label:<14} {text}"))?;
    }
    output::line("")?;
    for (number, Finding { severity, what, change, brings, .. }) in (1..).zip(findings) {
        output::line(format_args!("{number}. {}: {what}", severity.name()))?;
        if !change.is_empty() {
            output::line(format_args!("   do:     {change}"))?;
        }
        output::line(format_args!("   brings: {brings}"))?;
    }
    output::line(match exit_code(findings) {
        0 => "nothing to mend",
        1 => "it works; mending the above makes it better, the first the most",
        _ => "the first keeps `roxie run` from working",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_follows_worst_finding() {
        let finding = |severity| Finding {
            id: "x",
            severity,
            what: String::new(),
            change: String::new(),
            brings: String::new(),
        };
        assert_eq!(exit_code(&[]), 0);
        assert_eq!(exit_code(&[finding(Severity::Note)]), 0);
        assert_eq!(exit_code(&[finding(Severity::Hurts), finding(Severity::Note)]), 1);
        assert_eq!(exit_code(&[finding(Severity::Note), finding(Severity::Stops)]), 3);
    }
}
