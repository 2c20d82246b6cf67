//! The plan of a measurement: taken from the command line, and agreed between the two ends.

use roxie::host::SelectiveRepeat;
use roxie::limits::{MAX_CQE, MAX_WR};
use roxie::protocol::Protocol;
use roxie::verbs::Mtu;
use roxie_report::failure::Failure;
use serde::{Deserialize, Serialize};

use super::arguments::{Arguments, Measure, MeasurementOptions, Operation, Service};

/// One send in this many is signaled: so many more than the depth may be posted at most.
pub(super) const SIGNAL_EVERY: u32 = 16;
/// Longest message, which bounds the buffers.
const MAX_SIZE: u32 = 1 << 30;
const MAX_QPS: u32 = 4096;
/// Protocol of the two ends.
pub(super) const PERF_PROTOCOL: Protocol = Protocol { name: "perf protocol", oldest: 2, version: 2 };

/// When a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Until {
    /// After this many seconds.
    Seconds(f64),
    /// After this many operations.
    Operations(u64),
}

/// The parameters of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) version: u32,
    pub(super) service: Service,
    pub(super) operation: Operation,
    pub(super) measure: Measure,
    pub(super) sizes: Vec<u32>,
    pub(super) qps: u32,
    pub(super) depth: u32,
    pub(super) until: Until,
    pub(super) floor: bool,
    /// Requested path MTU in bytes, if any.
    pub(super) mtu: Option<usize>,
    /// The client has selective repeat.
    #[serde(default)]
    pub(super) selective_repeat: bool,
}

impl Plan {
    /// Completes and checks the command line's parameters.
    pub(super) fn new(arguments: &Arguments) -> Result<Plan, Failure> {
        let (wishes, lat) = (&arguments.wishes, arguments.measure == Measure::Lat);
        let default_size = match (arguments.operation, wishes.service) {
            _ if lat => 8,
            (Operation::Atomic, _) => 8,
            (_, Some(Service::Ud)) => 1024,
            _ => 65_536,
        };
        let plan = Plan {
            version: PERF_PROTOCOL.version,
            service: wishes.service.unwrap_or_default(),
            operation: arguments.operation,
            measure: arguments.measure,
            sizes: if wishes.size.is_empty() { vec![default_size] } else { wishes.size.clone() },
            qps: wishes.qps.unwrap_or(1),
            depth: wishes.depth.unwrap_or(if lat { 1 } else { 128 }),
            until: wishes.iters.map_or(Until::Seconds(wishes.duration.unwrap_or(2.0)), Until::Operations),
            floor: wishes.floor,
            mtu: arguments.device.mtu.map(Mtu::bytes),
            selective_repeat: arguments.device.selective_repeat != SelectiveRepeat::Off,
        };
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// Rejects invalid plans, a peer's included.
    pub(super) fn check(&self) -> Result<(), String> {
        let lat = self.measure == Measure::Lat;
        match (self.service, self.operation) {
            (Service::Rc, _) | (_, Operation::Send) | (Service::Uc, Operation::Write) => {}
            (service, operation) => {
                return Err(format!("{service:?} has no {operation:?}: use --service rc"));
            }
        }
        for size in &self.sizes {
            match (self.operation, size) {
                (_, size) if *size > MAX_SIZE => {
                    return Err(format!("size {size} is above the limit of {MAX_SIZE} bytes (1 GiB)"));
                }
                (Operation::Atomic, size) if *size != 8 => {
                    return Err(format!("size {size}: atomics work on exactly 8 bytes, leave -s out"));
                }
                (Operation::Write, 0) if lat => {
                    return Err("size 0: a WRITE's arrival is seen in its last byte, so it needs one".into());
                }
                (Operation::Write | Operation::Read, 0) => {
                    return Err("size 0: an empty WRITE or READ measures nothing, use at least 1".into());
                }
                _ => {}
            }
        }
        if self.sizes.is_empty() || self.sizes.len() > 64 {
            return Err(format!("{} sizes in one run: it takes 1 to 64", self.sizes.len()));
        }
        if lat && (self.qps, self.depth) != (1, 1) {
            return Err(format!(
                "lat runs one operation at a time on one QP, not {} on each of {}: leave --qps and --depth out, or \
                 measure bw",
                self.depth, self.qps
            ));
        }
        range("qps", self.qps, MAX_QPS)?;
        range("depth", self.depth, MAX_WR / 4)?;
        let completions = u64::from(self.qps) * u64::from(self.depth + SIGNAL_EVERY + self.receives());
        if completions > u64::from(MAX_CQE) {
            return Err(format!(
                "{} QPs with a depth of {} need {completions} completion queue entries, the limit is {MAX_CQE}: use \
                 fewer of one",
                self.qps, self.depth
            ));
        }
        match self.until {
            Until::Seconds(s) if !(0.01..=86_400.0).contains(&s) => {
                Err(format!("a duration of {s} s: it takes 0.01 to 86400"))
            }
            Until::Operations(0) => Err("0 operations measure nothing: give -n at least 1".into()),
            _ => Ok(()),
        }
    }

    /// Returns the number of receives that each QP keeps posted.
    pub(super) fn receives(&self) -> u32 {
        if self.operation == Operation::Send { (2 * self.depth).max(64) } else { 1 }
    }

    /// Returns the longest message in bytes.
    pub(super) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Lists where `own`, a server's plan, contradicts this plan, the client's. Parameters that the server was not
    /// given cannot contradict.
    pub(super) fn differences(&self, own: &Plan, wishes: &MeasurementOptions) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, asked: bool, here: String, there: String| {
            if asked && here != there {
                found.push(format!("{what} is {there} at the client and {here} at the server"));
            }
        };
        compare("the operation", true, format!("{:?}", own.operation), format!("{:?}", self.operation));
        compare("the measure", true, format!("{:?}", own.measure), format!("{:?}", self.measure));
        compare(
            "--service",
            wishes.service.is_some(),
            format!("{:?}", own.service),
            format!("{:?}", self.service),
        );
        compare("--floor", true, own.floor.to_string(), self.floor.to_string());
        compare("--size", !wishes.size.is_empty(), format!("{:?}", own.sizes), format!("{:?}", self.sizes));
        compare("--qps", wishes.qps.is_some(), own.qps.to_string(), self.qps.to_string());
        compare("--depth", wishes.depth.is_some(), own.depth.to_string(), self.depth.to_string());
        let timed = wishes.duration.is_some() || wishes.iters.is_some();
        compare("the length", timed, format!("{:?}", own.until), format!("{:?}", self.until));
        if let (Some(here), Some(there)) = (own.mtu, self.mtu) {
            compare("--mtu", true, here.to_string(), there.to_string());
        }
        found
    }
}

