//! A run: each check of a selection, in turn, with a verdict always.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::bench::Bench;
use crate::check::{Check, Need};
use crate::verdict::{Stop, Verdict};

/// Time that a check may take, without what it makes and destroys.
const LIMIT: Duration = Duration::from_secs(30);
/// Bit of a device's `device_cap_flags` for windows of type 2 (`IBV_DEVICE_MEM_WINDOW_TYPE_2A`, `_2B`).
const WINDOW_FLAGS: u64 = 1 << 23 | 1 << 24;
/// Bit of a device's `device_cap_flags` for extended reliable connections (`IBV_DEVICE_XRC`).
const XRC_FLAG: u64 = 1 << 20;

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the check.
    pub name: String,
    /// Its chapter.
    pub chapter: String,
    /// Clause of the specification.
    pub clause: String,
    /// Stimulus: the bench's packets and requests.
    pub stimulus: String,
    /// The specification's rule.
    pub asks: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The target's reaction instead, or why the check did not run; empty if the rule is kept.
    pub came: String,
    /// Seconds that the check took.
    pub seconds: f64,
    /// The packets as a ladder, in text; empty if none was sent.
    #[serde(default)]
    pub ladder: String,
    /// The packets as a script that can be sent again; empty if the check has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub script: String,
    /// Adapters that are known to break the rule as well, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// The packets as a capture.
    #[serde(skip)]
    pub capture: Vec<u8>,
}

/// Returns why a check cannot run, if it cannot.
fn missing(check: &Check, bench: &Bench) -> Option<String> {
    check.needs.iter().find_map(|need| match need {
        Need::CapNetRaw => {
            (!bench.wire.sees_headers()).then(|| "needs CAP_NET_RAW at the bench (packet sockets)".to_owned())
        }
        Need::Atomics => {
            (bench.device_number("atomic_cap") == 0).then(|| "the device has no atomics".to_owned())
        }
        Need::Windows => (bench.device_number("cap_flags") & WINDOW_FLAGS == 0)
            .then(|| "the device has no memory windows of type 2".to_owned()),
        Need::Xrc => {
            (bench.device_number("cap_flags") & XRC_FLAG == 0).then(|| "the device has no XRC".to_owned())
        }
    })
}

/// Runs a check. If its agent was lost, `again` gives a new connection for the checks that follow.
pub fn run(check: &Check, bench: &mut Bench, again: &mut dyn FnMut() -> Option<Agent>) -> Outcome {
    let start = Instant::now();
    let mut result = match missing(check, bench) {
        Some(why) => Err(Stop::NotTested(why)),
        None if bench.agent.is_lost() => match again().map(|agent| bench.reconnect(agent)) {
            Some(Ok(())) => Ok(()),
            Some(Err(stop)) => {
                Err(Stop::NotTested(format!("the agent does not come back: {}", stop.reason())))
            }
            None => Err(Stop::NotTested("the agent is gone: start it again at the target".into())),
        },
        None => Ok(()),
    };
    let mut capture = Vec::new();
    if result.is_ok() {
        bench.begin(LIMIT);
        result = (check.run)(bench);
        capture = bench.wire.take_capture();
        // A lost target is not asked again: each question would take its whole time.
        let ended = match &result {
            Err(lost @ (Stop::Lost(_) | Stop::Silent(_))) => Err(lost.clone()),
            _ => bench.alive().and_then(|()| bench.end()),
        };
        if ended.is_err() {
            bench.agent.abandon();
        }
        if result.is_ok() {
            result = ended;
        }
    }
    let (verdict, came) = match &result {
        Ok(()) => (Verdict::Keeps, String::new()),
        Err(stop) => (stop.verdict(), stop.reason().to_owned()),
    };
    Outcome {
        name: check.name.clone(),
        chapter: check.chapter.to_owned(),
        clause: check.clause.to_owned(),
        stimulus: check.stimulus.clone(),
        asks: check.asks.clone(),
        verdict,
        came,
        seconds: start.elapsed().as_secs_f64(),
        ladder: String::new(),
        adapters: Vec::new(),
        script: String::new(),
        capture,
    }
}
