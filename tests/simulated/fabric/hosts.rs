//! Queue pairs through a bottleneck.

use std::collections::HashMap;

use roxie::congestion::Rate;
use roxie::limits::Limits;
use roxie::nic::{Command, CongestionConfig, EcnPolicy, NicConfig};
use roxie::port::Port;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, QpCaps, QpInit, QpType, RKey, SendFlags, SendWr, WcStatus, WrOpcode};
use roxie_sim::fabric::{
    EcnConfig, Fabric, FabricConfig, LinkConfig, LinkRate, MacPause, PfcConfig, PortConfig, PriorityMap,
    StationConfig, Step, SwitchConfig, Threshold,
};
use roxie_sim::{Connected, Host, HostQp, HostRegion};

const MESSAGE: u32 = 16 * 1024;
/// ECT(0).
const ECT: u8 = 2;

fn link() -> LinkConfig {
    LinkConfig::new(LinkRate::from_gbps(10), Nanos(500))
}

fn mac(station: usize) -> [u8; 6] {
    Host::mac(station as u16 + 1)
}

fn station(number: usize) -> StationConfig {
    StationConfig { mtu: 1500, ..StationConfig::new(mac(number), link()) }
}

fn switch(ports: usize) -> SwitchConfig {
    SwitchConfig {
        longest_frame: 1518,
        ..SwitchConfig::new(FabricConfig::ports(ports, &PortConfig::new(link())))
    }
}

/// Senders, and a receiver behind one port.
struct Incast {
    fabric: Fabric,
    senders: Vec<(HostQp, HostRegion)>,
    target: HostRegion,
    /// Completions by sender.
    done: Vec<u32>,
    /// Completions by sender when half of all had arrived.
    halfway: Vec<u32>,
}

impl Incast {
    fn new(senders: usize, switch: SwitchConfig, heeds: bool) -> Incast {
        Incast::with(senders, switch, heeds, "off")
    }

    fn with(senders: usize, switch: SwitchConfig, heeds: bool, control: &str) -> Incast {
        Incast::between((0..=senders).map(station).collect(), switch, heeds, control, QpType::Rc)
    }

    fn between(
        mut stations: Vec<StationConfig>,
        switch: SwitchConfig,
        heeds: bool,
        control: &str,
        qp_type: QpType,
    ) -> Incast {
        let senders = stations.len() - 1;
        for station in stations.iter_mut().filter(|_| heeds) {
            station.mac_pause = Some(MacPause { response: None, priorities: PriorityMap::default() });
        }
        let mut fabric = Fabric::new(FabricConfig::star(stations, switch)).expect("a fabric");
        for n in 0..=senders {
            let config = NicConfig {
                limits: Limits::small(),
                seed: n as u64,
                largest_mtu: Mtu::Mtu1024,
                ..NicConfig::default()
            };
            let host = Host::new(n as u16 + 1, config, Box::new(fabric.port(n)));
            fabric.attach(n, host);
        }
        for n in 0..=senders {
            let config = CongestionConfig {
                control: control.parse().expect("settings"),
                // The switch alone decides what it marks.
                ecn: Some(EcnPolicy::On),
                line_rate: Some(Rate(link().rate.0 as f64)),
                ..CongestionConfig::default()
            };
            let command = Command::SetCongestion(Box::new(config));
            fabric.host(n).call(Nanos::ZERO, command).expect("carried out");
        }
        let target = fabric.host(senders).register(senders * MESSAGE as usize, Access::READ_WRITE);
        let pairs = (0..senders).map(|n| connect(&mut fabric, n, senders, qp_type)).collect();
        Incast { fabric, senders: pairs, target, done: vec![0; senders], halfway: Vec::new() }
    }

    fn post(&mut self, sender: usize) {
        let (qp, region) = &self.senders[sender];
        let wr = SendWr {
            opcode: WrOpcode::Write,
            flags: SendFlags::SIGNALED,
            remote_addr: self.target.address + u64::from(MESSAGE) * sender as u64,
            rkey: RKey(self.target.key),
            ..SendWr::default()
        };
        let host = self.fabric.host(sender);
        host.post_send(qp, &wr, Payload::Sges(&[region.sge(0, MESSAGE)])).expect("room");
    }

