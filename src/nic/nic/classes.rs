//! Traffic classes: priorities of packets, service of priorities, and ECN marking.
//!
//! Text form: `trust=dscp,pfc=3,strict=6+7,weight=0:20+3:80`.

use std::fmt;
use std::str::FromStr;

use super::scheduler::{PRIORITIES, Service};
use crate::verbs::AddressVector;

/// Which data packets are sent as ECN-capable, so that switches mark instead of dropping them (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnPolicy {
    /// None, except if the application sets the ECN bits of the traffic class itself.
    #[default]
    Off,
    /// All data packets of connected QPs.
    On,
    /// Data packets with these DSCPs: bit n is DSCP n.
    Dscp(u64),
}

/// The source of a packet's priority (`mlnx_qos --trust`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The service level of the QP or address handle, which is the priority code point of a tagged frame.
    #[default]
    Pcp,
    /// The DSCP of the traffic class.
    Dscp,
}

/// Traffic classes: how packets get a priority, and how priorities are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficClasses {
    /// The source of priorities.
    pub trust: Trust,
    /// With [`Trust::Dscp`]: the priority of each DSCP.
    pub dscp_to_priority: [u8; 64],
    /// How each priority is served.
    pub services: [Service; PRIORITIES],
    /// True if frames carry their priority in an 802.1Q tag of VLAN 0.
    pub tagged: bool,
    /// Bit p: priority flow control (PFC) frames pause priority p.
    pub pfc: u8,
    /// True if PAUSE frames pause all priorities.
    pub pause: bool,
    /// Bit p: the NIC asks the neighbour to pause priority p when the receive ring fills up.
    pub send_pfc: u8,
    /// Fill level of the receive ring, in percent, from which it asks; `None`: such that the headroom is left.
    pub xoff: Option<u8>,
}

impl Default for TrafficClasses {
    fn default() -> TrafficClasses {
        TrafficClasses {
            trust: Trust::default(),
            dscp_to_priority: std::array::from_fn(|dscp| (dscp / 8) as u8),
            services: [Service::Weighted(1); PRIORITIES],
            tagged: false,
            pfc: 0,
            pause: false,
            send_pfc: 0,
            xoff: None,
        }
    }
}

impl TrafficClasses {
    /// True if received PAUSE or PFC frames have an effect.
    pub fn uses_mac_control(&self) -> bool {
        self.pause || self.pfc != 0
    }

    /// Returns the priority of packets along a path.
    pub fn priority(&self, av: &AddressVector) -> u8 {
        match self.trust {
            Trust::Pcp => av.sl & 7,
            Trust::Dscp => self.dscp_to_priority[usize::from(av.traffic_class >> 2)] & 7,
        }
    }
}

/// Why a text does not describe traffic classes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClassesError {
    /// An unknown setting.
    #[error(
        "`{0}` is no setting of traffic classes: there are trust, map, strict, weight, pfc, pause, tag, send_pfc and xoff, as in \
         trust=dscp,map=26:3+46:5,strict=6+7,weight=0:20+3:80,pfc=3"
    )]
    Unknown(String),
    /// A setting without a value.
    #[error("`{0}` wants a value, as in {0}=...")]
    NoValue(String),
    /// An invalid value.
    #[error("{setting}={value}: {takes}")]
    Value {
        /// The setting, by its name on the command line.
        setting: &'static str,
        /// The invalid value.
        value: String,
        /// The valid values, as text.
        takes: &'static str,
    },
}

const A_PRIORITY: &str = "priorities are 0 to 7, several with + between them, as in 3+4";

fn number(setting: &'static str, text: &str, most: u8, takes: &'static str) -> Result<u8, ClassesError> {
    let value = text.trim().parse().ok().filter(|value| *value <= most);
    value.ok_or_else(|| ClassesError::Value { setting, value: text.to_owned(), takes })
}

/// Parses a set of priorities; `off`: none.
fn priorities(setting: &'static str, text: &str) -> Result<u8, ClassesError> {
    let chosen = text.split('+').filter(|part| *part != "off");
    chosen.map(|part| number(setting, part, 7, A_PRIORITY)).try_fold(0, |set, bit| Ok(set | 1 << bit?))
}

fn pair<'a>(
    setting: &'static str,
    text: &'a str,
    takes: &'static str,
) -> Result<(&'a str, &'a str), ClassesError> {
    text.split_once(':').ok_or_else(|| ClassesError::Value { setting, value: text.to_owned(), takes })
}