fn range(what: &str, value: u32, most: u32) -> Result<(), String> {
    if (1..=most).contains(&value) { Ok(()) } else { Err(format!("{what} {value}: it takes 1 to {most}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            version: PERF_PROTOCOL.version,
            service: Service::Rc,
            operation: Operation::Send,
            measure: Measure::Bw,
            sizes: vec![64],
            qps: 1,
            depth: 128,
            until: Until::Seconds(1.0),
            floor: false,
            mtu: None,
            selective_repeat: false,
        }
    }

    fn no_wishes() -> MeasurementOptions {
        MeasurementOptions {
            size: vec![],
            service: None,
            qps: None,
            depth: None,
            duration: None,
            iters: None,
            floor: false,
        }
    }

    #[test]
    fn only_parameters_given_to_server_must_agree() {
        let (client, own) = (plan(), Plan { sizes: vec![65_536], depth: 4, ..plan() });
        assert_eq!(client.differences(&own, &no_wishes()), Vec::<String>::new());
        let asked = MeasurementOptions { size: vec![65_536], depth: Some(4), ..no_wishes() };
        let said = client.differences(&own, &asked);
        assert_eq!(said.len(), 2);
        assert_eq!(said[0], "--size is [64] at the client and [65536] at the server");
        let other = Plan { operation: Operation::Read, ..plan() };
        assert!(client.differences(&other, &no_wishes())[0].contains("Send at the client and Read"));
    }

    #[test]
    fn impossible_plan_is_refused_with_its_value() {
        for (wrong, part) in [
            (Plan { sizes: vec![MAX_SIZE + 1], ..plan() }, "1073741825"),
            (Plan { operation: Operation::Atomic, sizes: vec![16], ..plan() }, "exactly 8 bytes"),
            (Plan { operation: Operation::Read, sizes: vec![0], ..plan() }, "size 0"),
            (Plan { service: Service::Uc, operation: Operation::Read, ..plan() }, "Uc has no Read"),
            (Plan { service: Service::Ud, operation: Operation::Write, ..plan() }, "Ud has no Write"),
            (Plan { measure: Measure::Lat, ..plan() }, "128 on each of 1"),
            (Plan { qps: 0, ..plan() }, "1 to 4096"),
            (Plan { depth: MAX_WR, ..plan() }, "depth 16384"),
            (Plan { qps: 4096, depth: 4096, ..plan() }, "completion queue entries"),
            (Plan { until: Until::Seconds(f64::NAN), ..plan() }, "0.01 to 86400"),
            (Plan { until: Until::Operations(0), ..plan() }, "-n at least 1"),
        ] {
            let said = wrong.check().unwrap_err();
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(plan().check(), Ok(()));
    }
}
