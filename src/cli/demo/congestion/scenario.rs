//! The parameters of a run, and the network built from them.

use std::fmt;
use std::net::Ipv4Addr;

use roxie::time::Nanos;
use roxie_sim::fabric::{Fabric, LinkRate, PRIORITIES, Shape};
use roxie_sim::scenario as sim;
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
/// The link MTU of interfaces, in bytes, and their longest frame with a VLAN tag.
pub(super) const LINK_MTU: usize = 1500;
const LONGEST_FRAME: u32 = LINK_MTU as u32 + 18;
/// Time in which the link drains Kmin, Kmax and the whole queue. A sender in software may wait some milliseconds for a
/// processor; the burst that it sends afterwards is not congestion yet.
const DEPTHS: [Nanos; 3] = [Nanos::from_micros(400), Nanos::from_millis(8), Nanos::from_millis(16)];
/// Number of samples in a run.
const SAMPLES: f64 = 400.0;

/// The parameters of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scenario {
    /// Number of senders, stations 0 to n-1. Station n + i receives from station i.
    pub(super) senders: usize,
    pub(super) mbps: u64,
    pub(super) delay_us: u64,
    pub(super) seconds: f64,
    pub(super) buffer: u64,
    pub(super) kmin: u64,
    pub(super) kmax: u64,
    pub(super) pmax: f64,
    pub(super) seed: u64,
    /// Congestion control of the senders, in the syntax of `--cc`.
    pub(super) cc: String,
}

impl Scenario {
    /// Returns the scenario that the options describe.
    ///
    /// # Errors
    ///
    /// If no switch can be configured so.
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
        sim::Simulation::new(&scenario.simulated()?)?;
        Ok(scenario)
    }

    pub(super) fn stations(&self) -> usize {
        2 * self.senders
    }

    /// Returns the rate of every link.
    pub(super) fn rate(&self) -> LinkRate {
        LinkRate::from_mbps(self.mbps)
    }

    pub(super) fn time(&self) -> Nanos {
        Nanos((self.seconds * 1e9) as u64)
    }

    /// Returns the time between two samples.
    pub(super) fn interval(&self) -> Nanos {
        Nanos((self.seconds * 1e9 / SAMPLES) as u64)
    }

    pub(super) fn mac(station: usize) -> [u8; 6] {
        Shape::mac(station)
    }

    /// Returns a station's address in TEST-NET-1 (RFC 5737), as simulated hosts have it.
    pub(super) fn address(station: usize) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, station as u8 + 1)
    }

    /// Returns the switch and port in front of the shared link.
    pub(super) fn bottleneck(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Returns the simulated network: senders at one switch, receivers at another, with one endless flow each.
    ///
    /// # Errors
    ///
    /// If no switch can be configured so.
    pub(super) fn simulated(&self) -> Result<sim::Scenario, Failure> {
        let Scenario { senders, mbps, delay_us, buffer, seed, .. } = self;
        // Long enough for the first message on the slowest link.
        let time = self.time() + self.rate().nanos_for(64 << 20);
        let mut text = format!(
            "seed = {seed}\ntime = \"{} ns\"\n\
             [network]\nshape = \"dumbbell\"\npairs = {senders}\nrate = \"{mbps} Mb/s\"\ndelay = \"{delay_us} us\"\n\
             [switch]\nbuffer = {}\nlimit = {buffer}\n\
             [hosts]\nmtu = {PATH_MTU}\nmessage = {MESSAGE}\ndepth = {DEPTH}\nslots = 1024\ntimeout = {TIMEOUT}\n\
             [output]\ninterval = \"1 s\"\n[cc]\n",
            time.0,
            buffer * PRIORITIES as u64,
        );
        // The algorithm's name, then the knobs.
        let settings = format!("control={}", self.cc);
        for (knob, value) in settings.split(',').filter_map(|part| part.split_once('=')) {
            text.push_str(&format!("{knob} = \"{value}\"\n"));
        }
        for n in 0..self.senders {
            let to = n + self.senders;
            text.push_str(&format!(
                "[[traffic]]\npattern = \"flows\"\nfrom = [{n}]\nto = [{to}]\nbytes = {}\npriority = 0\n",
                1u64 << 50
            ));
        }
        let mut scenario = sim::Scenario::read(&text)?;
        scenario.ecn = Some(sim::EcnTable {
            kmin: sim::Bytes(self.kmin),
            kmax: sim::Bytes(self.kmax),
            pmax: self.pmax,
            ..sim::EcnTable::default()
        });
        Ok(scenario)
    }

    /// Returns the same network without hosts, for frames as long as an interface's MTU allows.
    ///
    /// # Errors
    ///
    /// If no switch can be configured so.
    pub(super) fn fabric(&self) -> Result<Fabric, Failure> {
        let scenario = self.simulated()?;
        let mut config = scenario.fabric(&scenario.shape()?)?;
        config.stations.iter_mut().for_each(|station| station.mtu = LINK_MTU);
        config.switches.iter_mut().for_each(|switch| switch.longest_frame = LONGEST_FRAME);
        Fabric::new(config).map_err(|error| Failure::Scenario(error.into()))
    }
}

/// Returns DCQCN with the step and timers of its paper (SIGCOMM'15, section 5) scaled to this network.
///
/// In the paper, a timer of 55 us is one round trip, and a step is a thousandth of the 40 Gb/s. Here a round trip
/// crosses six links and two hosts in software. A timer of several round trips lets a sender see the effect of its last
/// step. The step is larger, but grows less than the timer.
fn scaled(rate: LinkRate, delay: Nanos) -> String {
    /// Time from a packet to its answer within a host, in us.
    const HOST: f64 = 200.0;
    /// Round trips in a timer period.
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
