//! Two network namespaces with a veth pair between them.
//!
//! Targets include this file by its path, and each uses a part of it.
#![allow(dead_code, reason = "each target uses a part")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roxie::netdev::{Interface, Links, NetNs};

use crate::{A, Finished, LIMIT, Running, roxie, run};

/// Only one pair of polling processes runs at a time: the machine may have two cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to run programs that poll.
pub(crate) type Turn = MutexGuard<'static, ()>;

/// Waits for the turn of a test with network namespaces; `None`, with a message, if these are not possible here.
pub(crate) fn turn(test: &str) -> Option<Turn> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP {test}: network namespaces need root");
        return None;
    }
    Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

/// `left` with 192.0.2.1 and 2001:db8::1 in `a`, `right` with 192.0.2.2 and 2001:db8::2 in `b`.
pub(crate) struct Net {
    pub(crate) a: NetNs,
    pub(crate) b: NetNs,
    _turn: Turn,
}

impl Net {
    /// Creates the network; `None`, with a message, if that is not possible here.
    pub(crate) fn new(test: &str) -> Option<Net> {
        let turn = turn(test)?;
        let a = NetNs::create(&format!("{test}-a")).unwrap();
        let b = NetNs::create(&format!("{test}-b")).unwrap();
        let mut left = Links::open_in(&a).unwrap();
        left.create_veth("left", &b, "right", 1).unwrap();
        let mut right = Links::open_in(&b).unwrap();
        for (links, name, ips) in [
            (&mut left, "left", ["192.0.2.1/24", "2001:db8::1/64"]),
            (&mut right, "right", ["192.0.2.2/24", "2001:db8::2/64"]),
        ] {
            for ip in ips {
                links.add_address(name, ip.parse().unwrap()).unwrap();
            }
            links.set_up(name, true).unwrap();
        }
        Some(Net { a, b, _turn: turn })
    }

    /// Starts a server at the left and waits until it listens.
    pub(crate) fn serve(&self, arguments: &str) -> Running {
        let mut server = self.start_left(arguments);
        server.wait_for("waiting for a peer");
        server
    }

    pub(crate) fn start_left(&self, arguments: &str) -> Running {
        self.a.run(|| Running::start(roxie(arguments))).unwrap()
    }

    pub(crate) fn start_right(&self, arguments: &str) -> Running {
        self.b.run(|| Running::start(roxie(arguments))).unwrap()
    }

    /// Waits until a device at the left has received `packets` packets.
    pub(crate) fn wait_until_left_has_received(&self, packets: u64) {
        let until = Instant::now() + LIMIT;
        loop {
            let snapshots = self.a.run(roxie::host::inspect::snapshots).unwrap().unwrap();
            let received = snapshots.snapshots.iter().filter_map(|device| device.counters.get("rcvd_pkts"));
            if received.max().is_some_and(|received| *received >= packets) {
                return;
            }
            assert!(Instant::now() < until, "fewer than {packets} packets: {snapshots:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn left(&self, arguments: &str) -> Finished {
        self.a.run(|| run(arguments)).unwrap()
    }

    pub(crate) fn right(&self, arguments: &str) -> Finished {
        self.b.run(|| run(arguments)).unwrap()
    }

    /// Runs a server at the left and a client at the right to their ends.
    pub(crate) fn both(&self, server: &str, client: &str) -> (Finished, Finished) {
        let server = self.serve(server);
        let client = self.right(&format!("{client} {A}"));
        (server.finish(), client)
    }

    /// Asserts that no program is attached to the interfaces.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        for (ns, name) in [(&self.a, "left"), (&self.b, "right")] {
            let interface = ns.run(|| Interface::by_name(name)).unwrap().unwrap();
            assert_eq!(interface.xdp_program, None, "{name} still has an XDP program");
        }
    }
}
