//! Pacing: data leaves at its QP's rate, and other packets do not wait for it. Priorities and pause frames.

use roxie::congestion::Rate;
use roxie::nic::{Command, CongestionConfig, Service, TrafficClasses, Trust};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    AddressVector, QpAttr, QpState, QpType, RateLimit, SendFlags, SendWr, UdAddress, WrOpcode,
};
use roxie::wire::{Bth, Ext, MacControl, Opcode, Psn, parse};

use crate::transport::{FIRST, MTU, PEER_QPN, Setup, Stage, attributes};

/// Bytes of a full packet's frame: Ethernet, IPv4, UDP, BTH, payload, ICRC.
const FULL: u64 = 14 + 20 + 8 + 12 + MTU.bytes() as u64 + 4;

fn limit(stage: &mut Stage, kbps: u32) {
    let rate = RateLimit { kbps, ..RateLimit::default() };
    let attr = QpAttr { state: Some(QpState::Rts), rate_limit: Some(rate), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("in RTS");
}

/// Runs until `until` and returns the packets that left: time, opcode, frame length.
pub(crate) fn departures(stage: &mut Stage, until: Nanos) -> Vec<(Nanos, Opcode, usize)> {
    let mut all = Vec::new();
    while stage.now < until {
        for _ in 0..4 {
            stage.host.worker.poll(stage.now);
            for i in 0..stage.peer.rx_burst(stage.now) {
                let frame = stage.peer.rx_frame(i).frame;
                let opcode = parse(&frame).expect("a good packet").bth.opcode;
                all.push((stage.now, opcode, frame.len()));
            }
            stage.peer.rx_release();
        }
        stage.now = stage.host.worker.next_deadline().max(stage.now + Nanos(1)).min(until);
    }
    all
}

/// Ten messages that fill a window of 120 packets.
fn post_many(stage: &Stage) {
    for id in 0..10 {
        stage.post_as(id, WrOpcode::Write, SendFlags::SIGNALED, 12 * MTU.bytes() as u32);
    }
}

#[test]
fn rate_limit_follows_the_ideal_curve() {
    for kbps in [10_000, 123_456, 1_000_000, 7_777_000] {
        let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
        limit(&mut stage, kbps);
        post_many(&stage);
        let rate = Rate(f64::from(kbps) * 1e3);
        let sent = departures(&mut stage, Nanos::from_millis(40));
        assert_eq!(sent.len(), 120, "at {rate}");
        let mut bytes = 0;
        for (number, (at, _, length)) in sent.iter().enumerate() {
            let ideal = rate.nanos_for(bytes);
            let ahead = (ideal - at.0 as f64) / rate.nanos_for(FULL);
            // Wake-ups fall on a tick of 128 ns. A packet is late by that and one packet time at most.
            let behind = at.0 as f64 - ideal - 128.0;
            assert!(
                ahead < 1e-3 && behind < rate.nanos_for(FULL),
                "packet {number} at {at}, ideally {ideal}, at {rate}"
            );
            bytes += *length as u64;
        }
    }
}

#[test]
fn pacing_delays_read_responses_but_not_acks() {
    let mut stage = Stage::new();
    limit(&mut stage, 10_000);
    post_many(&stage);
    stage.receive(1, 0, 64);
    let first = departures(&mut stage, Nanos(10));
    assert_eq!(first.len(), 1, "one packet, and the next is 240 us away");
    let answers = stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]);
    assert_eq!(answers.iter().map(|a| a.opcode).collect::<Vec<_>>(), [Opcode::RC_ACKNOWLEDGE]);

    // A READ response of four packets at 10 Mb/s.
    let mut stage = Stage::new();
    limit(&mut stage, 10_000);
    let reth = stage.reth(0, 4 * MTU.bytes() as u32);
    let bth = Bth {
        opcode: Opcode::RC_READ_REQUEST,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(0),
        ..Bth::default()
    };
    stage.send(&bth, &Ext::Reth(reth), &[]);
    let sent = departures(&mut stage, Nanos::from_millis(2));
    let gap = Rate::from_mbps(10.0).nanos_for(FULL);
    for (number, (at, ..)) in sent.iter().enumerate() {
        let ideal = gap * number as f64;
        assert!((at.0 as f64 - ideal).abs() < gap / 4.0, "response {number} at {at}, ideally {ideal}");
    }
    assert_eq!(sent.len(), 4);
}

