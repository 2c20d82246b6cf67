//! The numbers of a run, and the network that follows from them.

use std::fmt;
use std::net::Ipv4Addr;

use roxie::congestion::Rate;
use roxie::nic::{CongestionConfig, EcnPolicy};
use roxie::sim::Host;
use roxie::sim::fabric::{
    EcnConfig, End, Fabric, FabricConfig, LinkConfig, LinkRate, PRIORITIES, PortConfig, StationConfig,
    SwitchConfig, Threshold,
};
use roxie::time::Nanos;
use serde::Serialize;

use super::Arguments;
use crate::demo::Failure;

/// Bytes of a message.
pub(super) const MESSAGE: u32 = 65_536;
/// Bytes of payload of a packet.
pub(super) const PATH_MTU: u32 = 1024;
/// Messages that a sender has outstanding.
pub(super) const DEPTH: u32 = 16;
/// Local ACK timeout code: 67 ms.
pub(super) const TIMEOUT: u8 = 14;
/// The link MTU of stations, in bytes.
pub(super) const LINK_MTU: usize = 1500;
/// How long the link takes for Kmin, for Kmax and for the whole queue. A sender in software may wait for a processor for some
/// milliseconds: what it sends late then is no congestion yet.
const DEPTHS: [Nanos; 3] = [Nanos::from_micros(400), Nanos::from_millis(8), Nanos::from_millis(16)];
/// How often it is looked at in a run.
const SAMPLES: f64 = 400.0;

/// What is played.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scenario {
    /// Senders, stations 0 to n-1. Station n + i receives from i.
    pub(super) senders: usize,
    pub(super) mbps: u64,
    pub(super) delay_us: u64,
    pub(super) seconds: f64,
    pub(super) buffer: u64,
    pub(super) kmin: u64,
    pub(super) kmax: u64,
    pub(super) pmax: f64,
    pub(super) seed: u64,
    /// Congestion control of the senders, as of `--cc`.
    pub(super) cc: String,
}

impl Scenario {
    /// As it was asked for.
    ///
    /// # Errors
    /// If no switch is like that.
    pub(super) fn of(arguments: &Arguments) -> Result<Scenario, Failure> {
        let Arguments { senders, rate, delay, seconds, buffer, kmin, kmax, pmax, seed, ref cc, .. } =
            *arguments;
        let [few, many, all] = DEPTHS.map(|time| LinkRate::from_mbps(rate).bytes_in(time));
        let kmax = kmax.unwrap_or(many);
        let (kmin, buffer) = (kmin.unwrap_or(few.min(kmax)), buffer.unwrap_or(all));
        let scenario = Scenario {
            senders: senders.into(),
            mbps: rate,
            delay_us: delay,
            seconds,
            buffer,
            kmin,
            kmax,
            pmax,
            seed,
            cc: cc.as_ref().map_or_else(
                || scaled(LinkRate::from_mbps(rate), Nanos::from_micros(delay)),
                ToString::to_string,
            ),
        };
        scenario.fabric()?;
        Ok(scenario)
    }

    pub(super) fn stations(&self) -> usize {
        2 * self.senders
    }

    /// The rate of every link.
    pub(super) fn rate(&self) -> LinkRate {
        LinkRate::from_mbps(self.mbps)
    }

    /// How the NICs react to it. Data may be marked whatever they do then.
    pub(super) fn congestion(&self) -> CongestionConfig {
        CongestionConfig {
            control: self.cc.parse().expect("it was read from settings"),
            ecn: Some(EcnPolicy::On),
            line_rate: Some(Rate(self.rate().0 as f64)),
            ..CongestionConfig::default()
        }
    }

    pub(super) fn time(&self) -> Nanos {
        Nanos((self.seconds * 1e9) as u64)
    }

    /// Between two samples.
    pub(super) fn interval(&self) -> Nanos {
        Nanos((self.seconds * 1e9 / SAMPLES) as u64)
    }

    pub(super) fn mac(station: usize) -> [u8; 6] {
        Host::mac(station as u8 + 1)
    }

    /// Of TEST-NET-1 (RFC 5737), as simulated hosts have them.
    pub(super) fn address(station: usize) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, station as u8 + 1)
    }

    /// The switch and port in front of the link that all share.
    pub(super) fn bottleneck(&self) -> (usize, usize) {
        (0, self.senders)
    }

    /// Senders at one switch, receivers at another.
    ///
    /// # Errors
    /// If no switch is like that.
    pub(super) fn fabric(&self) -> Result<Fabric, Failure> {
        let link = LinkConfig::new(self.rate(), Nanos::from_micros(self.delay_us));
        let port = PortConfig {
            ecn: [Some(EcnConfig { kmin: self.kmin, kmax: self.kmax, pmax: self.pmax }); PRIORITIES],
            ..PortConfig::new(link)
        };
        let switch = SwitchConfig {
            lossy: Threshold::Static(self.buffer),
            buffer: self.buffer * PRIORITIES as u64,
            seed: self.seed,
            ..SwitchConfig::new(FabricConfig::ports(self.senders + 1, &port))
        };
        let station =
            |n| StationConfig { mtu: LINK_MTU, slots: 1024, ..StationConfig::new(Scenario::mac(n), link) };
        let at = |switch, port: usize| End::Switch { switch, port: port as u16 };
        let mut links = vec![[at(0, self.senders), at(1, self.senders)]];
        for n in 0..self.senders {
            links.push([End::Station(n), at(0, n)]);
            links.push([End::Station(self.senders + n), at(1, n)]);
        }
        let config = FabricConfig {
            stations: (0..self.stations()).map(station).collect(),
            switches: vec![switch.clone(), switch],
            links,
        };
        Fabric::new(config).map_err(Failure::Scenario)
    }
}

/// DCQCN with the steps and timers of its paper (SIGCOMM'15, section 5) scaled to this network. There a timer of 55 us is a round trip,
/// and a step is a thousandth of the 40 Gb/s. Here a round trip is that of six links and two hosts in software. A timer of several
/// lets a sender see what its last step did; the step is larger, but not as much.
fn scaled(rate: LinkRate, delay: Nanos) -> String {
    /// From a packet to the answer to it, in a host.
    const HOST: f64 = 200.0;
    /// Round trips of a timer.
    const ROUND_TRIPS: f64 = 8.0;
    let frame = rate.nanos_for(u64::from(PATH_MTU) + 80).0 as f64 / 1e3;
    let round_trip = 3.0 * frame + 6.0 * delay.0 as f64 / 1e3 + HOST;
    let timer = (ROUND_TRIPS * round_trip).round().clamp(1.0, 131_071.0);
    let interval = (timer * 50.0 / 55.0).round();
    let step = (rate.0 as f64 / 1e6 * ROUND_TRIPS / 2000.0).max(0.001);
    format!(
        "dcqcn,preset=paper,rpg_ai_rate={step:.3},rpg_hai_rate={:.3},rpg_time_reset={timer},dce_tcp_rtt={timer},\
         min_time_between_cnps={interval}",
        10.0 * step
    )
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { senders, mbps, delay_us, buffer, kmin, kmax, pmax, cc, .. } = self;
        write!(
            f,
            "{senders} senders, {senders} receivers, one link of {mbps} Mb/s between them ({delay_us} us each way); a queue of {} KB \
             in front of it, which marks from {} KB on, {} % at {} KB, and all above; \
             congestion control: {cc}",
            buffer / 1000,
            kmin / 1000,
            pmax * 100.0,
            kmax / 1000
        )
    }
}