    /// Each sender keeps `depth` messages outstanding until it has sent `messages`. Returns the duration.
    fn write(&mut self, messages: u32, depth: u32, limit: Nanos) -> Nanos {
        let senders = self.senders.len();
        let mut posted = vec![0; senders];
        let start = self.fabric.now();
        for (sender, posted) in posted.iter_mut().enumerate() {
            let byte = sender as u8 + 1;
            self.senders[sender].1.memory.write(0, &vec![byte; MESSAGE as usize]).expect("within the region");
            while *posted < depth.min(messages) {
                self.post(sender);
                *posted += 1;
            }
        }
        while let Some(step) = self.fabric.step(start + limit) {
            let Step::Turned { station, progress } = step else { continue };
            if progress.completions == 0 || station == senders {
                continue;
            }
            while let Some(wc) = self.fabric.hosts()[station].poll_cq(&self.senders[station].0) {
                assert_eq!(wc.status, WcStatus::Success);
                self.done[station] += 1;
                if posted[station] < messages {
                    self.post(station);
                    posted[station] += 1;
                }
            }
            if 2 * self.done.iter().sum::<u32>() <= messages * senders as u32 {
                self.halfway.clone_from(&self.done);
            }
            if self.done.iter().all(|done| *done == messages) {
                break;
            }
        }
        assert!(self.done.iter().all(|done| *done == messages), "{:?}", self.done);
        for sender in 0..senders {
            let bytes = self.target.bytes(u64::from(MESSAGE) * sender as u64, MESSAGE as usize);
            assert!(bytes.iter().all(|byte| usize::from(*byte) == sender + 1), "sender {sender}");
        }
        self.fabric.now() - start
    }

    fn counter(&self, station: usize, name: &str) -> u64 {
        let counters: HashMap<_, _> = self.fabric.hosts()[station].worker.counters().into_iter().collect();
        counters[name]
    }

    fn sent_again(&self) -> u64 {
        (0..self.senders.len()).map(|sender| self.counter(sender, "retransmitted_packets")).sum()
    }
}

fn connect(fabric: &mut Fabric, from: usize, to: usize, qp_type: QpType) -> (HostQp, HostRegion) {
    let caps = QpCaps { max_send_wr: 64, max_recv_wr: 1, ..QpCaps::default() };
    let init = QpInit { qp_type, caps, sq_sig_all: false };
    let qps = [from, to].map(|station| fabric.host(station).queue_pair().init(init).cq_entries(256).create());
    let ends = [(from, &qps[0], to, &qps[1]), (to, &qps[1], from, &qps[0])];
    for (station, qp, peer, peers) in ends {
        let host = fabric.host(station);
        let mut av = host.path(peer as u16 + 1, false);
        av.traffic_class = ECT;
        let to =
            Connected { peer: peers.handle.qpn, path: av, path_mtu: Mtu::Mtu1024, timeout: 8, rd_atomic: 4 };
        host.connect(qp, &to).expect("legal transitions");
    }
    let region = fabric.host(from).register(MESSAGE as usize, Access::LOCAL_WRITE);
    let [qp, _] = qps;
    (qp, region)
}

#[test]
fn single_sender_fills_its_link() {
    let mut incast = Incast::new(1, switch(2), false);
    let time = incast.write(200, 8, Nanos::from_millis(50));
    // 1024 bytes of payload in a frame of 1098 on the wire (the first of a message has 16 more).
    let goodput = 200.0 * f64::from(MESSAGE) * 8.0 / time.as_secs_f64() / 1e9;
    assert!((9.0..10.0 * 1024.0 / 1100.0).contains(&goodput), "{goodput} Gb/s");
    assert_eq!(incast.sent_again(), 0);
}

#[test]
fn uncontrolled_bottleneck_drops_and_retransmits() {
    let mut config = switch(5);
    config.lossy = Threshold::Static(100_000);
    let mut incast = Incast::new(4, config, false);
    incast.write(50, 16, Nanos::from_millis(500));
    let queue = incast.fabric.switch(0).queue(4, 0);
    assert!(queue.drops.all() > 0, "{queue:?}");
    assert!(incast.sent_again() > queue.drops.all(), "go-back-N sends more than was lost");
    assert!(incast.counter(4, "out_of_sequence") > 0);
}

#[test]
fn flow_control_avoids_losses() {
    let mut config = switch(5);
    config.lossless = Threshold::Static(20_000);
    config.pfc = Some(PfcConfig::new(&[0]).expect("a priority"));
    let mut incast = Incast::new(4, config, true);
    let time = incast.write(50, 16, Nanos::from_millis(100));
    let queue = incast.fabric.switch(0).queue(4, 0);
    assert_eq!((queue.drops.all(), incast.sent_again()), (0, 0));
    assert!((0..4).all(|port| incast.fabric.switch(0).queue(port, 0).xoff_sent > 0));
    let goodput = 4.0 * 50.0 * f64::from(MESSAGE) * 8.0 / time.as_secs_f64() / 1e9;
    assert!(goodput > 8.5, "the bottleneck is full: {goodput} Gb/s");
}

