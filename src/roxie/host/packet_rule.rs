//! Faults for the packets that a rule names: `drop opcode=READ_RESPONSE_MIDDLE psn=+3 once`.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use roxie_port::fault::{Direction, Fault, FaultConfig, FaultParseError, When};
use roxie_wire::frame::Frame;
use roxie_wire::{Opcode, Packet, Psn, Qpn, Syndrome, parse};

/// Most queue pairs whose first PSN a rule remembers; later ones never match a relative PSN.
const MOST_QPS: usize = 4096;
/// Error in place of a rule's, if it has no action.
const NO_ACTION: &str = "drop, duplicate, corrupt, mark, delay=TIME, reorder[=FRAMES[:TIME]]";

/// A fault, and which packets it hits.
///
/// Text form: an action, conditions, and when, separated by spaces.
///
/// ```text
/// drop opcode=READ_RESPONSE_MIDDLE psn=+3 once
/// mark qp=0x11 every10
/// delay=200us kind=ack 1%
/// duplicate opcode=FETCH_ADD nth2 from=veth0
/// ```
///
/// Actions: `drop`, `duplicate`, `corrupt`, `mark`, `delay=TIME`, `reorder[=FRAMES[:TIME]]`. Conditions, all of which
/// must hold: `opcode=NAME` with or without its service, `kind=` one of [`PacketKind`], `qp=` the destination QPN,
/// `psn=` a number, or `+N` behind the first PSN that the rule has seen of that queue pair, `src=` and `dst=` an
/// address, `from=` the end that sends: an interface of `roxie wire`, `self` or `peer` of a device. When: `once`,
/// `nthN`, `everyN`, `firstN`, a rate or percentage; without it always.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketRule {
    text: String,
    /// Effect, and which of the matching packets it hits.
    pub fault: Fault,
    /// The end that sends; `None`: both.
    pub from: Option<String>,
    conditions: Vec<Condition>,
}

/// Rules as one text, separated by semicolons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketRules(pub Vec<PacketRule>);

impl FromStr for PacketRules {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<PacketRules, RuleError> {
        let rules = text.split(';').filter(|rule| !rule.trim().is_empty());
        rules.map(str::parse).collect::<Result<_, _>>().map(PacketRules)
    }
}

impl fmt::Display for PacketRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<&str> = self.0.iter().map(|rule| rule.text.as_str()).collect();
        f.write_str(&rules.join("; "))
    }
}

/// Number of packets that met a rule's conditions.
#[derive(Clone, Debug, Default)]
pub struct Matched(Arc<AtomicU64>);

impl Matched {
    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Kinds of packets, by their role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// `data`: requests and responses with payload.
    Data,
    /// `ack`: acknowledgements without an error.
    Ack,
    /// `nak`: refusals, without RNR NAKs.
    Nak,
    /// `rnr`: RNR NAKs.
    Rnr,
    /// `cnp`: congestion notifications.
    Cnp,
    /// `cm`: packets to QP1, of the connection manager.
    Cm,
    /// `roce`: any RoCE v2 packet.
    Roce,
    /// `other`: any frame that is none.
    Other,
}