fn word<T: Copy>(
    setting: &'static str,
    text: &str,
    words: &[(&str, T)],
    takes: &'static str,
) -> Result<T, ClassesError> {
    let matching = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    matching.ok_or_else(|| ClassesError::Value { setting, value: text.to_owned(), takes })
}

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

impl TrafficClasses {
    fn set(&mut self, name: &str, value: &str) -> Result<(), ClassesError> {
        match name {
            "trust" => {
                let words = [("dscp", Trust::Dscp), ("pcp", Trust::Pcp)];
                self.trust = word("trust", value, &words, "priorities go by dscp or by pcp")?;
            }
            "map" => {
                const TAKES: &str =
                    "DSCP:PRIORITY, 0 to 63 and 0 to 7, several with + between them, as in 26:3+46:5";
                for part in value.split('+') {
                    let (dscp, priority) = pair("map", part, TAKES)?;
                    let dscp = number("map", dscp, 63, TAKES)?;
                    self.dscp_to_priority[usize::from(dscp)] = number("map", priority, 7, TAKES)?;
                }
            }
            "strict" => {
                for part in value.split('+') {
                    let priority = number("strict", part, 7, A_PRIORITY)?;
                    self.services[usize::from(priority)] = Service::Strict;
                }
            }
            "weight" => {
                const TAKES: &str =
                    "PRIORITY:WEIGHT, 0 to 7 and 1 to 100, several with + between them, as in 0:20+3:80";
                for part in value.split('+') {
                    let (priority, weight) = pair("weight", part, TAKES)?;
                    let priority = number("weight", priority, 7, TAKES)?;
                    let weight = number("weight", weight, 100, TAKES)?;
                    if weight == 0 {
                        return Err(ClassesError::Value {
                            setting: "weight",
                            value: part.to_owned(),
                            takes: TAKES,
                        });
                    }
                    self.services[usize::from(priority)] = Service::Weighted(weight);
                }
            }
            "pfc" => self.pfc = priorities("pfc", value)?,
            "send_pfc" => self.send_pfc = priorities("send_pfc", value)?,
            "xoff" => {
                const TAKES: &str = "1 to 99, hundredths of the receive ring";
                let percent = number("xoff", value, 99, TAKES)?;
                if percent == 0 {
                    return Err(ClassesError::Value {
                        setting: "xoff",
                        value: value.to_owned(),
                        takes: TAKES,
                    });
                }
                self.xoff = Some(percent);
            }
            "pause" => self.pause = word("pause", value, &SWITCH, "it is on or off")?,
            "tag" => self.tagged = word("tag", value, &SWITCH, "it is on or off")?,
            _ => return Err(ClassesError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

impl FromStr for TrafficClasses {
    type Err = ClassesError;

    fn from_str(text: &str) -> Result<TrafficClasses, ClassesError> {
        let mut classes = TrafficClasses::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| match part {
                "trust" | "map" | "strict" | "weight" | "pfc" | "pause" | "tag" | "send_pfc" | "xoff" => {
                    ClassesError::NoValue(part.to_owned())
                }
                _ => ClassesError::Unknown(part.to_owned()),
            })?;
            classes.set(name.trim(), value.trim())?;
        }
        Ok(classes)
    }
}

impl fmt::Display for TrafficClasses {
    /// Writes the text form: settings that differ from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = TrafficClasses::default();
        let mut parts = Vec::new();
        if self.trust == Trust::Dscp {
            parts.push("trust=dscp".to_owned());
        }
        let mapped: Vec<_> = (0..64)
            .filter(|dscp| self.dscp_to_priority[*dscp] != default.dscp_to_priority[*dscp])
            .map(|dscp| format!("{dscp}:{}", self.dscp_to_priority[dscp]))
            .collect();
        let of =
            |chosen: &dyn Fn(usize) -> Option<String>| (0..PRIORITIES).filter_map(chosen).collect::<Vec<_>>();
        let strict = of(&|p| (self.services[p] == Service::Strict).then(|| p.to_string()));
        let weight = of(&|p| match self.services[p] {
            Service::Weighted(weight) if weight != 1 => Some(format!("{p}:{weight}")),
            _ => None,
        });
        let pfc = of(&|p| (self.pfc & 1 << p != 0).then(|| p.to_string()));
        let send = of(&|p| (self.send_pfc & 1 << p != 0).then(|| p.to_string()));
        let lists =
            [("map", mapped), ("strict", strict), ("weight", weight), ("pfc", pfc), ("send_pfc", send)];
        for (name, values) in lists {
            if !values.is_empty() {
                parts.push(format!("{name}={}", values.join("+")));
            }
        }
        parts.extend(self.xoff.map(|percent| format!("xoff={percent}")));
        parts.extend(self.pause.then(|| "pause=on".to_owned()));
        parts.extend(self.tagged.then(|| "tag=on".to_owned()));
        f.write_str(&parts.join(","))
    }
}

impl fmt::Display for EcnPolicy {
    /// Writes the text form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EcnPolicy::Off => f.write_str("off"),
            EcnPolicy::On => f.write_str("on"),
            EcnPolicy::Dscp(set) => {
                let chosen = (0..64).filter(|dscp| set & 1 << dscp != 0).map(|dscp| dscp.to_string());
                write!(f, "dscp={}", chosen.collect::<Vec<_>>().join("+"))
            }
        }
    }
}