#[test]
fn nic_that_honours_pauses_loses_nothing() {
    let mut config = switch(5);
    config.lossless = Threshold::Static(20_000);
    // Frames in the port's ring are sent in any case: four frames, and what two passes add.
    let response = link().rate.nanos_for(8 * 1120) + Nanos(1_000);
    config.pfc = Some(PfcConfig { response: Some(response), ..PfcConfig::new(&[0]).expect("a priority") });
    let stations = || (0..5).map(|n| StationConfig { slots: 4, ..station(n) }).collect();
    let play = |classes: &str| {
        let mut incast = Incast::between(stations(), config.clone(), false, "off", QpType::Rc);
        for n in 0..5 {
            let mut rules = incast.fabric.hosts()[n].worker.nic().congestion().clone();
            rules.classes = classes.parse().expect("classes");
            let command = Command::SetCongestion(Box::new(rules));
            incast.fabric.host(n).call(Nanos::ZERO, command).expect("carried out");
        }
        incast.write(50, 16, Nanos::from_millis(300));
        let dropped = incast.fabric.switch(0).queue(4, 0).drops.all();
        // Pause frames are counted.
        let pauses = incast.fabric.hosts()[0].counter("rx_prio0_pause");
        (dropped, incast.sent_again(), pauses)
    };
    let (dropped, again, pauses) = play("pfc=0");
    assert_eq!((dropped, again), (0, 0));
    assert!(pauses > 0);
    let (dropped, again, pauses) = play("pfc=3");
    assert!(dropped > 0 && again > 0 && pauses == 0, "another priority's pauses stop nothing");
}

#[test]
fn paused_host_with_full_ring_resumes() {
    let mut config = switch(3);
    config.lossless = Threshold::Static(5_000);
    // The egress is slow, so that the senders are paused most of the time.
    config.ports[2].link.rate = LinkRate::from_mbps(500);
    config.pfc = Some(PfcConfig::new(&[0]).expect("a priority"));
    let stations = (0..3).map(|n| StationConfig { slots: 4, ..station(n) }).collect();
    let mut incast = Incast::between(stations, config, true, "off", QpType::Rc);
    let before = incast.fabric.events();
    incast.write(20, 16, Nanos::from_millis(50));
    assert_eq!(incast.sent_again(), 0);
    assert!(incast.counter(0, "tx_stalled") > 0 && incast.fabric.switch(0).queue(0, 0).xoff_sent > 0);
    // 640 packets and their responses, each on two links, and the hosts' passes. A host that polled all the time would
    // need many more.
    let events = incast.fabric.events() - before;
    assert!(events < 10_000, "{events}");
}

#[test]
fn host_without_arrivals_resumes_on_room() {
    let mut config = switch(2);
    config.lossless = Threshold::Static(5_000);
    config.ports[1].link.rate = LinkRate::from_mbps(500);
    config.pfc = Some(PfcConfig::new(&[0]).expect("a priority"));
    let stations = (0..2).map(|n| StationConfig { slots: 4, ..station(n) }).collect();
    // Without acknowledgements, no arrival causes a pass.
    let mut incast = Incast::between(stations, config, true, "off", QpType::Uc);
    let time = incast.write(40, 16, Nanos::from_millis(100));
    let bytes = incast.fabric.switch(0).queue(1, 0).sent_bytes;
    let share = bytes as f64 * 8.0 / time.as_secs_f64() / 500e6;
    assert!(incast.fabric.switch(0).queue(0, 0).xoff_sent > 0);
    // 1098 bytes of the wire carry a frame of 1074.
    assert!(share > 0.95, "the slow link is never idle: {share}");
}

