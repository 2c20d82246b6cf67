//! Workers of a device on AF_XDP, on a veth pair.

use roxie::host::PortPlan;
use roxie::port::xdp::Mode;

use super::*;
use crate::wire::{Wire, skip};

/// A worker on each receive queue of the interface. With crossed QPs every frame arrives at the other worker, which has
/// the other queue.
#[test]
fn receive_queues_of_xdp_have_workers() {
    if skip("receive_queues_of_xdp_have_workers") {
        return;
    }
    let wire = Wire::new("workers", 1500, 2);
    let drive = Drive::Thread { core: None, spin: Nanos(10_000) };
    let open = |cores: usize, name: &str| {
        let config = DeviceConfig { drive, cores: (0..cores).collect(), ..DeviceConfig::default() };
        let namespace = if name == "left" { &wire.a } else { &wire.b };
        // The claim opens the port.
        let opened = || {
            let device = Device::open_unclaimed(name, PortPlan::Xdp(Mode::Auto), Stack::default(), &config);
            let device = device.expect("the interface");
            device.claim().map(|()| device)
        };
        namespace.run(opened).expect("the namespace").expect("a device")
    };
    for shift in [0, 1] {
        // Three cores get as many workers as there are queues.
        let [local, remote] = [open(2, "left"), open(3, "right")].map(|device| End::new(&device));
        let workers = remote.device.workers().unwrap().all();
        assert_eq!(workers.len(), 2);
        connect(&local, &remote, shift);
        exchange(&local, &remote, shift);
        for engine in workers {
            let received = engine
                .inspect(|worker| worker.counters().iter().find(|(name, _)| *name == "rx_packets").copied());
            assert!(received.is_some_and(|(_, packets)| packets > 20), "{received:?}");
        }
        let crossed = [&local, &remote].map(|end| end.count("rx_redirected") > 20);
        assert_eq!(crossed, [shift == 1; 2]);
    }
}
