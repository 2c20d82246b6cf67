//! Inputs of congestion control: settings, rate limits, notifications, PAUSE frames.

use roxie::congestion::Rate;
use roxie::nic::CongestionConfig;
use roxie::verbs::{Qpn, RateLimit};
use roxie::wire::{Bth, MacControl, Opcode, Psn};

use crate::input::Input;

/// Returns settings of any kind, absurd ones included.
pub fn settings(input: &mut Input<'_>) -> CongestionConfig {
    let knob =
        |name: &str, input: &mut Input<'_>, most: u64| format!(",{name}={}", input.number(most / 2) % most);
    let control = match input.u8() % 5 {
        0 => "off".to_owned(),
        1 => format!("fixed,rate={}k", 1 + input.number(1_000) % 10_000_000),
        2 => "swift".to_owned(),
        preset => {
            let mut text = format!("dcqcn,preset={}", ["paper", "connectx"][usize::from(preset % 2)]);
            for (name, most) in [
                ("rpg_ai_rate", 100_000),
                ("rpg_time_reset", 10_000),
                ("rpg_byte_reset", 1 << 30),
                ("rpg_min_rate", 2_000),
                ("dce_tcp_rtt", 1_000),
                ("min_time_between_cnps", 100),
                ("rate_to_set_on_first_cnp", 2_000),
                ("cnp_moderation", 3),
            ] {
                if input.flag() {
                    text += &knob(name, input, most);
                }
            }
            text
        }
    };
    let classes = input.pick(&[
        "",
        "pfc=0+3",
        "pause=on",
        "tag=on,trust=dscp,pfc=1",
        "strict=0+3,weight=1:7,pfc=0",
        "map=0:5,trust=dscp,weight=5:100+0:1",
    ]);
    CongestionConfig {
        // Values that a knob rejects are refused when parsed, and never reach the NIC.
        control: control.parse().unwrap_or_default(),
        ecn: ["on", "off", "dscp=0+48"].get(usize::from(input.u8() % 4)).and_then(|text| text.parse().ok()),
        classes: classes.parse().expect("settings"),
        line_rate: input.flag().then(|| Rate((input.number(10_000_000_000) % 1_000_000_000_000) as f64)),
    }
}

/// Returns any rate and any burst.
pub fn limit(input: &mut Input<'_>) -> RateLimit {
    RateLimit {
        kbps: input.number(10_000) as u32,
        max_burst: input.number(65_536) as u32,
        typical_packet: input.number(1_024) as u16,
    }
}

/// Returns a notification, or a nearly valid one.
pub fn notification(input: &mut Input<'_>, dest_qp: Qpn) -> (Bth, usize) {
    let whole = !input.u8().is_multiple_of(8);
    let bth = Bth {
        opcode: Opcode::CNP,
        dest_qp,
        becn: whole || input.flag(),
        fecn: input.u8().is_multiple_of(8),
        psn: Psn::new(u32::from(input.u8())),
        ..Bth::default()
    };
    (bth, if whole { 0 } else { usize::from(input.u8() % 9) * 4 })
}

/// Returns a PAUSE or PFC frame with any times and priorities.
pub fn pause(input: &mut Input<'_>) -> [u8; 60] {
    let mut quanta = || input.pick(&[0, 1, 100, 0xffff]);
    let all: [u16; 8] = std::array::from_fn(|_| quanta());
    let control = match input.flag() {
        true => MacControl::Pause { quanta: all[0] },
        false => MacControl::Pfc { enable: input.u8(), quanta: all },
    };
    control.build([2, 0, 0, 0, 0, 9])
}
