//! Settings from the environment: the device's interface, and how it is opened. Without `ROXIE_DEV`, a variable that is
//! not set is taken from the file of `roxie enable`.
//!
//! `roxie run` sets the environment:
//! * `ROXIE_DEV`: the interface;
//! * `ROXIE_NAME`: the device's name;
//! * `ROXIE_PORT`: `xdp`, `udp` or `nic`;
//! * `ROXIE_MODE`: the mode of AF_XDP;
//! * `ROXIE_CORES`: the cores of the workers' threads, `2,3` or `2-5`; without it, the program's own polling runs the
//!   NIC;
//! * `ROXIE_FAULT`, `ROXIE_RULES`, `ROXIE_CAPTURE`;
//! * `ROXIE_ORPHANS`: the launcher, which ends the connections of a program that has ended;
//! * `ROXIE_EVENTS`: the log of failed calls;
//! * `ROXIE_SELECTIVE_REPEAT`: `off`, `agree` or `assume`;
//! * `ROXIE_ASK`: `always`, `shown` or `late`;
//! * `ROXIE_ROCE_V1`: `on` for GIDs of RoCE v1;
//! * `ROXIE_CC`, `ROXIE_ECN`, `ROXIE_QOS`, `ROXIE_SPEED`, `ROXIE_TOS`: congestion control and traffic classes.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use roxie::cm::Config;
use roxie::engine::{Drive, MAX_WORKERS};
use roxie::host::{
    AckRequestPolicy, DeviceName, PacketRule, PacketRules, PortPlan, SETTINGS_FILE, SelectiveRepeat,
};
use roxie::netdev::{Interface, interface_names};
use roxie::nic::CongestionConfig;
use roxie::port::fault::FaultConfig;
use roxie::profile::{Identity, Profile};
use roxie::time::Nanos;

use crate::base::report;

/// How long the engine's own thread spins before it sleeps.
const SPIN: Nanos = Nanos::from_micros(50);

/// Settings of the device.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Name of the device.
    pub(crate) name: DeviceName,
    pub(crate) profile: Option<&'static Profile>,
    interface: Option<String>,
    pub(crate) port: PortPlan,
    pub(crate) drive: Drive,
    /// The cores of the workers' threads.
    pub(crate) cores: Vec<usize>,
    pub(crate) fault: Option<FaultConfig>,
    pub(crate) rules: Vec<PacketRule>,
    pub(crate) capture: Option<PathBuf>,
    pub(crate) congestion: CongestionConfig,
    /// File from which the congestion control of QPs is read, now and on changes.
    pub(crate) control_file: Option<PathBuf>,
    /// Type of service of connections that do not set one.
    pub(crate) service_type: u8,
    /// Each address is a RoCE v1 GID as well.
    pub(crate) roce_v1: bool,
    /// Selective repeat on RC connections.
    pub(crate) selective_repeat: SelectiveRepeat,
    /// When unsignaled messages ask for an acknowledgement.
    pub(crate) ack_requests: AckRequestPolicy,
    /// The launcher that ends connections left by this process.
    pub(crate) launcher: Option<String>,
}

impl Settings {
    /// The code of the local CA ACK delay.
    pub(crate) fn ack_delay(&self) -> u8 {
        let of_profile = self.profile.and_then(|profile| profile.ack_delay);
        of_profile.unwrap_or_else(|| Config::default().ack_delay)
    }

    /// The adapter that the device says it is.
    pub(crate) fn identity(&self) -> Option<&'static Identity> {
        self.profile?.identity.as_ref()
    }

    /// The version of the device's firmware.
    pub(crate) fn firmware(&self) -> &'static str {
        self.identity().map_or(env!("CARGO_PKG_VERSION"), |identity| &identity.firmware)
    }
}

fn variable(name: &str) -> Option<String> {
    // A launcher sets the interface, and then everything else is as it says.
    static FILE: LazyLock<String> = LazyLock::new(|| match std::env::var_os("ROXIE_DEV") {
        Some(_) => String::new(),
        None => fs::read_to_string(SETTINGS_FILE).unwrap_or_default(),
    });
    let value = std::env::var(name).ok().or_else(|| in_file(&FILE, name));
    value.filter(|value| !value.is_empty())
}

/// Returns the value of a line `NAME=VALUE`.
fn in_file(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    text.lines().find_map(value)
}

/// Parses a variable. An invalid value is reported and ignored.
fn parsed<T: FromStr<Err: Display>>(name: &str, instead: &str) -> Option<T> {
    let text = variable(name)?;
    let report_error = |error| report::print(name, format_args!("{text:?}: {error}; taken as {instead}"));
    text.parse().map_err(report_error).ok()
}