impl PacketKind {
    const NAMES: [(&'static str, PacketKind); 8] = [
        ("data", PacketKind::Data),
        ("ack", PacketKind::Ack),
        ("nak", PacketKind::Nak),
        ("rnr", PacketKind::Rnr),
        ("cnp", PacketKind::Cnp),
        ("cm", PacketKind::Cm),
        ("roce", PacketKind::Roce),
        ("other", PacketKind::Other),
    ];

    fn has(self, packet: Option<&Packet>) -> bool {
        let Some(packet) = packet else { return self == PacketKind::Other };
        let syndrome = packet.aeth().map(|aeth| aeth.kind());
        match self {
            PacketKind::Data => !packet.payload.is_empty(),
            PacketKind::Ack => matches!(syndrome, Some(Syndrome::Ack { .. })) && packet.payload.is_empty(),
            PacketKind::Nak => matches!(syndrome, Some(Syndrome::Nak(_))),
            PacketKind::Rnr => matches!(syndrome, Some(Syndrome::RnrNak { .. })),
            PacketKind::Cnp => packet.bth.opcode == Opcode::CNP,
            PacketKind::Cm => packet.bth.dest_qp == Qpn::new(1),
            PacketKind::Roce => true,
            PacketKind::Other => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    /// Any of these opcodes.
    Opcode(Vec<Opcode>),
    Kind(PacketKind),
    DestinationQp(Qpn),
    Psn(Psn),
    /// So many behind the first PSN seen.
    PsnBehind(u32),
    Source(IpAddr),
    Destination(IpAddr),
}

/// Why a text is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{rule}`: {reason}")]
pub struct RuleError {
    rule: String,
    reason: String,
}

impl PacketRule {
    /// Returns a predicate for [`FaultPort::with_rule`](roxie_port::fault::FaultPort::with_rule), and the number of
    /// packets that met it.
    pub fn matcher(&self) -> (impl FnMut(&Frame<'_>) -> bool + Send + use<>, Matched) {
        let matched = Matched::default();
        let (conditions, count) = (self.conditions.clone(), matched.clone());
        let is_relative = conditions.iter().any(|condition| matches!(condition, Condition::PsnBehind(_)));
        let mut first: HashMap<Qpn, Psn> = HashMap::new();
        let test = move |frame: &Frame<'_>| {
            let packet = parse(frame).ok();
            let behind = packet.as_ref().filter(|_| is_relative).and_then(|packet| {
                let bth = &packet.bth;
                if first.len() < MOST_QPS {
                    first.entry(bth.dest_qp).or_insert(bth.psn);
                }
                Some(bth.psn.distance_from(*first.get(&bth.dest_qp)?))
            });
            let holds = conditions.iter().all(|condition| condition.holds(packet.as_ref(), behind));
            count.0.fetch_add(u64::from(holds), Relaxed);
            holds
        };
        (test, matched)
    }

    /// Returns the directions in which the rule acts on the port of one end, which is `self`.
    ///
    /// # Errors
    /// If the rule names another end than `self` and `peer`.
    pub fn directions(&self) -> Result<Vec<Direction>, RuleError> {
        match self.from.as_deref() {
            None => Ok(vec![Direction::Rx, Direction::Tx]),
            Some("peer") => Ok(vec![Direction::Rx]),
            Some("self") => Ok(vec![Direction::Tx]),
            Some(from) => {
                let reason = format!("from={from} is no end of a connection here: self or peer");
                Err(RuleError { rule: self.text.clone(), reason })
            }
        }
    }

    /// Returns how many packets must match before the rule has had an effect; `None`: that is random.
    pub fn needed(&self) -> Option<u64> {
        match self.fault.when {
            When::Nth(n) | When::Every(n) => Some(n),
            When::First(_) => Some(1),
            When::Rate(rate) => (rate >= 1.0).then_some(1),
        }
    }
}

impl Condition {
    /// `behind`: how far the packet's PSN is behind the first one seen, if a condition of the rule asks for that.
    fn holds(&self, packet: Option<&Packet>, behind: Option<i32>) -> bool {
        if let Condition::Kind(kind) = self {
            return kind.has(packet);
        }
        let Some(packet) = packet else { return false };
        match self {
            Condition::Opcode(any) => any.contains(&packet.bth.opcode),
            Condition::DestinationQp(qpn) => packet.bth.dest_qp == *qpn,
            Condition::Psn(psn) => packet.bth.psn == *psn,
            Condition::PsnBehind(n) => behind == i32::try_from(*n).ok(),
            Condition::Source(address) => packet.source_gid().to_ip() == *address,
            Condition::Destination(address) => packet.dest_gid().to_ip() == *address,
            Condition::Kind(_) => unreachable!("judged above"),
        }
    }

    fn parse(name: &str, value: &str) -> Result<Option<Condition>, String> {
        let address = || value.parse().map_err(|_| format!("`{value}` is no IP address"));
        Ok(Some(match name {
            "opcode" | "bth.opcode" => Condition::Opcode(opcodes(value)?),
            "kind" => {
                let kind = PacketKind::NAMES.iter().find(|(known, _)| *known == value);
                let names = PacketKind::NAMES.map(|(name, _)| name).join(", ");
                Condition::Kind(kind.ok_or_else(|| format!("`{value}` is no kind: {names}"))?.1)
            }
            "qp" | "bth.destqp" => Condition::DestinationQp(Qpn::new(number24(value)?)),
            "psn" | "bth.psn" => match value.strip_prefix('+') {
                Some(behind) => Condition::PsnBehind(number24(behind)?),
                None => Condition::Psn(Psn::new(number24(value)?)),
            },
            "src" => Condition::Source(address()?),
            "dst" => Condition::Destination(address()?),
            _ => return Ok(None),
        }))
    }
}

/// Returns the opcodes of a name, such as `RC_SEND_ONLY`, of `SEND_ONLY` in any service, or of a number.
fn opcodes(value: &str) -> Result<Vec<Opcode>, String> {
    let wanted = value.to_ascii_uppercase();
    let named = |name: &str| name == wanted || name.split_once('_').is_some_and(|(_, rest)| rest == wanted);
    let opcodes: Vec<Opcode> = Opcode::all().filter(|row| named(row.name)).map(|row| row.opcode).collect();
    if !opcodes.is_empty() {
        return Ok(opcodes);
    }
    let byte = value.strip_prefix("0x").and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let unknown = || {
        format!("`{value}` is no opcode: for example SEND_ONLY, RC_READ_RESPONSE_MIDDLE, ACKNOWLEDGE, 0x11")
    };
    byte.or_else(|| value.parse().ok()).map(|byte| vec![Opcode(byte)]).ok_or_else(unknown)
}

/// Parses a number of 24 bits, decimal or with `0x`.
fn number24(value: &str) -> Result<u32, String> {
    let parsed = match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    let fits = parsed.filter(|number| *number < 1 << 24);
    fits.ok_or_else(|| format!("`{value}` is no number from 0 to 0xffffff"))
}

impl FromStr for PacketRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<PacketRule, RuleError> {
        let wrong = |reason: String| RuleError { rule: text.trim().to_owned(), reason };
        let mut words = text.split_whitespace();
        let action = words.next().ok_or_else(|| wrong(format!("give an action: {NO_ACTION}")))?;
        let (name, argument) =
            action.split_once('=').map_or((action, None), |(name, value)| (name, Some(value)));
        let (mut when, mut from, mut conditions) = (None, None, Vec::new());
        for word in words {
            if let Some(("from", end)) = word.split_once('=') {
                from = Some(end.to_owned());
            } else if let Some((name, value)) = word.split_once('=') {
                let unknown = || format!("`{name}` is no condition: opcode, kind, qp, psn, src, dst, from");
                conditions
                    .push(Condition::parse(name, value).and_then(|c| c.ok_or_else(unknown)).map_err(wrong)?);
            } else if when.replace(if word == "once" { "first1" } else { word }).is_some() {
                return Err(wrong(format!("`{word}` is a second word for when")));
            }
        }
        // The action in the form of `--fault`.
        let item = match argument {
            Some(argument) => format!("{name}={}:{argument}", when.unwrap_or("1")),
            None => format!("{name}={}", when.unwrap_or("1")),
        };
        let config = FaultConfig::parse(&item).map_err(|error| match error {
            FaultParseError::UnknownName(name) => wrong(format!("`{name}` is no action: {NO_ACTION}")),
            FaultParseError::BadWhen { value, .. } => {
                wrong(format!("`{value}` does not say when: once, nth3, every10, first5, 1%, 0.01"))
            }
            FaultParseError::NoDelay(_) => wrong("delay takes a time: delay=200us".into()),
            other => wrong(other.to_string()),
        })?;
        let fault = *config.rx.first().ok_or_else(|| wrong(format!("give an action: {NO_ACTION}")))?;
        Ok(PacketRule {
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            fault,
            from,
            conditions,
        })
    }
}

impl fmt::Display for PacketRule {
    /// The text that it was parsed from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_base::time::Nanos;
    use roxie_port::fault::Action;

    fn rule(text: &str) -> PacketRule {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn rules_are_read_as_documented() {
        let drop = rule("drop  opcode=READ_RESPONSE_MIDDLE psn=+3 once");
        assert_eq!(drop.fault, Fault { action: Action::Drop, when: When::First(1) });
        let any: Vec<_> = ["RC_READ_RESPONSE_MIDDLE", "XRC_READ_RESPONSE_MIDDLE", "RD_READ_RESPONSE_MIDDLE"]
            .iter()
            .filter_map(|name| Opcode::all().find(|row| row.name == *name))
            .map(|row| row.opcode)
            .collect();
        let Condition::Opcode(named) = &drop.conditions[0] else { panic!("{drop:?}") };
        assert!(!any.is_empty() && any.iter().all(|opcode| named.contains(opcode)), "{named:?}");
        assert_eq!(drop.conditions[1], Condition::PsnBehind(3));
        assert_eq!(drop.to_string(), "drop opcode=READ_RESPONSE_MIDDLE psn=+3 once");
        let delay = rule("delay=200us kind=ack 1% from=veth0");
        assert_eq!(delay.fault.action, Action::Delay(Nanos::from_micros(200)));
        assert_eq!((delay.fault.when, delay.from.as_deref()), (When::Rate(0.01), Some("veth0")));
        let reorder = rule("reorder=3:5ms qp=0x11 every10");
        assert_eq!(reorder.fault.action, Action::Reorder { after: 3, within: Nanos::from_millis(5) });
        assert_eq!(rule("mark").fault.when, When::Rate(1.0));
        assert_eq!((rule("drop once").needed(), rule("drop nth7").needed()), (Some(1), Some(7)));
        assert_eq!((rule("drop").needed(), rule("drop 1%").needed()), (Some(1), None));
    }

    #[test]
    fn rules_are_one_text() {
        let rules: PacketRules = "drop once;; mark kind=data from=peer ;".parse().expect("two rules");
        assert_eq!(rules.to_string(), "drop once; mark kind=data from=peer");
        assert_eq!(rules.to_string().parse::<PacketRules>().expect("the same"), rules);
        assert_eq!(rules.0[1].directions().expect("an end"), [Direction::Rx]);
        assert_eq!(rules.0[0].directions().expect("both").len(), 2);
        let message = rule("drop from=veth0").directions().expect_err("no end").to_string();
        assert!(message.contains("self or peer"), "{message}");
    }

    #[test]
    fn wrong_rules_name_word_and_remedy() {
        for (text, parts) in [
            ("", ["give an action", "drop"]),
            ("lose once", ["`lose` is no action", "duplicate"]),
            ("drop opcode=SEND", ["`SEND` is no opcode", "SEND_ONLY"]),
            ("drop kind=tcp", ["`tcp` is no kind", "other"]),
            ("drop psn=+16777216", ["`16777216` is no number", "0xffffff"]),
            ("drop src=here", ["`here` is no IP address", "drop src=here"]),
            ("drop port=4791", ["`port` is no condition", "opcode"]),
            ("drop twice", ["`twice` does not say when", "once"]),
            ("drop once nth2", ["`nth2` is a second word", "when"]),
            ("delay", ["delay takes a time", "200us"]),
        ] {
            let message = text.parse::<PacketRule>().expect_err(text).to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
    }
}