/// Unused credit is discarded while a QP has nothing to send.
#[test]
fn idle_time_accumulates_no_credit() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    limit(&mut stage, 10_000);
    stage.post(WrOpcode::Write, MTU.bytes() as u32);
    assert_eq!(departures(&mut stage, Nanos::from_millis(50)).len(), 1);
    post_many(&stage);
    let until = stage.now + Nanos::from_micros(700);
    let sent = departures(&mut stage, until);
    // At 0, 251, 502 us.
    assert_eq!(sent.len(), 3, "{sent:?}");
}

/// After a late pass, the overdue packets leave at once, up to `max_burst`.
#[test]
fn late_pass_catches_up_at_most_a_burst() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    let rate = RateLimit { kbps: 1_000_000, max_burst: 3 * FULL as u32, typical_packet: 0 };
    let attr = QpAttr { state: Some(QpState::Rts), rate_limit: Some(rate), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("in RTS");
    post_many(&stage);
    let now = stage.now + Nanos(1);
    assert_eq!(departures(&mut stage, now).len(), 1);
    stage.now = stage.now + Nanos::from_millis(1);
    let now = stage.now + Nanos(1);
    let burst = departures(&mut stage, now);
    assert_eq!(burst.len(), 4, "three of the burst, and the one that is due: {burst:?}");
}

//= test: IBTA 9.11: static-rate-is-kept
#[test]
fn static_rate_of_the_path_limits_the_qp() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    let fast = CongestionConfig { line_rate: Some(Rate::from_gbps(100.0)), ..CongestionConfig::default() };
    stage.host.call(stage.now, Command::SetCongestion(Box::new(fast))).expect("carried out");
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("from any state");
    for mut attr in attributes(&stage.host, &Setup { timeout: 0, ..Setup::default() }) {
        // IBV_RATE_2_5_GBPS.
        attr.av = attr.av.map(|av| AddressVector { static_rate: 2, ..av });
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
    post_many(&stage);
    let sent = departures(&mut stage, Nanos::from_millis(1));
    let (last, ..) = sent[119];
    let ideal = Rate::from_gbps(2.5).nanos_for(119 * FULL);
    assert!((last.0 as f64 / ideal - 1.0).abs() < 0.01, "{last}, ideally {ideal}");
}

/// Packets are further apart than the ACK timeout.
#[test]
fn slow_rate_causes_no_timeout() {
    let mut stage = Stage::new();
    limit(&mut stage, 200);
    stage.post(WrOpcode::Write, 6 * MTU.bytes() as u32);
    let mut acknowledged = 0;
    while acknowledged < 6 {
        let until = stage.now + Nanos::from_millis(1);
        for _ in departures(&mut stage, until) {
            // Every packet has the AckReq bit; the peer acknowledges each.
            stage.acknowledge(FIRST + acknowledged, roxie::wire::Syndrome::Ack { credits: 31 }, 0);
            acknowledged += 1;
        }
    }
    stage.packets();
    assert_eq!(stage.counter("local_ack_timeout_err"), 0);
    assert_eq!(stage.counter("retransmitted_packets"), 0);
    assert_eq!(stage.completions().len(), 1);
}

pub(crate) fn classes(stage: &mut Stage, classes: TrafficClasses) {
    let config =
        CongestionConfig { classes, line_rate: Some(Rate::from_gbps(1.0)), ..CongestionConfig::default() };
    stage.host.call(stage.now, Command::SetCongestion(Box::new(config))).expect("carried out");
}

