//! Real frames through a simulated switch, between namespaces.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4Tos, RcvBufForce};
use nix::unistd::geteuid;
use roxie::netdev::{IfAddr, Links, NetNs, Tap};
use roxie::time::Nanos;
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, SwitchConfig, Threshold,
};
use roxie_sim::forward::Forwarder;

const PORT: u16 = 4791;
const PAYLOAD: usize = 1000;
/// Bytes on the wire: payload, Ethernet, IP and UDP headers, FCS, preamble and gap.
const WIRE: u64 = PAYLOAD as u64 + 14 + 20 + 8 + 24;

fn mac(station: usize) -> [u8; 6] {
    [2, 0, 0, 0, 9, station as u8 + 1]
}

fn address(station: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, station as u8 + 1)
}

/// Namespaces with interfaces that are the stations of a switch, and a thread that runs the switch.
struct Site {
    namespaces: Vec<NetNs>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Forwarder>>,
}

impl Site {
    fn new(
        test: &str,
        stations: usize,
        rate: LinkRate,
        change: impl FnOnce(&mut SwitchConfig),
    ) -> Option<Site> {
        if !geteuid().is_root() {
            println!("SKIP {test}: needs root");
            return None;
        }
        let link = LinkConfig::new(rate, Nanos::from_micros(100));
        let station = |n| StationConfig { mtu: 1500, ..StationConfig::new(mac(n), link) };
        let mut switch = SwitchConfig::new(FabricConfig::ports(stations, &PortConfig::new(link)));
        change(&mut switch);
        let config = FabricConfig::star((0..stations).map(station).collect(), switch);
        let fabric = Fabric::new(config).expect("a fabric");
        let namespaces: Vec<_> = (0..stations).map(|_| NetNs::unnamed().expect("a namespace")).collect();
        let taps = namespaces.iter().enumerate().map(|(n, ns)| tap(ns, n, stations)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut forwarder = Forwarder::new(fabric, taps);
            forwarder.run(|_| stopped.load(Ordering::Relaxed)).expect("interfaces");
            forwarder
        });
        Some(Site { namespaces, stop, thread: Some(thread) })
    }

    fn socket(&self, station: usize) -> UdpSocket {
        let socket = self.namespaces[station].run(|| UdpSocket::bind((address(station), PORT)));
        let socket = socket.expect("a namespace").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
        socket
    }

    fn stop(mut self) -> Forwarder {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().expect("no panic")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates an interface with an address and with entries for its neighbours.
fn tap(ns: &NetNs, number: usize, stations: usize) -> Tap {
    let tap = ns.run(|| Tap::open("rdma")).expect("a namespace").expect("a tap");
    let mut links = Links::open_in(ns).expect("netlink");
    links.set_mac("rdma", mac(number)).expect("an address");
    links.add_address("rdma", IfAddr { ip: IpAddr::V4(address(number)), prefix: 24 }).expect("an address");
    links.set_up("rdma", true).expect("a link");
    for other in (0..stations).filter(|other| *other != number) {
        links.add_neighbour("rdma", address(other).into(), mac(other)).expect("a neighbour");
    }
    tap
}

fn payload(number: usize) -> Vec<u8> {
    let mut payload = vec![number as u8; PAYLOAD];
    payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
    payload
}

#[test]
fn frames_arrive_intact_in_order_on_time() {
    let rate = LinkRate::from_mbps(20);
    let Some(site) = Site::new("frames_arrive_intact_in_order_on_time", 2, rate, |_| {}) else {
        return;
    };
    let (from, to) = (site.socket(0), site.socket(1));
    let start = Instant::now();
    for number in 0..40 {
        from.send_to(&payload(number), (address(1), PORT)).expect("room");
    }
    let mut bytes = [0; 2000];
    for number in 0..40 {
        let (length, source) = to.recv_from(&mut bytes).expect("a datagram");
        assert_eq!((length, source.ip()), (PAYLOAD, IpAddr::V4(address(0))));
        assert_eq!(bytes[..length], payload(number), "datagram {number}");
        // Store and forward: the time of one more frame, and two cables. A slow machine can only be later.
        let least = rate.nanos_for(WIRE * (number as u64 + 2)) + Nanos::from_micros(200);
        let took = Nanos::from(start.elapsed());
        assert!(took >= least, "datagram {number} after {took}, sooner than {least}");
    }
    let forwarder = site.stop();
    assert!(forwarder.lateness().len() >= 40);
    assert_eq!(forwarder.refused(), 0);
}

#[test]
fn only_frames_dropped_by_the_queue_vanish() {
    const FRAMES: usize = 200;
    let name = "only_frames_dropped_by_the_queue_vanish";
    // At a low rate, frames wait in rings for most of a second, so that delays of the senders do not matter.
    let site = Site::new(name, 3, LinkRate::from_mbps(2), |switch| switch.lossy = Threshold::Static(20_000));
    let Some(site) = site else { return };
    let senders = [site.socket(0), site.socket(1)];
    let to = site.socket(2);
    setsockopt(&to, RcvBufForce, &(4 << 20)).expect("root");
    // Class selector 3: the kernel's own packets are in other queues.
    senders.iter().for_each(|from| setsockopt(from, Ipv4Tos, &(3 << 5)).expect("a class"));
    // Faster than the queue drains, but not so fast that the rings fill.
    for number in 0..FRAMES {
        for from in &senders {
            from.send_to(&payload(number), (address(2), PORT)).expect("room");
        }
    }
    to.set_read_timeout(Some(Duration::from_millis(1500))).expect("a time");
    let mut received = 0;
    let mut bytes = [0; 2000];
    while to.recv_from(&mut bytes).is_ok() {
        received += 1;
    }
    let forwarder = site.stop();
    let switch = forwarder.fabric().switch(0);
    let queue = switch.queue(2, 3);
    let dropped = queue.drops.all();
    assert!(dropped > 100, "{dropped}");
    assert_eq!((queue.offered, queue.queued()), (2 * FRAMES as u64, 0));
    assert_eq!((received, received + dropped), (queue.sent, queue.offered));
}
