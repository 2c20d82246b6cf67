//! Ports stacked as a NIC stacks them; none allocates once it is warm.

use std::io::{self, Write};
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use roxie::port::fault::{Action, Direction, Fault, FaultConfig, FaultPort, When};
use roxie::port::loopback::LoopbackPort;
use roxie::port::memory::{self, MemoryConfig};
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

/// A capture file in memory.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn contains(&self, text: &str) -> bool {
        self.0.lock().unwrap().windows(text.len()).any(|w| w == text.as_bytes())
    }
}

fn send(port: &mut dyn Port, frames: &[&[u8]], now: Nanos) {
    for bytes in frames {
        let id = port.tx_alloc(bytes.len()).expect("room");
        port.tx_frame(&id).write(0, bytes);
        port.tx_arrange();
        port.tx_note(&id, format_args!("sent {} bytes", bytes.len()));
        port.tx_commit(id);
    }
    port.tx_flush(now).expect("a flush");
}

fn receive(port: &mut dyn Port, now: Nanos) -> Vec<Vec<u8>> {
    let n = port.rx_burst(now);
    let frames: Vec<_> = (0..n).map(|i| port.rx_frame(i).frame.to_vec()).collect();
    for i in 0..n {
        port.rx_note(i, format_args!("received as {i}"));
    }
    port.rx_release();
    frames
}

fn to(mac: [u8; 6], text: &str) -> Vec<u8> {
    [&mac[..], text.as_bytes()].concat()
}

#[test]
fn capture_sees_own_traffic_and_faults() {
    let ends = |mac| MemoryConfig { mac, ..MemoryConfig::default() };
    let (a, mut b) = memory::pair(ends(OWN), ends(PEER));
    let second = Fault { action: Action::Drop, when: When::Nth(2) };
    let faulty = FaultPort::new(a, &FaultConfig::default())
        .with_rule(Direction::Tx, second, |frame| frame.a.ends_with(b"marked"));
    let file = Shared::default();
    let mut port = PcapPort::new(LoopbackPort::new(faulty, 16), file.clone(), Timestamps::Virtual, None)
        .expect("a file");
    assert_eq!(port.info().name, "pcap(loopback(fault(memory)))");

    let frames = [to(PEER, "1 marked"), to(OWN, "to myself"), to(PEER, "2 marked"), to(PEER, "3 marked")];
    send(&mut port, &frames.iter().map(|f| &f[..]).collect::<Vec<_>>(), Nanos(10));
    assert_eq!(receive(&mut b, Nanos(10)), [&frames[0][..], &frames[3][..]], "the second marked one is lost");
    assert_eq!(receive(&mut port, Nanos(20)), [&frames[1][..]], "own traffic needs no link");
    assert!(file.contains("2 marked") && file.contains("to myself") && file.contains("received as 0"));
}

#[test]
fn boxed_stack_works_as_port() {
    let (a, mut b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let mut port: Box<dyn Port> = Box::new(FaultPort::new(a, &FaultConfig::parse("rx.drop=nth1").unwrap()));
    port = Box::new(LoopbackPort::new(port, 4));
    send(&mut b, &[b"lost", b"kept"], Nanos::ZERO);
    assert_eq!(receive(&mut port, Nanos::ZERO), [b"kept"]);
}

/// Moves `rounds` bursts from `a` to `b` and reads each frame.
fn pump(a: &mut dyn Port, b: &mut dyn Port, frame: &[u8], rounds: u64) -> usize {
    let mut moved = 0;
    for round in 0..rounds {
        let now = Nanos(round * 1_000);
        for _ in 0..BURST {
            let Some(id) = a.tx_alloc(frame.len()) else { break };
            a.tx_frame(&id).write(0, frame);
            a.tx_arrange();
            a.tx_note(&id, format_args!("round {round}"));
            a.tx_commit(id);
        }
        a.tx_flush(now).expect("a flush");
        a.rx_burst(now);
        a.rx_release();
        for _ in 0..8 {
            let n = b.rx_burst(now);
            for i in 0..n {
                moved += usize::from(!b.rx_frame(i).frame.is_empty());
                b.rx_note(i, format_args!("frame {i}"));
            }
            b.rx_release();
        }
    }
    moved
}

fn allocations_when_warm(a: &mut dyn Port, b: &mut dyn Port, frame: &[u8]) -> (u64, usize) {
    pump(a, b, frame, 200);
    let before = crate::allocations();
    let moved = pump(a, b, frame, 200);
    (crate::allocations() - before, moved)
}

#[test]
fn warm_port_stack_allocates_nothing() {
    let (a, b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let faults = "drop=0.05,duplicate=0.1,corrupt=0.1,reorder=0.1:3,delay=0.1:5us,seed=3";
    let faulty = |port| FaultPort::new(port, &FaultConfig::parse(faults).unwrap());
    let stack = |port| {
        let port = LoopbackPort::new(faulty(port), 64);
        PcapPort::new(port, io::sink(), Timestamps::Virtual, None).expect("a sink")
    };
    let (mut a, mut b) = (stack(a), stack(b));
    let (allocations, moved) = allocations_when_warm(&mut a, &mut b, &to(PEER, "a frame of some length"));
    assert!(moved > 100 * BURST, "{moved} frames");
    assert_eq!(allocations, 0);
}

#[test]
fn warm_udp_port_allocates_nothing() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let open = |address: [u8; 4]| {
        let config = UdpConfig { addresses: vec![IpAddr::from(address)], port, ..UdpConfig::default() };
        UdpPort::open(&config).expect("a port")
    };
    let (mut a, mut b) = (open([127, 0, 0, 1]), open([127, 0, 0, 2]));
    let mut frame = vec![0; 42 + 100];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[127, 0, 0, 1, 127, 0, 0, 2]);
    frame[34..36].copy_from_slice(&0xc000u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[39] = 108;
    let (allocations, moved) = allocations_when_warm(&mut a, &mut b, &frame);
    assert_eq!((allocations, moved), (0, 200 * BURST));
}
