//! A link that loses frames, in virtual time: how the transport recovers, the same in each run.
//!
//! ```text
//! cargo run --example lossy_link            seed 1
//! cargo run --example lossy_link -- 7       another one
//! ```
//!
//! The NIC reads no clock and draws no random numbers, so a whole NIC runs in a test: time is an argument, and a seed
//! decides which frames are lost. Here one WRITE of 256 KiB crosses a link that loses one frame in fifty. Nothing
//! waits: a second of retransmission timers takes milliseconds.

use std::error::Error;

use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, RKey, SendWr};
use roxie_sim::{Connected, Host, NicConfig, Pair, Payload, joined_ports};

const LENGTH: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let seed: u64 = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    // Two ports with a link in memory. The first one loses some of the frames that it sends.
    let (local, remote) = joined_ports(1500, None);
    let faults: FaultConfig = format!("drop=0.02,dir=tx,seed={seed}").parse()?;
    let local = Box::new(FaultPort::new(local, &faults));
    let config = |seed| NicConfig { seed, ..NicConfig::default() };
    let mut pair = Pair::new(Host::new(1, config(1), local), Host::new(2, config(2), remote));

    let [a, b] = [&mut pair.a, &mut pair.b].map(|host| {
        let region = host.register(LENGTH, Access::READ_WRITE);
        (host.queue_pair().signal_all().create(), region)
    });
    let ((qp_a, from), (qp_b, to)) = (a, b);
    let way = pair.a.path(2, false);
    let connected =
        Connected { peer: qp_b.handle.qpn, path: way, path_mtu: Mtu::Mtu1024, timeout: 10, rd_atomic: 1 };
    pair.a.connect(&qp_a, &connected)?;
    let back = Connected { peer: qp_a.handle.qpn, path: pair.b.path(1, false), ..connected };
    pair.b.connect(&qp_b, &back)?;

    let write = SendWr::write(to.address, RKey(to.key)).signaled();
    pair.a.post_send(&qp_a, &write, Payload::Sges(&[from.sge(0, LENGTH as u32)]))?;
    if !pair.run(Nanos::from_millis(60_000)) {
        return Err("it has not come to an end in a minute of virtual time".into());
    }
    pair.a.poll_cq(&qp_a).ok_or("no completion")?.ok()?;
    println!(
        "seed {seed}: {LENGTH} bytes crossed in {} of virtual time; {} packets were sent, {} of them again; {} frames were lost",
        pair.now,
        pair.a.counter("sent_pkts"),
        pair.a.counter("retransmitted_packets"),
        pair.a.counter("fault_tx_dropped"),
    );
    Ok(())
}
