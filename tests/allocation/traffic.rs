//! The data path allocates nothing after start: RC traffic under loss through every port, with a counting allocator.

use std::net::IpAddr;
use std::time::Duration;

use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QueuePair, Stack,
};
use roxie::netdev::{IfAddr, Links, NetNs};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
#[cfg(feature = "xdp")]
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, SendFlags, SendWr, WcStatus, WrOpcode};

const REGION: usize = 64 * 1024;

/// One end of a connection.
struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
    _pd: ProtectionDomain,
}

impl End {
    fn new(device: &Device) -> End {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(256, None).expect("a queue");
        let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
        let memory = pd.register(REGION, Access::READ_WRITE).expect("a region");
        End { cq, qp, memory, _pd: pd }
    }
}

/// Exchanges one message of each kind in each direction, with completions.
fn round(near: &End, far: &End) {
    let remote = |wr: SendWr| SendWr { remote_addr: far.memory.address(), rkey: far.memory.rkey(), ..wr };
    let work = [
        (WrOpcode::Send, 5_000),
        (WrOpcode::WriteImm, 20_000),
        (WrOpcode::Write, 60_000),
        (WrOpcode::Read, 60_000),
        (WrOpcode::FetchAdd, 8),
        (WrOpcode::CompareSwap, 8),
    ];
    for id in 0..2 {
        far.qp.post_recv(id, &[far.memory.sge(0, REGION as u32)]).expect("room");
    }
    for (opcode, length) in work {
        let wr = remote(SendWr { opcode, flags: SendFlags::SIGNALED, ..SendWr::default() });
        near.qp.post_send(&wr, &[near.memory.sge(0, length)]).expect("room");
    }
    let (mut sent, mut received, mut turns) = (0, 0, 0u64);
    while sent < work.len() || received < 2 {
        for (end, count) in [(near, &mut sent), (far, &mut received)] {
            while let Some(wc) = end.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                *count += 1;
            }
        }
        turns += 1;
        assert!(turns < 200_000_000, "no end in sight: {sent} sent, {received} received");
    }
}

fn assert_no_allocation(name: &str, near: &Device, far: &Device) {
    let (a, b) = (End::new(near), End::new(far));
    let (here, there) = (a.qp.endpoint(0).expect("a GID"), b.qp.endpoint(0).expect("a GID"));
    let options = ConnectOptions { timeout: 9, ..ConnectOptions::default() };
    a.qp.connect(&here, &there, &options).expect("connected");
    b.qp.connect(&there, &here, &options).expect("connected");
    // Buffers grow to their final size in the first rounds.
    for _ in 0..50 {
        round(&a, &b);
    }
    let before = crate::allocations();
    assert!(before > 0, "this thread has opened the devices");
    for _ in 0..200 {
        round(&a, &b);
        round(&b, &a);
    }
    let allocated = crate::allocations() - before;
    let retransmitted = near.counter("retransmitted_packets") + far.counter("retransmitted_packets");
    assert!(retransmitted > 0, "{name}: nothing was lost, so nothing was shown");
    assert_eq!(allocated, 0, "{name}: allocations on the data path");
}

fn lossy(seed: u64) -> Stack {
    let text = format!("rx.drop=0.01,rx.duplicate=0.005,rx.reorder=0.005,seed={seed}");
    Stack { fault: Some(text.parse().expect("a fault specification")), ..Stack::default() }
}

fn through_memory() {
    let config = DeviceConfig::caller_only();
    let (local, remote) = Device::memory_pair_with(&config, &lossy(1), &lossy(2)).expect("a pair");
    assert_no_allocation("memory", &local, &remote);
}

/// Two namespaces joined by a veth pair.
struct Joined([NetNs; 2]);

fn join() -> Result<Joined, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let ends =
        [NetNs::create("alloc-a").map_err(|e| text(&e))?, NetNs::create("alloc-b").map_err(|e| text(&e))?];
    let mut links = Links::open_in(&ends[0]).map_err(|e| text(&e))?;
    links.create_veth("veth0", &ends[1], "veth0", 1).map_err(|e| text(&e))?;
    for (n, end) in ends.iter().enumerate() {
        let mut links = Links::open_in(end).map_err(|e| text(&e))?;
        let ip = IpAddr::from([10, 78, 0, n as u8 + 1]);
        links.set_mtu("veth0", 4200).map_err(|e| text(&e))?;
        links.add_address("veth0", IfAddr { ip, prefix: 24 }).map_err(|e| text(&e))?;
        links.set_up("veth0", true).map_err(|e| text(&e))?;
    }
    std::thread::sleep(Duration::from_millis(50));
    Ok(Joined(ends))
}

#[cfg(feature = "xdp")]
fn through_frames(joined: &Joined) {
    let open = |n: usize| {
        let config = DeviceConfig::caller_only();
        let open = || Device::open_xdp(&XdpConfig::new("veth0"), &lossy(n as u64 + 1), &config);
        joined.0[n].run(open).expect("the namespace").expect("an xdp device")
    };
    let (local, remote) = (open(0), open(1));
    assert_no_allocation("xdp", &local, &remote);
}

fn through_packets(joined: &Joined) {
    let open = |n: usize| {
        let config = DeviceConfig::caller_only();
        let open = || Device::open_packet(&PacketConfig::new("veth0"), &lossy(n as u64 + 1), &config);
        joined.0[n].run(open).expect("the namespace").expect("a packet device")
    };
    let (local, remote) = (open(0), open(1));
    assert_no_allocation("packet", &local, &remote);
}

fn through_sockets(joined: &Joined) {
    let open = |n: usize| {
        let udp =
            UdpConfig { addresses: vec![IpAddr::from([10, 78, 0, n as u8 + 1])], ..UdpConfig::default() };
        let open = || Device::open_udp(&udp, &lossy(n as u64 + 1), &DeviceConfig::caller_only());
        joined.0[n].run(open).expect("the namespace").expect("a udp device")
    };
    let (local, remote) = (open(0), open(1));
    assert_no_allocation("udp", &local, &remote);
}

#[test]
fn data_path_allocates_nothing_under_loss() {
    through_memory();
    match join() {
        Ok(joined) => {
            through_sockets(&joined);
            through_packets(&joined);
            #[cfg(feature = "xdp")]
            through_frames(&joined);
        }
        Err(why) => {
            println!("SKIP data_path_allocates_nothing_under_loss (udp, packet, xdp): {why}");
        }
    }
}
