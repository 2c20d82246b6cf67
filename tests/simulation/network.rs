//! The network of a run: hosts on a switch without delay, and faults on the links from the switch to the hosts.

use roxie::time::Nanos;
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, Step, SwitchConfig,
};

use crate::script::Script;
use crate::stations::Stations;
use crate::weather::{Forecast, Records};
use crate::world::World;

/// Delay of a frame from the switch to its host. The link to the switch has no delay, so a frame sees address changes
/// at once.
const DELAY: Nanos = Nanos(1_000);

/// Builds the network of a script, without hosts.
pub fn of(script: &Script, records: &Records) -> Fabric {
    let (hosts, addresses) = (&script.hosts, Stations::new(&script.hosts));
    let link = |delay| LinkConfig::new(LinkRate::UNBOUNDED, delay);
    let station = |number| StationConfig {
        mtu: hosts.link_mtu,
        slots: hosts.slots,
        split: hosts.split,
        ..StationConfig::new(addresses.mac(number), link(Nanos::ZERO))
    };
    let switch = SwitchConfig::new(FabricConfig::ports(hosts.count, &PortConfig::new(link(DELAY))));
    let stations = (0..hosts.count).map(station).collect();
    let mut fabric = Fabric::new(FabricConfig::star(stations, switch)).expect("a network");
    if !script.weather.is_empty() {
        fabric.set_frame_faults(Box::new(Forecast::new(script.seed, &script.weather, records.clone())));
    }
    fabric
}

impl World<'_> {
    /// Runs the NICs with new work, then advances to the next NIC pass before `limit`. Returns false if there is none;
    /// the clock is then at `limit`.
    pub fn pass(&mut self, limit: Nanos) -> bool {
        let now = self.net.now();
        for host in 0..self.script.hosts.count {
            if self.net.hosts()[host].is_due(now) {
                self.net.flush(host);
                self.net.host(host);
            }
        }
        let before = if limit == Nanos::MAX { limit } else { Nanos(limit.0.saturating_sub(1)) };
        let (mut until, mut alive) = (before.max(now), false);
        while let Some(step) = self.net.step(until) {
            if let Step::Turned { station, .. } = step {
                self.check_account(station);
                (until, alive) = (self.net.now(), true);
            }
        }
        if !alive && limit != Nanos::MAX {
            self.net.jump(limit.since(self.net.now()));
        }
        alive
    }

    /// Checks the redundant state of every NIC.
    pub fn check_accounts(&self) {
        (0..self.script.hosts.count).for_each(|host| self.check_account(host));
    }

    /// Checks the redundant state of a NIC: reference counts, queue membership, timers.
    fn check_account(&self, host: usize) {
        if let Some(wrong) = self.net.hosts()[host].worker.nic().inconsistency() {
            panic!("host {} at {}: {wrong}", host + 1, self.net.now());
        }
    }
}