/// A stage with PFC for priority 3, which its QP has by its DSCP.
fn stage_of_priority_three() -> Stage {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    let trust = TrafficClasses { trust: Trust::Dscp, pfc: 1 << 3, ..TrafficClasses::default() };
    classes(&mut stage, trust);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("from any state");
    for mut attr in attributes(&stage.host, &Setup { timeout: 0, ..Setup::default() }) {
        attr.av = attr.av.map(|av| AddressVector { traffic_class: 26 << 2, ..av });
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
    stage
}

fn pause(stage: &mut Stage, priority: usize, quanta: u16) {
    let mut times = [0; 8];
    times[priority] = quanta;
    let frame = MacControl::Pfc { enable: 1 << priority, quanta: times }.build([2, 0, 0, 0, 0, 9]);
    let id = stage.peer.tx_alloc(frame.len()).expect("room");
    stage.peer.tx_frame(&id).write(0, &frame);
    stage.peer.tx_commit(id);
    stage.peer.tx_flush(stage.now).expect("memory does not fail");
}

#[test]
fn pause_stops_only_its_own_priority() {
    // 1,000 quanta of 512 bits at 1 Gb/s are 512 us.
    let length = Nanos::from_micros(512);
    for (priority, stopped) in [(3, true), (0, false)] {
        let mut stage = stage_of_priority_three();
        pause(&mut stage, priority, 1000);
        stage.host.worker.poll(stage.now);
        post_many(&stage);
        let sent = departures(&mut stage, Nanos::from_millis(2));
        assert_eq!(sent.len(), 120);
        let first = sent[0].0;
        assert_eq!(first >= length, stopped, "priority {priority}: {first}");
        assert!(first <= length + Nanos(2_000), "{first}");
    }
    // A frame with 0 quanta resumes the priority.
    let mut stage = stage_of_priority_three();
    pause(&mut stage, 3, 0xffff);
    stage.host.worker.poll(stage.now);
    post_many(&stage);
    assert_eq!(departures(&mut stage, Nanos::from_micros(100)), []);
    pause(&mut stage, 3, 0);
    assert_eq!(departures(&mut stage, Nanos::from_micros(200)).len(), 120);
    assert_eq!(stage.counter("rx_prio3_pause"), 2);
}

/// Disabling PFC for the paused priority ends the pause. A pause that the new setting still allows stays.
#[test]
fn pause_ends_when_flow_control_is_disabled() {
    let (own, trust_pcp) = (Trust::Dscp, Trust::Pcp);
    for (trust, pfc, pause_all, resumes) in [
        (own, 0, false, true),
        (own, 1 << 2 | 1 << 4, false, true),
        (own, 1 << 3, false, false),
        (own, 0, true, false),
        (own, 1 << 2, true, false),
        // Under this trust mode the waiting packets have another priority.
        (trust_pcp, 1 << 3, false, true),
    ] {
        let mut stage = stage_of_priority_three();
        pause(&mut stage, 3, 0xffff);
        stage.host.worker.poll(stage.now);
        post_many(&stage);
        assert_eq!(departures(&mut stage, Nanos::from_micros(100)), []);
        let rule = TrafficClasses { trust, pfc, pause: pause_all, ..TrafficClasses::default() };
        classes(&mut stage, rule);
        let sent = departures(&mut stage, Nanos::from_micros(200)).len();
        assert_eq!(sent, if resumes { 120 } else { 0 }, "pfc {pfc:#b}, pause {pause_all}");
    }
}

/// 1,000 quanta are 512 us. The second frame restarts the pause, the third ends it. An ignored pause frame adds no time
/// and counts as `rx_not_roce`.
#[test]
fn pause_duration_is_counted() {
    let mut stage = stage_of_priority_three();
    let start = stage.now;
    for (at, quanta, total) in [(0, 1000, 512), (100, 1000, 612), (200, 0, 200)] {
        stage.now = start + Nanos::from_micros(at);
        pause(&mut stage, 3, quanta);
        stage.host.worker.poll(stage.now);
        assert_eq!(stage.counter("rx_prio3_pause_duration"), total, "us in all, after {at} us");
    }
    assert_eq!(stage.counter("rx_not_roce"), 0);
    pause(&mut stage, 0, 1000);
    stage.host.worker.poll(stage.now);
    assert_eq!((stage.counter("rx_prio0_pause_duration"), stage.counter("rx_not_roce")), (0, 1));
}

/// A datagram has the priority of its own path, independent of the QP's earlier packets.
#[test]
fn datagram_waits_for_its_paths_priority() {
    let mut stage = Stage::with(Setup { qp_type: QpType::Ud, ..Setup::default() });
    classes(&mut stage, TrafficClasses { trust: Trust::Dscp, pfc: 1 << 3, ..TrafficClasses::default() });
    let way = AddressVector { traffic_class: 26 << 2, ..stage.host.path(2, false) };
    let ah = stage.host.create_ah(&way);
    pause(&mut stage, 3, 1000);
    stage.host.worker.poll(stage.now);
    let ud = UdAddress { ah, remote_qpn: PEER_QPN, remote_qkey: 5 };
    let sges = [stage.memory.sge(0, 8)];
    let wr = SendWr { ud, ..SendWr::default() };
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    assert_eq!(departures(&mut stage, Nanos::from_micros(500)), []);
    assert_eq!(departures(&mut stage, Nanos::from_micros(520)).len(), 1);
}

/// A priority with PFC disabled ignores pause frames (802.1Qbb 36.1.1). PFC is disabled by default.
#[test]
fn pause_is_ignored_by_default() {
    let mut stage = Stage::new();
    pause(&mut stage, 0, 0xffff);
    stage.host.worker.poll(stage.now);
    stage.post(WrOpcode::Write, 8);
    assert_eq!(departures(&mut stage, Nanos(10)).len(), 1);
}

/// A neighbour that pauses without end stops a priority at most half of the time.
#[test]
fn pause_storm_is_ignored_half_the_time() {
    let mut stage = stage_of_priority_three();
    let mut sent = 0;
    let mut psn = FIRST;
    for step in 0..500 {
        pause(&mut stage, 3, 0xffff);
        if step % 10 == 0 {
            stage.post(WrOpcode::Write, 8);
        }
        let until = Nanos::from_millis(step + 1);
        for _ in departures(&mut stage, until) {
            sent += 1;
            stage.acknowledge(psn, roxie::wire::Syndrome::Ack { credits: 31 }, 0);
            psn = psn + 1;
        }
        stage.completions();
    }
    assert!(stage.counter("rx_pause_storm_warning_events") >= 2);
    assert!((40..=50).contains(&sent), "{sent} of 50 in 500 ms");
}

/// Two QPs of different priorities compete for one pass of 128 packets.
#[test]
fn strict_priority_precedes_weighted_ones() {
    let rates = |services: [Service; 8]| {
        let mut stage = stage_of_priority_three();
        let trust = TrafficClasses { trust: Trust::Dscp, services, ..TrafficClasses::default() };
        classes(&mut stage, trust);
        let other = stage
            .host
            .queue_pair()
            .init(roxie::verbs::QpInit { qp_type: QpType::Rc, caps: Default::default(), sq_sig_all: true })
            .create();
        for attr in attributes(&stage.host, &Setup { timeout: 0, ..Setup::default() }) {
            stage.host.modify(stage.now, &other, &attr).expect("a legal transition");
        }
        let mut shares = [0_u32, 0];
        let wr = |id| roxie::verbs::SendWr {
            wr_id: id,
            opcode: WrOpcode::Write,
            flags: SendFlags::SIGNALED,
            ..Default::default()
        };
        post_many(&stage);
        for id in 0..10 {
            let sges = [stage.memory.sge(0, 12 * MTU.bytes() as u32)];
            stage
                .host
                .post_send(&other, &wr(id), roxie::shared::work_queue::Payload::Sges(&sges))
                .expect("room");
        }
        // The first pass has room for 128 of the 240 packets.
        stage.host.worker.poll(stage.now);
        let mut seen = 0;
        while seen < 128 {
            let count = stage.peer.rx_burst(stage.now);
            assert!(count > 0, "{seen}");
            for i in 0..count {
                let packet = parse(&stage.peer.rx_frame(i).frame).expect("a good packet");
                shares[usize::from(packet.traffic_class() >> 2 == 26)] += 1;
                seen += 1;
            }
            stage.peer.rx_release();
        }
        shares
    };
    let weighted = |zero, three| {
        let mut services = [Service::Weighted(1); 8];
        (services[0], services[3]) = (zero, three);
        services
    };
    assert_eq!(rates(weighted(Service::Strict, Service::Strict)), [8, 120], "the higher priority first");
    assert_eq!(rates(weighted(Service::Strict, Service::Weighted(50))), [120, 8]);
    // A QP sends up to 32 packets a turn.
    let [zero, three] = rates(weighted(Service::Weighted(30), Service::Weighted(30)));
    assert!(zero.abs_diff(three) <= 64, "{zero} and {three}");
    let [zero, three] = rates(weighted(Service::Weighted(10), Service::Weighted(90)));
    assert!(three >= 3 * zero, "{zero} and {three}");
}

/// An unpaced QP accumulates no credit for the time when pacing begins.
#[test]
fn first_cnp_allows_no_burst() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    let control = "dcqcn,preset=paper".parse().expect("settings");
    let config = CongestionConfig { control, ..CongestionConfig::default() };
    stage.host.call(stage.now, Command::SetCongestion(Box::new(config))).expect("carried out");
    stage.post(WrOpcode::Write, 4 * MTU.bytes() as u32);
    let until = Nanos::from_millis(1);
    assert_eq!(departures(&mut stage, until).len(), 4);
    let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    stage.send(&bth, &Ext::None, &[]);
    stage.packets();
    post_many(&stage);
    let from = stage.now;
    let sent = departures(&mut stage, from + Nanos::from_micros(20));
    // 20 us at 5 Gb/s.
    let due = (20_000.0 / Rate::from_gbps(5.0).nanos_for(FULL)).ceil() as usize;
    assert!(sent.len() <= due + 1, "{} of {due}", sent.len());
    assert_eq!(sent.iter().filter(|(at, ..)| *at == from).count(), 1, "one at once: {sent:?}");
}

