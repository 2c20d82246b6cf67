//! Hosts on a fabric that write continuously, with samples of the run.

use roxie::congestion::{Rate, Settings};
use roxie::limits::Limits;
use roxie::nic::{Command, CongestionConfig, EcnPolicy};
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, QpCaps, RKey, SendFlags, SendWr, WcStatus, WrOpcode};
use roxie_report::failure::Failure;
use roxie_sim::fabric::{
    EcnConfig, Fabric, FabricConfig, LinkConfig, MacPause, PfcConfig, PortConfig, PriorityMap, StationConfig,
    Step, SwitchConfig, Threshold,
};
use roxie_sim::{Connected, Host, HostQp, HostRegion, NicConfig, Payload};

use super::document::{Series, round};
use super::frames::refused;
use super::stage::micros;

/// The lossless priority of data: DSCP 24 to 31.
pub(super) const DATA: usize = 3;
/// Longest frame: 4096 bytes of payload, and headers.
pub(super) const LONGEST: u32 = 4200;

/// Congestion mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// None: frames that do not fit are lost.
    Nothing,
    /// Priority flow control.
    Pfc,
    /// Rates, on a lossy network.
    Dcqcn,
    /// Rates on a lossless network.
    Both,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Nothing => "neither",
            Mode::Pfc => "PFC alone",
            Mode::Dcqcn => "DCQCN alone",
            Mode::Both => "PFC and DCQCN",
        }
    }

    pub(super) fn has_pfc(self) -> bool {
        matches!(self, Mode::Pfc | Mode::Both)
    }

    pub(super) fn has_rates(self) -> bool {
        matches!(self, Mode::Dcqcn | Mode::Both)
    }
}

/// A flow of WRITEs.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Bytes of a message.
    pub(super) message: u32,
    /// Number of messages; `None` to write until the end.
    pub(super) messages: Option<u32>,
    /// Messages outstanding.
    pub(super) depth: u32,
    /// Switch priority of the packets.
    pub(super) priority: u8,
}

/// Parameters of a run.
pub(super) struct Play {
    pub(super) config: FabricConfig,
    pub(super) flows: Vec<Flow>,
    pub(super) mode: Mode,
    pub(super) settings: Settings,
    pub(super) time: Nanos,
    pub(super) samples: u64,
    /// Switch ports at which pause time is sampled.
    pub(super) pauses: Vec<(usize, usize)>,
}

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Nanos,
    /// Time for which the sampled ports told their peers to pause, in us.
    pub(super) paused: f64,
    /// Bytes of completed messages, by flow.
    pub(super) done: Vec<u64>,
    /// Bytes that the flow's station has sent, headers included, by flow.
    pub(super) sent: Vec<u64>,
    /// Allowed rate in Gb/s, and alpha, by flow.
    pub(super) control: Vec<Option<(f64, f64)>>,
}

/// Results of a run.
pub(super) struct Played {
    pub(super) fabric: Fabric,
    switches: usize,
    pub(super) samples: Vec<Sample>,
    /// Completion time of each flow's last message, if all completed.
    pub(super) finished: Vec<Option<Nanos>>,
    pub(super) retransmitted: u64,
    pub(super) notified: u64,
}

/// Returns a station that honours PFC.
pub(super) fn station(number: usize, link: LinkConfig) -> StationConfig {
    StationConfig {
        mtu: LONGEST as usize,
        slots: 64,
        mac_pause: Some(MacPause { response: None, priorities: PriorityMap::default() }),
        ..StationConfig::new(Host::mac(number as u16 + 1), link)
    }
}

/// Returns a switch with these links. `ecn` marks data; PFC is on if the mode includes it.
pub(super) fn switch(
    links: &[LinkConfig],
    mode: Mode,
    ecn: EcnConfig,
    buffer: u64,
) -> Result<SwitchConfig, Failure> {
    let port = |link: &LinkConfig| {
        let mut port = PortConfig::new(*link);
        port.ecn[DATA] = Some(ecn);
        port
    };
    let pfc = match mode.has_pfc() {
        true => Some(PfcConfig {
            xon_offset: 2 * u64::from(LONGEST),
            ..PfcConfig::new(&[DATA as u8]).map_err(|e| refused(&e))?
        }),
        false => None,
    };
    Ok(SwitchConfig {
        buffer,
        lossy: Threshold::Dynamic(1.0),
        lossless: Threshold::Dynamic(0.125),
        longest_frame: LONGEST,
        pfc,
        seed: 1,
        ..SwitchConfig::new(links.iter().map(port).collect())
    })
}

/// A flow's queue pair and its progress.
struct Writer {
    qp: HostQp,
    source: HostRegion,
    target: HostRegion,
    posted: u32,
    done: u32,
    finished: Option<Nanos>,
}

