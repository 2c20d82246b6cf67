//! The scenario in virtual time, between simulated hosts.

use roxie::limits::Limits;
use roxie::nic::{Command, NicConfig};
use roxie::shared::work_queue::Payload;
use roxie::sim::fabric::{Fabric, Step};
use roxie::sim::{Connected, Host, HostQp, HostRegion};
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, QpCaps, RKey, SendFlags, SendWr, WcStatus, WrOpcode};

use super::scenario::{DEPTH, MESSAGE, Scenario, TIMEOUT};
use super::trace::{Run, Summary, Trace};
use crate::demo::{Failure, Interrupt};

/// A queue pair that writes again and again.
struct Sender {
    qp: HostQp,
    source: HostRegion,
    target: HostRegion,
}

/// Plays it.
///
/// # Errors
/// If a message could not be sent.
pub(super) fn play(scenario: &Scenario, interrupt: &Interrupt) -> Result<Run, Failure> {
    let mut fabric = scenario.fabric()?;
    for station in 0..scenario.stations() {
        let host = Host::new(station as u8 + 1, nic(scenario, station), Box::new(fabric.port(station)));
        fabric.seat(station, host);
        let command = Command::SetCongestion(Box::new(scenario.congestion()));
        fabric.host(station).call(Nanos::ZERO, command).map_err(|error| Failure::Wrong(error.to_string()))?;
    }
    let senders: Vec<_> = (0..scenario.senders)
        .map(|n| connect(&mut fabric, n, n + scenario.senders))
        .collect::<Result<_, _>>()?;
    for (station, sender) in senders.iter().enumerate() {
        (0..DEPTH).try_for_each(|_| sender.post(fabric.host(station)))?;
    }
    let mut trace = Trace::new(scenario);
    // Long enough for the first message of the slowest link.
    let end = scenario.time() + scenario.rate().nanos_for(64 << 20);
    while !trace.is_over() && fabric.now() < end {
        interrupt.check()?;
        let until = fabric.now() + scenario.interval();
        while let Some(step) = fabric.step(until) {
            trace.look(&fabric);
            if let Step::Turned { station, progress } = step
                && progress.completions > 0
                && let Some(sender) = senders.get(station)
            {
                sender.go_on(fabric.host(station))?;
            }
        }
        trace.look(&fabric);
    }
    let summary = Summary::of(&trace);
    Ok(Run { trace, summary })
}

fn nic(scenario: &Scenario, station: usize) -> NicConfig {
    NicConfig {
        limits: Limits::small(),
        seed: scenario.seed + station as u64,
        largest_mtu: Mtu::Mtu1024,
        ..NicConfig::default()
    }
}

impl Sender {
    fn post(&self, host: &Host) -> Result<(), Failure> {
        let wr = SendWr {
            opcode: WrOpcode::Write,
            flags: SendFlags::SIGNALED,
            remote_addr: self.target.address,
            rkey: RKey(self.target.key),
            ..SendWr::default()
        };
        Ok(host.post_send(&self.qp, &wr, Payload::Sges(&[self.source.sge(0, MESSAGE)]))?)
    }

    /// Another message for each that is complete.
    fn go_on(&self, host: &Host) -> Result<(), Failure> {
        while let Some(wc) = host.poll_cq(&self.qp) {
            if wc.status != WcStatus::Success {
                return Err(Failure::Completion {
                    what: "a WRITE in virtual time".into(),
                    status: wc.status,
                    syndrome: 0,
                });
            }
            self.post(host)?;
        }
        Ok(())
    }
}

fn connect(fabric: &mut Fabric, from: usize, to: usize) -> Result<Sender, Failure> {
    let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: 1, ..QpCaps::default() };
    let [near, far] = [from, to].map(|station| fabric.host(station).create_qp(caps, false, 2 * DEPTH));
    for (station, qp, peer, peers) in [(from, &near, to, &far), (to, &far, from, &near)] {
        let host = fabric.host(station);
        let to = Connected {
            peer: peers.handle.qpn,
            way: host.path(peer as u8 + 1, false),
            path_mtu: Mtu::Mtu1024,
            timeout: TIMEOUT,
            rd_atomic: 1,
        };
        host.connect(qp, &to).map_err(|error| Failure::Wrong(error.to_string()))?;
    }
    let source = fabric.host(from).register(MESSAGE as usize, Access::LOCAL_WRITE);
    let target = fabric.host(to).register(MESSAGE as usize, Access::READ_WRITE);
    Ok(Sender { qp: near, source, target })
}
