//! Two hosts on one switch in virtual time, connected by a queue pair at each, with captures at both.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use roxie::limits::Limits;
use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, QpAttr, QpCaps, SendWr, Wc};
use roxie_report::failure::Failure;
use roxie_report::ladder::{self, Ladder, Style};
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, SwitchConfig,
};
use roxie_sim::{Connected, Host, HostQp, HostRegion, NicConfig, Payload};

use super::document;

/// Names of the ends in a ladder.
pub(super) const NAMES: [&str; 2] = ["requester", "responder"];

/// Most lines of a ladder; a storm would have many more.
const LINES: usize = 80;

/// Parameters of a stage.
pub(super) struct Scene {
    /// Rate of both links.
    pub(super) rate: LinkRate,
    /// Length of both cables in metres.
    pub(super) metres: u64,
    /// Faults at each end, next to its link.
    pub(super) faults: [Option<FaultConfig>; 2],
    /// Bytes of the region at each end.
    pub(super) memory: usize,
    pub(super) path_mtu: Mtu,
    /// Local ACK timeout code: 4.096 us * 2^code.
    pub(super) timeout: u8,
    /// READs and atomics outstanding.
    pub(super) rd_atomic: u8,
}

impl Default for Scene {
    fn default() -> Scene {
        Scene {
            rate: LinkRate::from_gbps(100),
            metres: 5,
            faults: [None, None],
            memory: 1 << 20,
            path_mtu: Mtu::Mtu1024,
            timeout: 8,
            rd_atomic: 4,
        }
    }
}

/// Returns the delay of a cable: 5 ns a metre, for fibre and copper.
pub(super) fn cable(metres: u64) -> Nanos {
    Nanos(metres * 5)
}

/// The bytes of a capture.
#[derive(Clone, Default)]
struct Film(Arc<Mutex<Vec<u8>>>);

impl Write for Film {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two connected hosts. Station 0 is the requester, station 1 the responder.
pub(super) struct Stage {
    pub(super) fabric: Fabric,
    pub(super) qps: [HostQp; 2],
    pub(super) regions: [HostRegion; 2],
    films: [Film; 2],
}

impl Stage {
    /// Returns a stage with the queue pairs in RTS and nothing posted.
    ///
    /// # Errors
    ///
    /// If the fabric or the NIC refuses.
    pub(super) fn new(scene: &Scene) -> Result<Stage, Failure> {
        Stage::with(scene, |_, steps| steps)
    }

    /// Returns a stage with changed attributes: `change` gets the end's index and the attributes of its transitions.
    ///
    /// # Errors
    ///
    /// If the fabric or the NIC refuses.
    pub(super) fn with(
        scene: &Scene,
        change: impl Fn(usize, [QpAttr; 3]) -> [QpAttr; 3],
    ) -> Result<Stage, Failure> {
        let refused =
            |error: &dyn std::fmt::Display| Failure::Run(format!("the simulated NIC refuses: {error}"));
        let link = LinkConfig::new(scene.rate, cable(scene.metres));
        let station = |n: u16| StationConfig::new(Host::mac(n + 1), link);
        let switch = SwitchConfig::new(FabricConfig::ports(2, &PortConfig::new(link)));
        let config = FabricConfig::star(vec![station(0), station(1)], switch);
        let mut fabric = Fabric::new(config).map_err(|e| refused(&e))?;
        let films = [Film::default(), Film::default()];
        for (n, film) in films.iter().enumerate() {
            let faults = scene.faults[n].clone().unwrap_or_default();
            let port = FaultPort::new(fabric.port(n), &faults);
            let port = PcapPort::new(port, film.clone(), Timestamps::Virtual, None)
                .map_err(|e| Failure::Run(format!("a capture in memory: {e}")))?;
            let nic = NicConfig {
                limits: Limits::small(),
                seed: n as u64 + 1,
                largest_mtu: scene.path_mtu,
                ..NicConfig::default()
            };
            fabric.attach(n, Host::new(n as u16 + 1, nic, Box::new(port)));
        }
        let caps = QpCaps { max_send_wr: 64, max_recv_wr: 64, max_inline: 64, ..QpCaps::default() };
        let qps =
            [0, 1].map(|n| fabric.host(n).queue_pair().caps(caps).signal_all().cq_entries(256).create());
        let regions = [0, 1].map(|n| fabric.host(n).register(scene.memory, Access::READ_WRITE));
        for (n, peer) in [(0, 1), (1, 0)] {
            let host = fabric.host(n);
            let told = Connected {
                peer: qps[peer].handle.qpn,
                path: host.path(peer as u16 + 1, false),
                path_mtu: scene.path_mtu,
                timeout: scene.timeout,
                rd_atomic: scene.rd_atomic,
            };
            let qp_type = host.query(Nanos::ZERO, &qps[n]).qp_type;
            for attr in change(n, told.steps(qp_type)) {
                host.modify(Nanos::ZERO, &qps[n], &attr).map_err(|e| refused(&e))?;
            }
        }
        Ok(Stage { fabric, qps, regions, films })
    }

