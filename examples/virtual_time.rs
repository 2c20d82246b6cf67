//! A program of the device's API on a simulated network, in virtual time: the same run each time.
//!
//! ```text
//! cargo run --example virtual_time            100 Gb/s
//! cargo run --example virtual_time -- 400     another rate, in Gb/s
//! ```
//!
//! Four hosts read from a fifth one at the same moment, over one switch. The devices are those that a program opens on
//! an interface; here the network's events run them, and a clock that stands still between two events is theirs.
//! Nothing waits in real time, and no privilege is needed: a test of a program may run this way.

use std::error::Error;

use roxie::host::{CompletionQueue, ConnectOptions, Device, DeviceConfig, QueuePair, Stack};
use roxie::time::Nanos;
use roxie::verbs::{Access, SendWr};
use roxie_sim::Host;
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, SwitchConfig,
};

const READERS: usize = 4;
const LENGTH: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let gbps: u64 = std::env::args().nth(1).map_or(Ok(100), |text| text.parse())?;
    // Cables of 100 m.
    let link = LinkConfig::new(LinkRate::from_gbps(gbps), Nanos(500));
    let stations = (0..=READERS).map(|n| StationConfig::new(Host::mac(n as u16 + 1), link)).collect();
    let switch = SwitchConfig::new(FabricConfig::ports(READERS + 1, &PortConfig::new(link)));
    let mut fabric = Fabric::new(FabricConfig::star(stations, switch))?;

    let mut open = |n| Device::in_fabric(&mut fabric, n, &Stack::default(), &DeviceConfig::default());
    let server = open(READERS)?;
    let pd = server.alloc_pd()?;
    let cq = server.create_cq(16, None)?;
    let source = pd.register(LENGTH, Access::REMOTE_READ)?;
    source.write_at(0, &vec![0x5a; LENGTH])?;

    let mut ends: Vec<(CompletionQueue, QueuePair, QueuePair)> = Vec::new();
    let mut copies = Vec::new();
    for n in 0..READERS {
        let device = open(n)?;
        let (own_pd, own_cq) = (device.alloc_pd()?, device.create_cq(16, None)?);
        let (qp, remote) = (own_pd.queue_pair(&own_cq).create()?, pd.queue_pair(&cq).create()?);
        let (here, there) = (qp.endpoint(0)?, remote.endpoint(0)?);
        qp.connect(&here, &there, &ConnectOptions::default())?;
        remote.connect(&there, &here, &ConnectOptions::default())?;
        let copy = own_pd.register(LENGTH, Access::LOCAL_WRITE)?;
        let read = SendWr::read(source.address(), source.rkey()).signaled();
        qp.post_send(&read, &[copy.sge(0, LENGTH as u32)])?;
        copies.push(copy);
        ends.push((own_cq, qp, remote));
    }

    fabric.run(Nanos::from_millis(1_000));
    let mut last = Nanos::ZERO;
    for (n, ((cq, ..), copy)) in ends.iter().zip(&copies).enumerate() {
        let (completion, at) = cq.poll_timed().ok_or("no completion within a second of virtual time")?;
        completion.ok()?;
        println!("reader {n}: {LENGTH} bytes read at {at}");
        assert_eq!(copy.to_vec(0, LENGTH)?, vec![0x5a; LENGTH], "the bytes of the server");
        last = last.max(at);
    }
    let rate = (READERS * LENGTH) as f64 * 8.0 / last.0 as f64;
    println!("{rate:.1} Gb/s of data from the server, whose link has {gbps} Gb/s");
    Ok(())
}
