//! The text form of scripts: one line for each fact, without default values.
//!
//! ```text
//! # A comment.
//! seed 7
//! hosts 3 link=1500 window=8
//! s1 basic size=4 ahead=2        a shared receive queue, on each host with a QP that uses it
//! s2 xrc
//! q1 rc h1 h2 psn=16777214,5 depth=4 srq=s1
//! q2 group h3 h1 h2
//! q3 xrc h1 h2 srq=s2            each request names one of the queues: queue=1 the second
//! weather h2 lose 100            of ten thousand frames to h2
//! lose q1> WRITE_LAST +2         the first transmission of this frame
//! delay q1< ACKNOWLEDGE +2 3ms
//! at 10us q1> write 600 fence    from end a; < is the direction back
//! at 20us reset q1.b
//! at 20us arm s1 h2 3
//! at 0us brake h1 cc:dcqcn,preset=paper qos:pfc=3 mbps:1000
//! at 30us limit q1.a 2000 0 0    kb/s, bytes of a burst, bytes of a packet
//! expect 1 rc Write              the count at the end
//! log q1.a sequence NAK          a text in the event log of the QP
//! ```
//!
//! [`crate::parse`] parses it.

use std::fmt;

use roxie::time::Nanos;
use roxie::verbs::WrOpcode;

use crate::script::{
    Action, Brakes, Channel, FrameName, Grant, Hosts, Intrusion, Op, Part, Place, Rule, Script, Service, Srq,
    SrqPlace, Timed, Trouble, Way,
};

pub const SERVICES: [(&str, Service); 5] = [
    ("rc", Service::Rc),
    ("uc", Service::Uc),
    ("ud", Service::Ud),
    ("group", Service::Group),
    ("xrc", Service::Xrc),
];

pub const KINDS: [(&str, bool); 2] = [("basic", false), ("xrc", true)];

pub const OPCODES: [(&str, WrOpcode); 10] = [
    ("write", WrOpcode::Write),
    ("write_imm", WrOpcode::WriteImm),
    ("send", WrOpcode::Send),
    ("send_imm", WrOpcode::SendImm),
    ("send_invalidate", WrOpcode::SendInvalidate),
    ("read", WrOpcode::Read),
    ("compare_swap", WrOpcode::CompareSwap),
    ("fetch_add", WrOpcode::FetchAdd),
    ("flush", WrOpcode::Flush),
    ("atomic_write", WrOpcode::AtomicWrite),
];

pub const PARTS: [(&str, Part); 4] =
    [("source", Part::Source), ("landing", Part::Landing), ("target", Part::Target), ("inbox", Part::Inbox)];

pub const INTRUSIONS: [(&str, Intrusion); 8] = [
    ("long", Intrusion::Long),
    ("spoof", Intrusion::Spoof),
    ("notice", Intrusion::Notice),
    ("forged", Intrusion::Forged),
    ("marked", Intrusion::Marked),
    ("pause", Intrusion::Pause),
    ("pfc", Intrusion::Pfc),
    ("unknown", Intrusion::Unknown),
];

pub const GRANTS: [(&str, Grant); 3] =
    [("window1", Grant::WindowOne), ("window2", Grant::WindowTwo), ("fast_region", Grant::FastRegion)];

fn word<T: PartialEq + Copy>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, v)| *v == value).expect("every value has its word").0
}

/// Formats a time without rounding.
struct Time(Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            n if n % 1_000_000 == 0 && n > 0 => write!(f, "{}ms", n / 1_000_000),
            n if n % 1_000 == 0 => write!(f, "{}us", n / 1_000),
            n => write!(f, "{n}ns"),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}{}", self.channel + 1, if self.back { '<' } else { '>' })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}.{}", self.channel + 1, char::from(b'a' + self.end as u8))
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defaults = Hosts::default();
        write!(f, "hosts {}", self.count)?;
        if self.link_mtu != defaults.link_mtu {
            write!(f, " link={}", self.link_mtu)?;
        }
        if self.ipv6 {
            write!(f, " ipv6")?;
        }
        if let Some(split) = self.split {
            write!(f, " split={split}")?;
        }
        if self.window != defaults.window {
            write!(f, " window={}", self.window)?;
        }
        if self.ack_coalesce != defaults.ack_coalesce {
            write!(f, " coalesce={}", self.ack_coalesce)?;
        }
        if self.slots != defaults.slots {
            write!(f, " slots={}", self.slots)?;
        }
        if self.ack_requests != defaults.ack_requests {
            write!(f, " ask={}", self.ack_requests)?;
        }
        Ok(())
    }
}