    /// Posts a work request on the requester.
    ///
    /// # Errors
    ///
    /// If its queue is full.
    pub(super) fn post(&mut self, wr: &SendWr, payload: Payload<'_>) -> Result<(), Failure> {
        Ok(self.fabric.host(0).post_send(&self.qps[0], wr, payload)?)
    }

    /// Runs until `limit`, or until nothing is left to happen. Returns true in the latter case.
    pub(super) fn run(&mut self, limit: Nanos) -> bool {
        self.fabric.run(limit)
    }

    /// Runs until the requester has a completion; `None` if there is none by `limit`.
    pub(super) fn completion(&mut self, limit: Nanos) -> Option<(Nanos, Wc)> {
        loop {
            if let Some(wc) = self.fabric.hosts()[0].poll_cq(&self.qps[0]) {
                return Some((self.fabric.now(), wc));
            }
            self.fabric.step(limit)?;
        }
    }

    /// Runs until the requester has a completion, for at most a minute of virtual time.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn completed(&mut self) -> Result<(Nanos, Wc), Failure> {
        let none = || Failure::Run("no completion in a minute".into());
        self.completion(Nanos::from_millis(60_000)).ok_or_else(none)
    }

    /// Returns a counter of one end.
    pub(super) fn counter(&self, end: usize, name: &str) -> u64 {
        self.fabric.hosts()[end].counter(name)
    }

    /// Ends the run. Returns the ladder of both captures, and the captures.
    ///
    /// # Errors
    ///
    /// If the captures show no packet.
    pub(super) fn end(self) -> Result<(Ladder, [Vec<u8>; 2]), Failure> {
        let Stage { fabric, films, .. } = self;
        drop(fabric);
        let films =
            films.map(|film| std::mem::take(&mut *film.0.lock().unwrap_or_else(PoisonError::into_inner)));
        let wrong = |why: String| Failure::Run(format!("the captures of the run: {why}"));
        let seen = films.iter().map(|film| ladder::read(&film[..]).map(|reading| reading.seen));
        let seen = seen.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(e.to_string()))?;
        let connections = ladder::pair(ladder::meet(seen).map_err(|e| wrong(e.to_string()))?);
        let connection = connections.first().ok_or_else(|| wrong("no packet is in them".into()))?;
        let style = Style { names: Some(NAMES), every: true };
        let mut ladder = Ladder::of(connection, &style);
        ladder.shorten(LINES);
        Ok((ladder, films))
    }
}

/// Returns the ladder as a block.
pub(super) fn block(heading: &str, ladder: Ladder) -> document::Block {
    document::Block::Ladder(document::Ladder { heading: heading.to_owned(), ladder })
}

/// Converts a time to microseconds.
pub(super) fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}