/// Returns a host whose QPs have posted this many packets each, with a rate limit, and the other end of its link.
fn paced_host(qps: usize, kbps: u32, packets: usize) -> (roxie_sim::Host, Box<dyn roxie::port::Port>) {
    let (local, peer) = roxie_sim::joined_ports(1500, None);
    let config = roxie::nic::NicConfig {
        limits: roxie::limits::Limits { qps: 1024, cqs: 1024, ..roxie::limits::Limits::small() },
        seed: 1,
        ..roxie::nic::NicConfig::default()
    };
    let mut host = roxie_sim::Host::new(1, config, local);
    let memory = host.register(1 << 16, roxie::verbs::Access::READ_WRITE);
    let caps = roxie::verbs::QpCaps { max_send_wr: 64, ..Default::default() };
    let init = roxie::verbs::QpInit { qp_type: QpType::Uc, caps, sq_sig_all: false };
    let setup = Setup { qp_type: QpType::Uc, ..Setup::default() };
    let all: Vec<_> = (0..qps).map(|_| host.queue_pair().init(init).cq_entries(64).create()).collect();
    for (number, qp) in all.iter().enumerate() {
        for mut attr in attributes(&host, &setup) {
            // The destination QPN identifies the sending QP.
            attr.dest_qpn = attr.dest_qpn.map(|_| roxie::verbs::Qpn::new(number as u32));
            let rate = RateLimit { kbps, ..RateLimit::default() };
            attr.rate_limit = (attr.state == Some(QpState::Rts)).then_some(rate);
            host.modify(Nanos::ZERO, qp, &attr).expect("a legal transition");
        }
        let wr = roxie::verbs::SendWr { opcode: WrOpcode::Write, ..Default::default() };
        let mut remaining = packets * MTU.bytes();
        while remaining > 0 {
            let length = remaining.min(64 * MTU.bytes());
            let sges = [memory.sge(0, length as u32)];
            let payload = roxie::shared::work_queue::Payload::Sges(&sges);
            host.post_send(qp, &wr, payload).expect("room");
            remaining -= length;
        }
    }
    (host, peer)
}