impl fmt::Display for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defaults = Srq::default();
        write!(f, "{}", word(&KINDS, self.extended))?;
        let numbers = [
            ("size", self.size.into(), defaults.size.into()),
            ("ahead", self.ahead.into(), defaults.ahead.into()),
            ("dawdles", self.dawdles, defaults.dawdles),
        ];
        write_numbers(f, &numbers)
    }
}

impl fmt::Display for SrqPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{} h{}", self.srq + 1, self.host + 1)
    }
}

/// Writes the numbers that differ from their defaults: name, value, default.
fn write_numbers(f: &mut fmt::Formatter<'_>, numbers: &[(&str, u64, u64)]) -> fmt::Result {
    let changed = numbers.iter().filter(|(_, value, default)| value != default);
    changed.into_iter().try_for_each(|(name, value, _)| write!(f, " {name}={value}"))
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defaults = Channel::default();
        write!(f, "{}", word(&SERVICES, self.service))?;
        for host in &self.ends {
            write!(f, " h{}", host + 1)?;
        }
        if self.psns != defaults.psns {
            write!(f, " psn={},{}", self.psns[0], self.psns[1])?;
        }
        let numbers = [
            ("mtu", self.mtu.bytes() as u64, defaults.mtu.bytes() as u64),
            ("rd", self.rd_atomic.into(), defaults.rd_atomic.into()),
            ("depth", self.depth as u64, defaults.depth as u64),
            ("ahead", self.ahead as u64, defaults.ahead as u64),
            ("dawdles", self.dawdles, defaults.dawdles),
            ("timeout", self.timeout.into(), defaults.timeout.into()),
            ("retries", self.retries.into(), defaults.retries.into()),
            ("rnr_retries", self.rnr_retries.into(), defaults.rnr_retries.into()),
            ("rnr_timer", self.rnr_timer.into(), defaults.rnr_timer.into()),
            ("cq", self.cq.into(), defaults.cq.into()),
            ("sl", self.sl.into(), defaults.sl.into()),
        ];
        write_numbers(f, &numbers)?;
        if !self.srqs.is_empty() {
            let names: Vec<String> = self.srqs.iter().map(|srq| format!("s{}", srq + 1)).collect();
            write!(f, " srq={}", names.join(","))?;
        }
        if let Some(held) = &self.events {
            write!(f, " events={},{}", held.count, Time(held.period))?;
        }
        if self.slow > Nanos::ZERO {
            write!(f, " slow={}", Time(self.slow))?;
        }
        if self.selective {
            write!(f, " selective")?;
        }
        if self.sig_all { write!(f, " sig_all") } else { Ok(()) }
    }
}