#[test]
fn dcqcn_keeps_queue_short_and_shares_link() {
    let mut config = switch(5);
    // A threshold that drops frames without DCQCN, as above.
    config.lossy = Threshold::Static(100_000);
    config.ports[4].ecn = [Some(EcnConfig { kmin: 5_000, kmax: 50_000, pmax: 0.1 }); 8];
    let mut incast = Incast::with(4, config, false, "dcqcn,preset=paper");
    // Rates start at line rate: ignore drops before the first notifications take effect.
    incast.write(20, 16, Nanos::from_millis(100));
    let (before, again) = (incast.fabric.switch(0).queue(4, 0), incast.sent_again());
    incast.done.fill(0);
    let time = incast.write(1000, 16, Nanos::from_millis(500));
    let queue = incast.fabric.switch(0).queue(4, 0);
    assert_eq!((queue.drops.all() - before.drops.all(), incast.sent_again() - again), (0, 0));
    assert!(queue.marked > before.marked && incast.counter(0, "rp_cnp_handled") > 0);
    let deep = queue.depth.quantile(0.99);
    assert!(deep < 50_000, "{deep} bytes");
    let goodput = 4.0 * 1000.0 * f64::from(MESSAGE) * 8.0 / time.as_secs_f64() / 1e9;
    assert!(goodput > 8.0, "{goodput} Gb/s");
    let (most, least) = (incast.halfway.iter().max(), incast.halfway.iter().min());
    assert!(most.zip(least).is_some_and(|(most, least)| *most < 2 * *least), "{:?}", incast.halfway);
}

#[test]
fn marks_arrive_with_valid_icrc() {
    let mut config = switch(3);
    config.ports[2].ecn = [Some(EcnConfig { kmin: 10_000, kmax: 50_000, pmax: 0.1 }); 8];
    let mut incast = Incast::new(2, config, false);
    incast.write(40, 8, Nanos::from_millis(100));
    let marked = incast.fabric.switch(0).queue(2, 0).marked;
    assert!(marked > 100, "{marked}");
    assert_eq!(incast.counter(2, "np_ecn_marked_roce_packets"), marked);
    assert_eq!((incast.counter(2, "rx_icrc_encapsulated"), incast.counter(2, "rx_malformed")), (0, 0));
}

/// Returns all observable results of a run.
fn trace(seed: u64) -> (Nanos, u64, Vec<u64>, u64) {
    let mut config = switch(4);
    config.seed = seed;
    config.lossy = Threshold::Static(60_000);
    config.ports[3].ecn = [Some(EcnConfig { kmin: 5_000, kmax: 500_000, pmax: 0.5 }); 8];
    let mut incast = Incast::new(3, config, false);
    let time = incast.write(30, 16, Nanos::from_millis(500));
    let queue = incast.fabric.switch(0).queue(3, 0);
    let series = queue.depth.series().iter().flat_map(|(time, depth)| [time.0, *depth]).collect();
    (time, incast.fabric.events(), series, queue.marked)
}

#[test]
fn same_seed_gives_the_same_run() {
    let first = trace(1);
    assert_eq!(first, trace(1));
    assert_ne!(first.3, trace(2).3, "another seed marks others");
}

#[test]
fn idle_host_costs_no_events() {
    let mut incast = Incast::new(4, switch(5), false);
    assert!(incast.fabric.run(Nanos::from_millis(10)), "nothing is left to do");
    let before = incast.fabric.events();
    assert!(incast.fabric.run(Nanos::from_millis(10_000)));
    assert_eq!(incast.fabric.events(), before);
}

#[test]
fn port_limits_slots_and_reports_room() {
    let slots = StationConfig { slots: 4, ..station(0) };
    let fabric = Fabric::new(FabricConfig::star(vec![slots, station(1)], switch(2)));
    let fabric = fabric.expect("a fabric");
    let mut port = fabric.port(0);
    assert!(!port.tx_pending());
    for n in 0..4 {
        let id = port.tx_alloc(1226).unwrap_or_else(|| panic!("slot {n}"));
        port.tx_commit(id);
    }
    assert!(port.tx_alloc(1226).is_none());
    port.tx_flush(Nanos::ZERO).expect("memory does not fail");
    assert!(port.tx_pending());
    // 1250 bytes on the wire take 1 us: two of the four frames have been sent.
    assert_eq!(port.next_event(), Nanos(2_000));
    assert!(port.tx_alloc(5000).is_none(), "never");
}

#[test]
fn burst_has_arrival_times() {
    let mut fabric =
        Fabric::new(FabricConfig::star(vec![station(0), station(1)], switch(2))).expect("a fabric");
    let mut port = fabric.port(1);
    let mut bytes = vec![0; 1226];
    bytes[..6].copy_from_slice(&mac(1));
    (0..3).for_each(|_| assert!(fabric.send(Nanos(0), 0, &bytes)));
    fabric.run(Nanos(10_000));
    assert_eq!(port.rx_burst(Nanos(4_000)), 2, "the third comes later");
    assert_eq!([0, 1].map(|i| port.rx_frame(i).arrived), [3_000, 4_000].map(|time| Some(Nanos(time))));
    port.rx_release();
    assert_eq!(port.next_event(), Nanos(5_000));
}
