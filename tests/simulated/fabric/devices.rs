//! Devices of the application's API in virtual time.

use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, MemoryRegion, QueuePair, Stack,
};
use roxie::time::Nanos;
use roxie::verbs::{Access, Psn, QpState, RKey, SendWr, WcStatus};
use roxie_sim::fabric::{Arrival, End, Fabric, FrameFaults};
use roxie_sim::{Connected, Host, NicConfig};

use super::{star, switch};

const LENGTH: u32 = 256 << 10;

/// A device with its objects: those of one end of a connection.
struct Ended {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

fn end(fabric: &mut Fabric, station: usize, stack: &Stack) -> Ended {
    let device = Device::in_fabric(fabric, station, stack, &DeviceConfig::default()).expect("a device");
    let pd = device.alloc_pd().expect("a protection domain");
    let cq = device.create_cq(16, None).expect("a queue");
    let qp = pd.queue_pair(&cq).create().expect("a QP");
    let memory = pd.register(LENGTH as usize, Access::READ_WRITE).expect("memory");
    Ended { device, cq, qp, memory }
}

fn pair(fabric: &mut Fabric, stack: &Stack) -> (Ended, Ended) {
    let (a, b) = (end(fabric, 0, stack), end(fabric, 1, &Stack::default()));
    let (here, there) = (a.qp.endpoint(0).expect("a GID"), b.qp.endpoint(0).expect("a GID"));
    a.qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
    b.qp.connect(&there, &here, &ConnectOptions::default()).expect("connected");
    (a, b)
}

impl Ended {
    fn write(&self, to: &MemoryRegion, length: u32) {
        let write = SendWr::write(to.address(), to.rkey()).signaled();
        self.qp.post_send(&write, &[self.memory.sge(0, length)]).expect("room");
    }

    fn counter(&self, name: &str) -> u64 {
        let engine = self.device.engine().expect("an engine of this process");
        let all = engine.inspect(|worker| worker.counters());
        all.iter().find(|(known, _)| *known == name).expect("a counter").1
    }
}

/// Loses every 37th frame to station 1: a number that no retransmission has of frames, or the same one would be lost
/// again.
#[derive(Debug, Default)]
struct Lossy(u32);

impl FrameFaults for Lossy {
    fn judge(&mut self, _: Nanos, to: End, _: &[u8], arrivals: &mut Vec<Arrival>) {
        self.0 += u32::from(to == End::Station(1));
        if to != End::Station(1) || !self.0.is_multiple_of(37) {
            arrivals.push(Arrival::default());
        }
    }
}

/// Writes over a link with losses. Returns the time of the completion, packets sent and retransmitted, and the
/// capture's length.
fn cross() -> (Nanos, u64, u64, u64) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let stack = Stack { capture: Some(file.path().into()), ..Stack::default() };
    let mut fabric = star(2, switch(2));
    let (a, b) = pair(&mut fabric, &stack);
    fabric.set_frame_faults(Box::<Lossy>::default());
    let bytes: Vec<u8> = (0..LENGTH).map(|n| (n % 251) as u8).collect();
    a.memory.write_at(0, &bytes).expect("within the region");
    a.write(&b.memory, LENGTH);
    let done = loop {
        fabric.step(Nanos::from_millis(60_000)).expect("an event within a minute of virtual time");
        if let Some((wc, time)) = a.cq.poll_timed() {
            wc.ok().expect("success");
            break time;
        }
    };
    assert_eq!(b.memory.to_vec(0, LENGTH as usize).expect("within the region"), bytes);
    assert_eq!(fabric.now(), done, "a completion has the time of its pass");
    let (sent, again) = (a.counter("sent_pkts"), a.counter("retransmitted_packets"));
    // The capture is complete when nothing uses the device any more.
    drop((fabric, a, b));
    (done, sent, again, file.path().metadata().expect("a file").len())
}

#[test]
fn devices_in_virtual_time_repeat_a_run() {
    let first = cross();
    assert!(first.2 > 0 && first.3 > u64::from(LENGTH), "frames were lost, and captured: {first:?}");
    assert_eq!(cross(), first);
}

#[test]
fn unanswered_request_fails_in_virtual_time() {
    let mut fabric = star(2, switch(2));
    let (a, b) = pair(&mut fabric, &Stack::default());
    assert!(fabric.run(Nanos::from_millis(1)), "nothing is pending before the first request");
    fabric.plug(1, false);
    a.write(&b.memory, 64);
    assert!(a.cq.poll_one().is_none(), "no pass runs between two steps");
    assert!(fabric.run(Nanos::from_millis(600_000)), "the retries end");
    let (wc, time) = a.cq.poll_timed().expect("a completion");
    assert_eq!((wc.status, a.qp.query().expect("its status").state), (WcStatus::RetryExc, QpState::Err));
    let attempts = 1 + u64::from(ConnectOptions::default().retry_cnt);
    assert!(time > Nanos::from_millis(60 * attempts), "each try took a timeout: {time}");
    assert_eq!(a.counter("retransmitted_packets"), attempts - 1);
}

#[test]
fn device_and_simulated_host_exchange_data() {
    let mut fabric = star(2, switch(2));
    let a = end(&mut fabric, 0, &Stack::default());
    let port = fabric.port(1);
    fabric.attach(1, Host::new(2, NicConfig::default(), Box::new(port)));
    let host = fabric.host(1);
    let region = host.register(LENGTH as usize, Access::READ_WRITE);
    let qp = host.queue_pair().signal_all().create();
    // Simulated hosts connect with PSN 0 at both ends.
    let here = Endpoint { psn: Psn::new(0), ..a.qp.endpoint(0).expect("a GID") };
    let path_mtu = a.device.largest_mtu();
    let peer = Endpoint { qpn: qp.handle.qpn, gid: Host::address(2, false).into(), ..here };
    let connected =
        Connected { peer: here.qpn, path: host.path(1, false), path_mtu, timeout: 14, rd_atomic: 1 };
    host.connect(&qp, &connected).expect("connected");
    a.qp.connect(&here, &peer, &ConnectOptions::default()).expect("connected");
    region.memory.write(0, b"of the host").expect("within the region");
    let read = SendWr::read(region.address, RKey(region.key)).signaled();
    a.qp.post_send(&read, &[a.memory.sge(0, 11)]).expect("room");
    fabric.run(Nanos::from_millis(1));
    a.cq.poll_one().expect("a completion").ok().expect("success");
    assert_eq!(a.memory.to_vec(0, 11).expect("within the region"), b"of the host");
}