impl FromStr for EcnPolicy {
    type Err = ClassesError;

    /// Parses `off`, `on`, or `dscp=26+46`.
    fn from_str(text: &str) -> Result<EcnPolicy, ClassesError> {
        const TAKES: &str = "off, on, or dscp=26+46: 0 to 63, several with + between them";
        match text.split_once('=') {
            None if text == "off" => Ok(EcnPolicy::Off),
            None if text == "on" => Ok(EcnPolicy::On),
            Some(("dscp", list)) => {
                let bit = |part| Ok(1_u64 << number("ecn", part, 63, TAKES)?);
                list.split('+').map(bit).try_fold(0, |set, bit| Ok(set | bit?)).map(EcnPolicy::Dscp)
            }
            _ => Err(ClassesError::Value { setting: "ecn", value: text.to_owned(), takes: TAKES }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_survives_a_round_trip() {
        for text in [
            "",
            "trust=dscp",
            "trust=dscp,map=26:5,strict=6+7,weight=0:20+3:80,pfc=3,send_pfc=3+4,xoff=80,pause=on,tag=on",
        ] {
            assert_eq!(text.parse::<TrafficClasses>().expect(text).to_string(), text);
        }
        for text in ["off", "on", "dscp=0", "dscp=26+46+63"] {
            assert_eq!(text.parse::<EcnPolicy>().expect(text).to_string(), text);
        }
        assert_eq!("off".parse(), Ok(EcnPolicy::Off));
        assert_eq!("on".parse(), Ok(EcnPolicy::On));
        assert_eq!("dscp=0+26".parse(), Ok(EcnPolicy::Dscp(1 | 1 << 26)));
    }

    #[test]
    fn invalid_settings_are_refused_with_the_valid_values() {
        for (text, says) in [
            ("pfc=8", "pfc=8: priorities are 0 to 7, several with + between them, as in 3+4"),
            ("strict=-1", "strict=-1: priorities are 0 to 7, several with + between them, as in 3+4"),
            ("map=64:1", "map=64: DSCP:PRIORITY, 0 to 63 and 0 to 7"),
            ("map=26:8", "map=8: DSCP:PRIORITY, 0 to 63 and 0 to 7"),
            ("map=26", "map=26: DSCP:PRIORITY"),
            ("weight=3:0", "weight=3:0: PRIORITY:WEIGHT, 0 to 7 and 1 to 100"),
            ("trust=port", "trust=port: priorities go by dscp or by pcp"),
            ("pause=yes", "pause=yes: it is on or off"),
            ("xoff=0", "xoff=0: 1 to 99, hundredths of the receive ring"),
            ("send_pfc=8", "send_pfc=8: priorities are 0 to 7"),
            ("pfc", "`pfc` wants a value, as in pfc=..."),
            ("colour=red", "`colour` is no setting of traffic classes: there are trust, map"),
        ] {
            let error = text.parse::<TrafficClasses>().expect_err(text).to_string();
            assert!(error.starts_with(says), "{text}: {error}");
        }
        for text in ["dscp=64", "dscp=", "dscp", "maybe", "on=1", "pcp=3", ""] {
            let error = text.parse::<EcnPolicy>().expect_err(text).to_string();
            assert!(
                error.ends_with("off, on, or dscp=26+46: 0 to 63, several with + between them"),
                "{error}"
            );
        }
    }
}