impl fmt::Display for Brakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defaults = Brakes::default();
        let words = [
            ("cc", &self.control, &defaults.control),
            ("ecn", &self.ecn, &defaults.ecn),
            ("qos", &self.classes, &defaults.classes),
        ];
        for (name, value, _) in words.into_iter().filter(|(_, value, default)| value != default) {
            write!(f, " {name}:{value}")?;
        }
        if self.mbps == defaults.mbps { Ok(()) } else { write!(f, " mbps:{}", self.mbps) }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", word(&OPCODES, self.opcode), self.length)?;
        if self.pieces != 1 {
            write!(f, " pieces={}", self.pieces)?;
        }
        if self.imm != 0 {
            write!(f, " imm={}", self.imm)?;
        }
        if self.queue != 0 {
            write!(f, " queue={}", self.queue)?;
        }
        let flags = [
            (self.inline, "inline"),
            (self.unsignaled, "unsignaled"),
            (self.fence, "fence"),
            (self.solicited, "solicited"),
            (self.odd, "odd"),
            (self.granted, "granted"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

impl fmt::Display for FrameName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} h{} {} {:+}", self.way, self.to + 1, self.opcode, self.psn)?;
        if self.earlier > 0 {
            write!(f, " earlier={}", self.earlier)?;
        }
        if self.life > 0 { write!(f, " life={}", self.life) } else { Ok(()) }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Lose => write!(f, "lose"),
            Trouble::Double => write!(f, "double"),
            Trouble::Delay(time) => write!(f, "delay={}", Time(*time)),
            Trouble::Harm => write!(f, "harm"),
            Trouble::Mark => write!(f, "mark"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Rate { to, trouble, of_10_000 } => {
                write!(f, "weather h{} {trouble} {of_10_000}", to + 1)
            }
            Rule::Strike { frame, trouble } => write!(f, "{trouble} {frame}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Post(way, op) => write!(f, "{way} {op}"),
            Action::Restart(host) => write!(f, "restart h{}", host + 1),
            Action::LinkMtu(host, mtu) => write!(f, "link_mtu h{} {mtu}", host + 1),
            Action::Move(host, late) => write!(f, "move h{} {}", host + 1, Time(*late)),
            Action::Readdress(host) => write!(f, "readdress h{}", host + 1),
            Action::PortDown(host) => write!(f, "down h{}", host + 1),
            Action::PortUp(host) => write!(f, "up h{}", host + 1),
            Action::Jump(time) => write!(f, "jump {}", Time(*time)),
            Action::Reset(place) => write!(f, "reset {place}"),
            Action::Destroy(place) => write!(f, "destroy {place}"),
            Action::Error(place) => write!(f, "error {place}"),
            Action::Drain(place) => write!(f, "drain {place}"),
            Action::Resume(place) => write!(f, "resume {place}"),
            Action::Sleep(place, time) => write!(f, "sleep {place} {}", Time(*time)),
            Action::Deregister(way, part) => write!(f, "deregister {way} {}", word(&PARTS, *part)),
            Action::DestroyHandle(channel) => write!(f, "destroy_handle q{}>", channel + 1),
            Action::Grant(way, grant) => write!(f, "grant {way} {}", word(&GRANTS, *grant)),
            Action::Revoke(way) => write!(f, "revoke {way}"),
            Action::FreeWindow(way) => write!(f, "free_window {way}"),
            Action::Moderate(place, held) => {
                write!(f, "moderate {place} {} {}", held.count, Time(held.period))
            }
            Action::Arm(place, limit) => write!(f, "arm {place} {limit}"),
            Action::ResizeSrq(place, size) => write!(f, "resize_srq {place} {size}"),
            Action::DestroySrq(place) => write!(f, "destroy_srq {place}"),
            Action::Brake(host, brakes) => write!(f, "brake h{}{brakes}", host + 1),
            Action::Limit(place, limit) => {
                write!(f, "limit {place} {} {} {}", limit.kbps, limit.max_burst, limit.typical_packet)
            }
            Action::Intrude(place, intrusion, variant) => {
                write!(f, "intrude {place} {} {variant}", word(&INTRUSIONS, *intrusion))
            }
            Action::Connect { channel, again: anew } => {
                write!(f, "connect q{}> {}", channel + 1, if *anew { "anew" } else { "again" })
            }
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "{}", self.hosts)?;
        for (i, srq) in self.srqs.iter().enumerate() {
            writeln!(f, "s{} {srq}", i + 1)?;
        }
        for (i, channel) in self.channels.iter().enumerate() {
            writeln!(f, "q{} {channel}", i + 1)?;
        }
        for rule in &self.weather {
            writeln!(f, "{rule}")?;
        }
        for Timed { at, action } in &self.actions {
            writeln!(f, "at {} {action}", Time(*at))?;
        }
        for (name, count) in &self.expected {
            writeln!(f, "expect {count} {name}")?;
        }
        for (place, text) in &self.logs {
            writeln!(f, "log {place} {text}")?;
        }
        Ok(())
    }
}