/// Many paced QPs share one link. Each stays within a packet of its ideal curve and sends all its packets.
#[test]
fn thousand_qps_keep_their_rates() {
    for (qps, kbps, packets) in
        [(1, 10_000, 1_000), (1, 9_990_000, 1_000), (10, 990_000, 1_000), (1_000, 10_000, 40)]
    {
        let (mut host, mut peer) = paced_host(qps, kbps, packets);
        let rate = Rate(f64::from(kbps) * 1e3);
        let mut sent = vec![(0_u64, 0_u64, Nanos::ZERO); qps];
        let mut now = Nanos::ZERO;
        let mut seen = 0;
        while seen < qps * packets {
            host.worker.poll(now);
            loop {
                let count = peer.rx_burst(now);
                for i in 0..count {
                    let frame = peer.rx_frame(i).frame;
                    let packet = parse(&frame).expect("a good packet");
                    let (count, bytes, first) = &mut sent[packet.bth.dest_qp.value() as usize];
                    if *count == 0 {
                        *first = now;
                    }
                    let at = now.since(*first).0 as f64;
                    let ideal = rate.nanos_for(*bytes);
                    let one = rate.nanos_for(FULL);
                    assert!(
                        (at - ideal).abs() <= one.max(256.0),
                        "{qps} QPs at {rate}: packet {count} at {at} ns, ideally {ideal}"
                    );
                    (*count, *bytes) = (*count + 1, *bytes + frame.len() as u64);
                    seen += 1;
                }
                peer.rx_release();
                if count == 0 {
                    break;
                }
            }
            let next = host.worker.next_deadline();
            assert!(
                seen == qps * packets || next != Nanos::MAX,
                "{seen} of {} and nothing will happen",
                qps * packets
            );
            now = next.max(now + Nanos(1));
        }
        // Every QP has sent all its packets.
        for (number, (count, bytes, _)) in sent.iter().enumerate() {
            assert_eq!(*count as usize, packets, "QP {number} sent {bytes} bytes");
        }
    }
}

