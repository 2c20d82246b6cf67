//! The fields that a profile may have.

use toml::Value;

/// The kind of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
    /// A whole number from 0 to this.
    Number(i64),
    /// A number of 0 or more.
    Real,
    /// True or false.
    Flag,
    /// Pairs: the code of an ACK timeout, and a share of it.
    Steps,
}

/// A field: its path, in which `*` is any history, what it is, what it means, and what Roxie does.
pub type FieldSpec = (&'static str, FieldKind, &'static str, &'static str);

/// All fields.
pub const FIELDS: [FieldSpec; 42] = [
    ("id.name", FieldKind::Text, "name", "none"),
    ("id.part", FieldKind::Number(0xffff), "number of the part", "none"),
    ("id.firmware", FieldKind::Text, "range of firmware", "none"),
    ("id.vendor", FieldKind::Number(0xff_ffff), "vendor ID, with --identity", "that of software"),
    ("id.fw_ver", FieldKind::Text, "firmware, with --identity", "Roxie's version"),
    ("id.board", FieldKind::Text, "board ID, with --identity", "unknown"),
    ("caps.local_ca_ack_delay", FieldKind::Number(31), "local CA ACK delay", "15"),
    ("timer.mode", FieldKind::Word(&["two-phase"]), "kind of the ACK timer", "one timeout a retry"),
    ("timer.floor", FieldKind::Number(31), "smallest ACK timeout that counts", "every one counts"),
    ("timer.factor", FieldKind::Real, "interval of timeouts, in ACK timeouts", "1"),
    ("timer.zero_as", FieldKind::Number(7), "retries that retry_cnt 0 stands for", "0"),
    ("timer.history.*.first_ms", FieldKind::Real, "first adaptive point", "no adaptive phase"),
    (
        "timer.history.*.first_of",
        FieldKind::Number(255),
        "points at which the phase may begin",
        "no adaptive phase",
    ),
    ("timer.history.*.steps", FieldKind::Steps, "steps of the adaptive phase", "no adaptive phase"),
    ("timer.floor_off.first", FieldKind::Steps, "first timeout without the floor, in ACK timeouts", "1"),
    ("timer.floor_off.first_is_silent", FieldKind::Flag, "the first timeout sends nothing", "it sends"),
    ("timer.floor_off.spacing", FieldKind::Real, "interval without the floor, in ACK timeouts", "1"),
    ("rnr.extra_us", FieldKind::Number(1_000_000), "time beyond the timer code of an RNR wait", "0"),
    ("vendor_err.local_length", FieldKind::Number(255), "memory ends before the bytes do", "0"),
    ("vendor_err.local_key", FieldKind::Number(255), "key that names no memory", "0"),
    ("vendor_err.local_access", FieldKind::Number(255), "memory that may not be written", "0"),
    ("vendor_err.flush_head", FieldKind::Number(255), "first flush, moved to ERR by software", "0"),
    ("vendor_err.flush_rest", FieldKind::Number(255), "every other flush", "0"),
    ("vendor_err.remote_invalid", FieldKind::Number(255), "NAK: invalid request", "the NAK's syndrome"),
    ("vendor_err.remote_access", FieldKind::Number(255), "NAK: remote access error", "the NAK's syndrome"),
    ("vendor_err.retries", FieldKind::Number(255), "no retry is left", "0"),
    ("vendor_err.rnr_retries", FieldKind::Number(255), "no RNR retry is left", "the NAK's syndrome"),
    (
        "requester.sq_psn",
        FieldKind::Word(&["acknowledged"]),
        "SQ_PSN of a QP that has failed",
        "the next to send",
    ),
    (
        "responder.range",
        FieldKind::Word(&["packet"]),
        "what the range of a WRITE is checked for",
        "the message",
    ),
    (
        "responder.count_before_key",
        FieldKind::Flag,
        "rx_write_requests counts before the key is checked",
        "once executed",
    ),
    ("responder.counts_no_refusal", FieldKind::Flag, "counters of refused requests do not move", "they do"),
    ("cnp.source_port", FieldKind::Number(0xffff), "UDP source port of CNPs", "the QP's"),
    ("cnp.mig_req", FieldKind::Flag, "MigReq bit of CNPs", "the QP's"),
    (
        "cnp.first_ip_id",
        FieldKind::Number(0xffff),
        "IPv4 identification of the first CNP, then counted up",
        "0",
    ),
    ("cnp.on_nak", FieldKind::Flag, "a sequence NAK brings a CNP as well", "marks alone do"),
    (
        "ack.first_of_first",
        FieldKind::Flag,
        "the first packet of a connection asks for an ACK",
        "if its message ends",
    ),
    ("ack.credits", FieldKind::Word(&["real"]), "credits in ACKs", "none, unless agreed"),
    ("sport.rule", FieldKind::Word(&["qpn"]), "UDP source port", "of flow label or both QPNs"),
    ("bth.mig_req", FieldKind::Flag, "MigReq bit", "0"),
    ("bth.byte4_requests", FieldKind::Number(63), "byte 4 of the BTH of requests", "0"),
    ("ip.ecn", FieldKind::Word(&["ect0-always"]), "ECN bits of a connection's packets", "as asked"),
    (
        "counters.root_alone",
        FieldKind::Flag,
        "req_cqe_error counts the root cause, and no flush is counted",
        "both count each",
    ),
];

/// Checks a value.
pub(super) fn check(path: &str, value: &Value) -> Result<(), String> {
    let Some((_, kind, ..)) = FIELDS.iter().find(|(known, ..)| is_path(known, path)) else {
        return Err("there is no such field; `roxie profile show` lists all".to_owned());
    };
    let is_right = match (kind, value) {
        (FieldKind::Word(words), Value::String(word)) => words.contains(&word.as_str()),
        (FieldKind::Text, Value::String(_)) | (FieldKind::Flag, Value::Boolean(_)) => true,
        (FieldKind::Number(most), Value::Integer(number)) => (0..=*most).contains(number),
        (FieldKind::Real, value) => real(value).is_some_and(|number| number >= 0.0),
        (FieldKind::Steps, value) => steps(value).is_some_and(|steps| !steps.is_empty()),
        _ => false,
    };
    if is_right { Ok(()) } else { Err(format!("{value} is not {}", wanted(*kind))) }
}

fn wanted(kind: FieldKind) -> String {
    match kind {
        FieldKind::Word(words) => format!("one of {}", words.join(", ")),
        FieldKind::Text => "a text".to_owned(),
        FieldKind::Number(most) => format!("a number from 0 to {most}"),
        FieldKind::Real => "a number of 0 or more".to_owned(),
        FieldKind::Flag => "true or false".to_owned(),
        FieldKind::Steps => "a list of pairs [code from 0 to 31, share above 0]".to_owned(),
    }
}

/// True if the path is that of a field, in which `*` is any history.
pub(super) fn is_path(known: &str, path: &str) -> bool {
    match known.split_once('*') {
        None => known == path,
        Some((before, after)) => {
            let history = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            history.is_some_and(|history| super::HISTORIES.contains(&history))
        }
    }
}

/// Returns a number.
pub(super) fn real(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) if number.is_finite() => Some(*number),
        Value::Integer(number) => Some(*number as f64),
        _ => None,
    }
}

/// Returns a list of pairs.
pub(super) fn steps(value: &Value) -> Option<Vec<(u8, f64)>> {
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([code, share]) => {
            let code =
                code.as_integer().and_then(|code| u8::try_from(code).ok()).filter(|code| *code <= 31)?;
            Some((code, real(share).filter(|share| *share > 0.0)?))
        }
        _ => None,
    };
    value.as_array()?.iter().map(pair).collect()
}
