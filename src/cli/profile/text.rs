//! The outcome of a case as text.

use roxie_report::failure::Failure;
use roxie_report::output;
use serde_json::Value;

/// Prints an outcome.
pub(super) fn print(outcome: &Value) -> Result<(), Failure> {
    let list = |key: &str| outcome[key].as_array().map_or(&[][..], Vec::as_slice);
    let mut lines: Vec<(f64, String)> = Vec::new();
    let at = |entry: &Value| entry["ms"].as_f64().unwrap_or(0.0);
    for sent in list("transmissions") {
        lines.push((at(sent), format!("packet {}, {}", sent["psn"], word(&sent["why"]))));
    }
    for timeout in list("timeouts") {
        let sends = if timeout["sends"] == true { "" } else { ", sends nothing" };
        lines.push((at(timeout), format!("timeout, {}{sends}", word(&timeout["why"]))));
    }
    for completion in list("completions") {
        let vendor_err = completion["vendor_err"].as_u64().unwrap_or(0);
        let text = format!(
            "completion of work request {}: status {}, vendor error {vendor_err:#04x}",
            completion["index"], completion["status"]
        );
        lines.push((at(completion), text));
    }
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (ms, text) in lines {
        output::line(format_args!("{ms:>12.3} ms  {text}"))?;
    }
    for end in ["requester", "responder"] {
        let moved = outcome["counters"][end].as_object().into_iter().flatten();
        let moved: Vec<_> = moved.map(|(name, delta)| format!("{name} {delta}")).collect();
        let counters = if moved.is_empty() { "no counter moved".to_owned() } else { moved.join(", ") };
        output::line(format_args!("{end}: {}; {counters}", word(&outcome["state"][end])))?;
    }
    output::line(format_args!("placed: {} bytes", outcome["placed"]["bytes"]))?;
    for declined in list("declined") {
        output::line(format_args!("not known of this adapter: {}", word(declined)))?;
    }
    Ok(())
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}