/// 802.1Q priority tags (VLAN 0) carry the path's priority for data, and the CNP priority for a CNP.
#[test]
fn tagged_frames_carry_the_path_priority() {
    let mut stage = Stage::new();
    let tagged = TrafficClasses { trust: Trust::Dscp, tagged: true, ..TrafficClasses::default() };
    classes(&mut stage, tagged);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("from any state");
    for mut attr in attributes(&stage.host, &Setup::default()) {
        // DSCP 26 maps to priority 3.
        attr.av = attr.av.map(|av| AddressVector { traffic_class: 26 << 2, ..av });
        stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    }
    let tag = |stage: &mut Stage| -> Vec<(u16, u16)> {
        stage.host.worker.poll(stage.now);
        let count = stage.peer.rx_burst(stage.now);
        let tags = (0..count).map(|i| {
            let bytes: [u8; 16] = stage.peer.rx_frame(i).frame.array(0).expect("a header");
            (u16::from_be_bytes([bytes[12], bytes[13]]), u16::from_be_bytes([bytes[14], bytes[15]]))
        });
        let tags = tags.collect();
        stage.peer.rx_release();
        tags
    };
    stage.post(WrOpcode::Write, 8);
    assert_eq!(tag(&mut stage), [(0x8100, 3 << 13)]);
    stage.template = crate::transport::congestion::with_class(3);
    let bth = Bth {
        opcode: Opcode::RC_SEND_ONLY,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(0),
        ack_req: true,
        ..Bth::default()
    };
    stage.receive(1, 0, 64);
    stage.send(&bth, &Ext::None, &[1; 8]);
    assert_eq!(
        tag(&mut stage),
        [(0x8100, 6 << 13), (0x8100, 3 << 13)],
        "the notification, the acknowledgement"
    );
}

/// A CNP passes the pause of another priority. The ACK queued behind it has the paused priority and waits.
#[test]
fn ack_does_not_pass_its_own_pause() {
    let mut stage = stage_of_priority_three();
    stage.receive(1, 0, 64);
    pause(&mut stage, 3, 1000);
    stage.host.worker.poll(stage.now);
    stage.template = crate::transport::congestion::with_class(3);
    let bth = Bth {
        opcode: Opcode::RC_SEND_ONLY,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(0),
        ack_req: true,
        ..Bth::default()
    };
    stage.send(&bth, &Ext::None, &[1; 8]);
    let sent = departures(&mut stage, Nanos::from_micros(400));
    assert_eq!(sent.iter().map(|(_, opcode, _)| *opcode).collect::<Vec<_>>(), [Opcode::CNP]);
    let sent = departures(&mut stage, Nanos::from_micros(600));
    assert_eq!(sent.iter().map(|(_, opcode, _)| *opcode).collect::<Vec<_>>(), [Opcode::RC_ACKNOWLEDGE]);
}

/// Breaks of 2 us between pauses do not reset the storm detection.
#[test]
fn pause_storm_with_short_breaks_is_detected() {
    let mut stage = stage_of_priority_three();
    stage.post(WrOpcode::Write, 8);
    let mut sent = Vec::new();
    for step in 0..8 {
        pause(&mut stage, 3, 0xffff);
        stage.host.worker.poll(stage.now);
        sent.extend(departures(&mut stage, Nanos::from_millis(30 * (step + 1))));
        pause(&mut stage, 3, 0);
        stage.now = stage.now + Nanos(2_000);
    }
    assert!(stage.counter("rx_pause_storm_warning_events") >= 1, "{sent:?}");
}

/// An explicit rate limit applies even above the configured line rate.
#[test]
fn rate_limit_above_the_line_rate_applies() {
    let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
    let slow = CongestionConfig { line_rate: Some(Rate::from_mbps(10.0)), ..CongestionConfig::default() };
    stage.host.call(stage.now, Command::SetCongestion(Box::new(slow))).expect("carried out");
    limit(&mut stage, 100_000);
    post_many(&stage);
    let sent = departures(&mut stage, Nanos::from_millis(5));
    let (last, ..) = sent[119];
    let ideal = Rate::from_mbps(100.0).nanos_for(119 * FULL);
    assert!((last.0 as f64 / ideal - 1.0).abs() < 0.01, "{last}, ideally {ideal}");
}