/// Runs the flows.
///
/// # Errors
///
/// If the fabric or a NIC refuses, or a message fails.
pub(super) fn play(play: Play) -> Result<Played, Failure> {
    let Play { config, flows, mode, settings, time, samples, pauses } = play;
    let links: Vec<LinkConfig> = config.stations.iter().map(|station| station.link).collect();
    let switches = config.switches.len();
    let mut fabric = Fabric::new(config).map_err(|e| refused(&e))?;
    for (n, link) in links.iter().enumerate() {
        let nic = NicConfig {
            limits: Limits::small(),
            seed: n as u64 + 1,
            largest_mtu: Mtu::Mtu4096,
            ..NicConfig::default()
        };
        let host = Host::new(n as u16 + 1, nic, Box::new(fabric.port(n)));
        fabric.attach(n, host);
        let control = if mode.has_rates() { settings.clone() } else { Settings::Off };
        let congestion = CongestionConfig {
            control,
            ecn: mode.has_rates().then_some(EcnPolicy::On),
            line_rate: Some(Rate(link.rate.0 as f64)),
            ..CongestionConfig::default()
        };
        let set = Command::SetCongestion(Box::new(congestion));
        fabric.host(n).call(Nanos::ZERO, set).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    let mut writers = flows.iter().map(|flow| connect(&mut fabric, flow)).collect::<Result<Vec<_>, _>>()?;
    for (flow, writer) in flows.iter().zip(&mut writers) {
        while writer.posted < flow.depth.min(flow.messages.unwrap_or(u32::MAX)) {
            post(&mut fabric, flow, writer)?;
        }
    }
    let interval = Nanos((time.0 / samples).max(1));
    let mut taken = vec![sample(&mut fabric, &flows, &writers, &pauses, mode)];
    while fabric.now() < time {
        let until = (fabric.now() + interval).min(time);
        while let Some(step) = fabric.step(until) {
            if let Step::Turned { station, progress } = step
                && progress.completions > 0
            {
                go_on(&mut fabric, &flows, &mut writers, station)?;
            }
        }
        taken.push(sample(&mut fabric, &flows, &writers, &pauses, mode));
        if writers.iter().all(|writer| writer.finished.is_some()) {
            break;
        }
    }
    let counted = |name: &str| (0..links.len()).map(|n| fabric.hosts()[n].counter(name)).sum();
    Ok(Played {
        retransmitted: counted("retransmitted_packets"),
        notified: counted("np_cnp_sent"),
        finished: writers.iter().map(|writer| writer.finished).collect(),
        samples: taken,
        switches,
        fabric,
    })
}

fn connect(fabric: &mut Fabric, flow: &Flow) -> Result<Writer, Failure> {
    let (from, to) = (flow.from, flow.to);
    let caps = QpCaps { max_send_wr: flow.depth.max(1), max_recv_wr: 1, ..QpCaps::default() };
    let [near, far] = [from, to]
        .map(|n| fabric.host(n).queue_pair().caps(caps).signal_all().cq_entries(2 * flow.depth + 2).create());
    for (n, qp, peer, peers) in [(from, &near, to, &far), (to, &far, from, &near)] {
        let host = fabric.host(n);
        let mut way = host.path(peer as u16 + 1, false);
        way.traffic_class = flow.priority << 5;
        // 67 ms: a pause must not cause retransmission.
        let told = Connected {
            peer: peers.handle.qpn,
            path: way,
            path_mtu: Mtu::Mtu4096,
            timeout: 14,
            rd_atomic: 1,
        };
        host.connect(qp, &told).map_err(|e| Failure::Run(format!("the simulated NIC refuses: {e}")))?;
    }
    let source = fabric.host(from).register(flow.message as usize, Access::LOCAL_WRITE);
    let target = fabric.host(to).register(flow.message as usize, Access::READ_WRITE);
    Ok(Writer { qp: near, source, target, posted: 0, done: 0, finished: None })
}

fn post(fabric: &mut Fabric, flow: &Flow, writer: &mut Writer) -> Result<(), Failure> {
    let wr = SendWr {
        opcode: WrOpcode::Write,
        flags: SendFlags::SIGNALED,
        remote_addr: writer.target.address,
        rkey: RKey(writer.target.key),
        ..SendWr::default()
    };
    let sge = writer.source.sge(0, flow.message);
    fabric.host(flow.from).post_send(&writer.qp, &wr, Payload::Sges(&[sge]))?;
    writer.posted += 1;
    Ok(())
}

/// Posts another message for each that completed.
fn go_on(fabric: &mut Fabric, flows: &[Flow], writers: &mut [Writer], station: usize) -> Result<(), Failure> {
    for (flow, writer) in flows.iter().zip(writers).filter(|(flow, _)| flow.from == station) {
        while let Some(wc) = fabric.hosts()[station].poll_cq(&writer.qp) {
            if wc.status != WcStatus::Success {
                return Err(Failure::Run(format!("a WRITE of station {station} ended with {}", wc.status)));
            }
            writer.done += 1;
            if flow.messages.is_none_or(|all| writer.posted < all) {
                post(fabric, flow, writer)?;
            } else if flow.messages == Some(writer.done) {
                writer.finished = Some(fabric.now());
            }
        }
    }
    Ok(())
}

fn sample(
    fabric: &mut Fabric,
    flows: &[Flow],
    writers: &[Writer],
    pauses: &[(usize, usize)],
    mode: Mode,
) -> Sample {
    let now = fabric.now();
    let control = flows.iter().zip(writers).map(|(flow, writer)| {
        if !mode.has_rates() {
            return None;
        }
        let state = fabric.host(flow.from).query(now, &writer.qp).control?;
        Some((state.rate.0 / 1e9, state.alpha.unwrap_or(0.0)))
    });
    let control = control.collect();
    let paused = pauses
        .iter()
        .map(|(switch, port)| fabric.switch(*switch).queue(*port, DATA).pause_sent.0)
        .sum::<u64>();
    Sample {
        at: now,
        paused: round(paused as f64 / 1e3),
        done: flows
            .iter()
            .zip(writers)
            .map(|(flow, writer)| u64::from(flow.message) * u64::from(writer.done))
            .collect(),
        sent: flows.iter().map(|flow| fabric.station(flow.from).sent_bytes).collect(),
        control,
    }
}

/// Most lines of a chart that can be told apart at a glance.
const LINES: usize = 8;

impl Played {
    /// Returns the send rate of each flow's station over time in Gb/s, averaged over a few samples.
    pub(super) fn rates(&self, names: &[String]) -> Vec<Series> {
        const OVER: usize = 4;
        let of = |flow: usize| {
            let rate = move |ends: &[Sample]| {
                let (a, b) = (&ends[0], &ends[OVER]);
                let time = b.at.since(a.at).0.max(1) as f64;
                (micros(b.at), (b.sent[flow] - a.sent[flow]) as f64 * 8.0 / time)
            };
            self.samples.windows(OVER + 1).map(rate)
        };
        names.iter().take(LINES).enumerate().map(|(flow, name)| Series::new(name.clone(), of(flow))).collect()
    }

    /// Returns the reaction points' rates in Gb/s, or their alpha.
    pub(super) fn control(&self, names: &[String], alpha: bool) -> Vec<Series> {
        let of = |flow: usize| {
            let state = move |sample: &Sample| {
                sample.control[flow].map(|(rate, a)| (micros(sample.at), if alpha { a } else { rate }))
            };
            self.samples.iter().filter_map(state)
        };
        names.iter().take(LINES).enumerate().map(|(flow, name)| Series::new(name.clone(), of(flow))).collect()
    }

    /// Returns the depth of the watched queue in bytes.
    pub(super) fn depth(&self, (switch, port): (usize, usize)) -> Series {
        let queue = self.fabric.switch(switch).queue(port, DATA);
        let series = queue.depth.series();
        let every = series.len().div_ceil(600).max(1);
        // Keep the maximum of every few points.
        let highest = series.chunks(every).filter_map(|few| few.iter().max_by_key(|(_, depth)| *depth));
        Series::new("queue", highest.map(|(at, depth)| (micros(*at), *depth as f64)))
    }

    /// Returns the payload rate of a flow in Gb/s, from `from` to the end.
    pub(super) fn goodput(&self, flow: usize, from: Nanos) -> f64 {
        let begin = self.samples.iter().find(|sample| sample.at >= from).unwrap_or(&self.samples[0]);
        let end = self.samples.last().unwrap_or(begin);
        let time = end.at.since(begin.at).0.max(1) as f64;
        round((end.done[flow] - begin.done[flow]) as f64 * 8.0 / time)
    }

    /// Returns the time, in us, for which the sampled ports told their peers to pause: before and after `from`.
    pub(super) fn paused_around(&self, from: Nanos) -> [f64; 2] {
        let end = self.samples.last().map_or(0.0, |sample| sample.paused);
        let before = self.samples.iter().find(|sample| sample.at >= from).map_or(end, |sample| sample.paused);
        [before, round(end - before)]
    }

    /// Returns the time, in us, for which these switches told their neighbours to pause.
    pub(super) fn paused_us(&self, switches: &[usize]) -> f64 {
        let of = |switch: usize| {
            let ports = self.fabric.switch(switch).config().ports.len();
            (0..ports).map(|port| self.fabric.switch(switch).queue(port, DATA).pause_sent.0).sum::<u64>()
        };
        round(switches.iter().map(|switch| of(*switch)).sum::<u64>() as f64 / 1e3)
    }

    /// Returns the number of data frames that switches dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.all(|queue| queue.drops.all())
    }

    /// Returns the number of data frames that switches marked.
    pub(super) fn marked(&self) -> u64 {
        self.all(|queue| queue.marked)
    }

    fn all(&self, count: impl Fn(&roxie_sim::fabric::QueueStats) -> u64) -> u64 {
        let of = |switch: usize| {
            let switch = self.fabric.switch(switch);
            (0..switch.config().ports.len()).map(|port| count(&switch.queue(port, DATA))).sum::<u64>()
        };
        (0..self.switches).map(of).sum()
    }
}

/// Returns Jain's fairness index: 1 if all shares are equal.
pub(super) fn fairness(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    if squares > 0.0 { round(sum * sum / (shares.len() as f64 * squares)) } else { 0.0 }
}
