//! The scenario in virtual time, between simulated hosts.

use roxie::limits::Limits;
use roxie::nic::{Command, NicConfig};
use roxie::shared::work_queue::Payload;
use roxie::sim::fabric::{Fabric, Step};
use roxie::sim::{Host, HostQp, HostRegion};
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, Psn, QpAttr, QpCaps, QpState, RKey, SendFlags, SendWr, WcStatus, WrOpcode};

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
        let way = host.path(peer as u8 + 1, false);
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::READ_WRITE),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(way),
            path_mtu: Some(Mtu::Mtu1024),
            dest_qpn: Some(peers.handle.qpn),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(0)),
            timeout: Some(TIMEOUT),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            host.modify(Nanos::ZERO, qp, &attr).map_err(|error| Failure::Wrong(error.to_string()))?;
        }
    }
    let source = fabric.host(from).register(MESSAGE as usize, Access::LOCAL_WRITE);
    let target = fabric.host(to).register(MESSAGE as usize, Access::READ_WRITE);
    Ok(Sender { qp: near, source, target })
}