/// Returns the settings, which are read once.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let port = variable("ROXIE_PORT").unwrap_or_default();
        let port = port_plan(&port).unwrap_or_else(|| {
            report::print(
                "ROXIE_PORT",
                format_args!("{port:?} is not one of nic, packet, udp and xdp: taken as auto"),
            );
            PortPlan::Best
        });
        let wanted_cores = variable("ROXIE_CORES");
        let drive =
            wanted_cores.as_ref().map_or_else(Drive::default, |_| Drive::Thread { core: None, spin: SPIN });
        let cores = wanted_cores.and_then(|text| {
            let parsed = cores_of(&text);
            if parsed.is_none() {
                report::print(
                    "ROXIE_CORES",
                    format_args!("{text:?} is no list like 2,3 or 2-5: the thread runs on any core"),
                );
            }
            parsed
        });
        let fault = parsed("ROXIE_FAULT", "no faults");
        let rules: PacketRules = parsed("ROXIE_RULES", "no rules").unwrap_or_default();
        let capture = variable("ROXIE_CAPTURE").map(PathBuf::from);
        let control_file = variable("ROXIE_CC").and_then(|text| Some(PathBuf::from(text.strip_prefix('@')?)));
        let control = if control_file.is_none() { parsed("ROXIE_CC", "none") } else { None };
        let congestion = CongestionConfig {
            control: control.unwrap_or_default(),
            ecn: parsed("ROXIE_ECN", "as congestion control wants it"),
            classes: parsed("ROXIE_QOS", "one class").unwrap_or_default(),
            line_rate: parsed("ROXIE_SPEED", "what the interface says"),
        };
        let selective_repeat = parsed("ROXIE_SELECTIVE_REPEAT", "off").unwrap_or_default();
        let service_type = parsed("ROXIE_TOS", "0").unwrap_or_default();
        let profile = variable("ROXIE_PROFILE").and_then(|text| {
            let report_error = |error| report::print("ROXIE_PROFILE", format_args!("{error}; taken as none"));
            serde_json::from_str::<Profile>(&text).map_err(report_error).ok()
        });
        let launcher = variable("ROXIE_ORPHANS");
        let interface = variable("ROXIE_DEV");
        Settings {
            name: parsed("ROXIE_NAME", "roxie0").unwrap_or_default(),
            interface,
            port,
            drive,
            cores: cores.unwrap_or_default(),
            fault,
            rules: rules.0,
            capture,
            congestion,
            control_file,
            service_type,
            roce_v1: variable("ROXIE_ROCE_V1").is_some_and(|text| text == "on"),
            selective_repeat,
            ack_requests: parsed("ROXIE_ASK", "shown").unwrap_or_default(),
            profile: profile.map(|profile| &*Box::leak(Box::new(profile))),
            launcher,
        }
    });
    &SETTINGS
}

/// Returns the device's interface: the one named, or the only one besides loopback with an address.
pub(crate) fn interface(settings: &Settings) -> Option<String> {
    let usable = |name: &str| match Interface::by_name(name) {
        Ok(interface) if interface.addresses.is_empty() => {
            Err(format!("{name} has no IP address: `ip addr add 192.0.2.1/24 dev {name}` gives it one"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    if let Some(name) = &settings.interface {
        return match usable(name) {
            Ok(()) => Some(name.clone()),
            Err(why) => {
                report::print("no device", why);
                None
            }
        };
    }
    let mut names: Vec<_> =
        interface_names().into_iter().filter(|name| name != "lo" && usable(name).is_ok()).collect();
    if names.len() != 1 {
        let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        report::info(
            "no device",
            format_args!("which interface? Name one in ROXIE_DEV; with an address there are: {listed}"),
        );
        return None;
    }
    names.pop()
}

/// Parses a list of cores: numbers and ranges.
fn cores_of(text: &str) -> Option<Vec<usize>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last && last - first < MAX_WORKERS).then_some(first..=last)
    };
    let parts: Option<Vec<_>> = text.split(',').map(range).collect();
    parts.map(|parts| parts.into_iter().flatten().collect())
}

/// Returns the index of the device's interface; 0 if there is none.
pub(crate) fn interface_index() -> u32 {
    let by_name = interface(settings()).and_then(|name| Interface::by_name(&name).ok());
    by_name.map_or(0, |interface| interface.index)
}

/// Parses a port's name on the command line and in the environment.
fn port_plan(name: &str) -> Option<PortPlan> {
    match name {
        "" | "auto" => Some(PortPlan::Best),
        "xdp" => Some(PortPlan::Xdp(parsed("ROXIE_MODE", "auto").unwrap_or_default())),
        "packet" => Some(PortPlan::Packet),
        "udp" => Some(PortPlan::Udp),
        "nic" => Some(PortPlan::Nic),
        _ => None,
    }
}

/// Returns the node GUID in network order: the interface's MAC address, extended to EUI-64.
pub(crate) fn node_guid() -> u64 {
    let by_name = interface(settings()).and_then(|name| Interface::by_name(&name).ok());
    u64::from_ne_bytes(guid(by_name.map_or([0; 6], |interface| interface.mac)))
}

/// Extends a MAC address to EUI-64.
pub(crate) fn guid(mac: [u8; 6]) -> [u8; 8] {
    [mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_have_numbers_and_ranges() {
        assert_eq!(cores_of("3"), Some(vec![3]));
        assert_eq!(cores_of("2, 4-6,1"), Some(vec![2, 4, 5, 6, 1]));
        for wrong in ["", "x", "3-1", "1,,2", "-1", "0-4000000000"] {
            assert_eq!(cores_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn file_has_a_line_for_each_value() {
        let text = "# ROXIE_PORT=xdp\nROXIE_PORTS=2\nROXIE_PORT=udp\nROXIE_RULES=drop psn=1\n";
        let value = |name| in_file(text, name);
        assert_eq!(value("ROXIE_PORT").as_deref(), Some("udp"));
        assert_eq!(value("ROXIE_RULES").as_deref(), Some("drop psn=1"));
        assert_eq!((value("ROXIE_DEV"), value("")), (None, None));
    }

    #[test]
    fn guid_is_the_mac_address_as_eui_64() {
        assert_eq!(guid([2, 0, 0, 0x11, 0x22, 0x33]), [0, 0, 0, 0xff, 0xfe, 0x11, 0x22, 0x33]);
    }
}
