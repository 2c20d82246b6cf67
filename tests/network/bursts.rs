//! A burst of datagrams that the receiver, which does not run meanwhile, has posted receives for.

use roxie::host::{
    AhOptions, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QueuePair, Stack,
};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, Gid, Psn, QpCaps, QpInit, QpType, WcStatus};

use crate::end::PATIENCE;
use crate::wire::{B4, Wire, skip};

const QKEY: u32 = 0x0102_0304;
/// Number of datagrams, and of receives.
const BURST: u32 = 400;
const PAYLOAD: u32 = 1024;
/// Bytes of the network header in front of each receive.
const HEADER: u32 = 40;

/// A datagram QP with memory for one message.
struct Datagrams {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    pd: ProtectionDomain,
}

impl Datagrams {
    fn new(device: &Device) -> Datagrams {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(2 * BURST, None).expect("a queue");
        let caps = QpCaps { max_recv_wr: BURST, ..QpCaps::default() };
        let init = QpInit { qp_type: QpType::Ud, caps, sq_sig_all: true };
        let qp = pd.queue_pair(&cq).init(&init).create().expect("a QP");
        qp.start_datagrams(QKEY, Psn::new(0)).expect("a datagram QP");
        let memory = pd.register((HEADER + PAYLOAD) as usize, Access::LOCAL_WRITE).expect("memory");
        Datagrams { qp, cq, memory, pd }
    }
}

pub(crate) fn open(port: &str, name: &str, config: &DeviceConfig) -> Device {
    let device = match port {
        "xdp" => Device::open_xdp(&XdpConfig::new(name), &Stack::default(), config),
        "packet" => Device::open_packet(&PacketConfig::new(name), &Stack::default(), config),
        _ => {
            let udp = UdpConfig { interface: Some(name.into()), ..UdpConfig::default() };
            Device::open_udp(&udp, &Stack::default(), config)
        }
    };
    device.expect("a device")
}

/// Sends a burst while nothing runs the receiver's device, and then receives it.
fn burst_arrives(port: &str) {
    let wire = Wire::new(&format!("burst-{port}"), 1500, 1);
    let local = wire.a.run(|| open(port, "left", &DeviceConfig::default())).expect("the namespace");
    let remote = wire.b.run(|| open(port, "right", &DeviceConfig::caller_only())).expect("the namespace");
    let (from, to) = (Datagrams::new(&local), Datagrams::new(&remote));
    for i in 0..BURST {
        to.qp.post_recv(i.into(), &[to.memory.sge(0, HEADER + PAYLOAD)]).expect("room");
    }
    let gid = local.gids().into_iter().find(|entry| entry.gid.to_ip().is_ipv4()).expect("a GID");
    let path = from.pd.create_ah(gid.index, Gid::from(B4), &AhOptions::default()).expect("a path");
    for _ in 0..BURST {
        from.qp.post_send(&path.send_to(to.qp.qpn(), QKEY), &[from.memory.sge(0, PAYLOAD)]).expect("room");
        // Each datagram leaves alone, not in a train.
        assert_eq!(from.cq.wait(PATIENCE).map(|wc| wc.status), Ok(WcStatus::Success));
    }
    for i in 0..BURST {
        let received = to.cq.wait(PATIENCE).map(|wc| (wc.wr_id, wc.status));
        assert_eq!(received, Ok((i.into(), WcStatus::Success)), "{port}: {:?}", remote.counters());
    }
}

fn burst_arrives_over(test: &str, port: &str) {
    if !skip(test) {
        burst_arrives(port);
    }
}

#[test]
fn burst_waits_for_packet_receiver() {
    burst_arrives_over("burst_waits_for_packet_receiver", "packet");
}

#[test]
fn burst_waits_for_xdp_receiver() {
    burst_arrives_over("burst_waits_for_xdp_receiver", "xdp");
}

#[test]
fn burst_waits_for_udp_receiver() {
    burst_arrives_over("burst_waits_for_udp_receiver", "udp");
}
