//! Goodput over a link that loses packets at random, with go-back-N and with selective repeat, in virtual time.

use roxie::port::fault::FaultConfig;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, QpAttr, RKey, SendWr, WcStatus, WrOpcode};
use roxie_report::failure::Failure;
use roxie_sim::Payload;
use roxie_sim::fabric::LinkRate;

use super::document::{Block, Chart, Series, Table, axis, round};
use super::stage::{Scene, Stage};

/// Loss rates, in percent of the packets of the requester.
const LOSSES: [f64; 8] = [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0];
/// Rate of the links in Gb/s.
const GBPS: u64 = 100;
/// Length of each of two cables: 5 us from end to end, 10 us for a round trip.
const METRES: u64 = 500;
/// Bytes of a WRITE, WRITEs outstanding, and WRITEs of a measurement.
const MESSAGE: u32 = 256 << 10;
const DEPTH: u32 = 8;
const MESSAGES: u32 = 100;
const MTU: Mtu = Mtu::Mtu4096;
/// Bytes of a full packet on the link beside its payload: Ethernet with preamble, gap and FCS, IPv4, UDP, BTH, ICRC.
const HEADERS: f64 = 38.0 + 20.0 + 8.0 + 12.0 + 4.0;

/// Share of the goodput without loss that is left in theory, with `loss` of the packets lost and `flight` packets in a
/// round trip: go-back-N sends `flight` packets again for each loss, selective repeat one.
fn theory(loss: f64, flight: f64) -> (f64, f64) {
    ((1.0 - loss) / (1.0 + loss * flight), 1.0 - loss)
}

/// Measures the goodput at each loss rate.
///
/// # Errors
///
/// If a WRITE fails.
pub(super) fn blocks() -> Result<Vec<Block>, Failure> {
    let packet = (MTU.bytes() as f64 + HEADERS) * 8.0;
    // The round trip: two cables there and back, and a packet stored twice at the switch and the responder.
    let round_trip = 4.0 * METRES as f64 * 5e-9 + 2.0 * packet / (GBPS as f64 * 1e9);
    let flight = round_trip * GBPS as f64 * 1e9 / packet;
    let mut rows = Vec::new();
    let mut series = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for loss in LOSSES {
        let (back, selective) = (goodput(loss, false)?, goodput(loss, true)?);
        let (back_theory, selective_theory) = theory(loss / 100.0, flight);
        let most = GBPS as f64 * MTU.bytes() as f64 * 8.0 / packet;
        let all = [back, back_theory * most, selective, selective_theory * most];
        rows.push(std::iter::once(loss).chain(all).map(|value| round(value).into()).collect());
        series.iter_mut().zip(all).for_each(|(series, value)| series.push((loss, value)));
    }
    let columns =
        vec!["loss %", "go-back-N Gb/s", "in theory", "selective repeat Gb/s", "in theory (selective)"];
    let title = format!("Goodput of WRITEs of {} KiB at {GBPS} Gb/s, round trip 10 us", MESSAGE >> 10);
    let names = ["go-back-N", "go-back-N, in theory", "selective repeat", "selective repeat, in theory"];
    let chart = Chart {
        title: title.clone(),
        x: axis("packets lost", "%"),
        y: axis("goodput", "Gb/s"),
        series: names.into_iter().zip(series).map(|(name, points)| Series::new(name, points)).collect(),
        levels: vec![],
    };
    Ok(vec![Block::Table(Table { title, columns, rows, sum: false }), Block::Chart(chart)])
}

/// Returns the goodput in Gb/s with `loss` percent of the requester's packets lost.
fn goodput(loss: f64, selective: bool) -> Result<f64, Failure> {
    let faults = FaultConfig::parse(&format!("tx.drop={},seed=11", loss / 100.0));
    let faults = faults.map_err(|e| Failure::Usage(e.to_string()))?;
    let scene = Scene {
        rate: LinkRate::from_gbps(GBPS),
        metres: METRES,
        faults: [(loss > 0.0).then_some(faults), None],
        memory: (MESSAGE * DEPTH) as usize,
        path_mtu: MTU,
        timeout: 14,
        ..Scene::default()
    };
    let mut stage = Stage::with(&scene, |_, steps| agreed(steps, selective))?;
    let write = |stage: &mut Stage, number: u32| {
        let offset = u64::from(number % DEPTH * MESSAGE);
        let wr = SendWr {
            opcode: WrOpcode::Write,
            remote_addr: stage.regions[1].address + offset,
            rkey: RKey(stage.regions[1].key),
            ..SendWr::default()
        };
        let source = stage.regions[0].sge(offset, MESSAGE);
        stage.post(&wr, Payload::Sges(&[source]))
    };
    (0..DEPTH).try_for_each(|number| write(&mut stage, number))?;
    let mut last = Nanos::ZERO;
    for number in DEPTH..MESSAGES + DEPTH {
        let (at, wc) = stage.completed()?;
        if wc.status != WcStatus::Success {
            return Err(Failure::Run(format!("at {loss} % a WRITE ended with {}", wc.status)));
        }
        last = at;
        if number < MESSAGES {
            write(&mut stage, number)?;
        }
    }
    Ok(f64::from(MESSAGES) * f64::from(MESSAGE) * 8.0 / last.0 as f64)
}

/// Returns the transitions of a QP, with or without selective repeat.
pub(super) fn agreed(steps: [QpAttr; 3], selective: bool) -> [QpAttr; 3] {
    let [init, rtr, rts] = steps;
    [init, QpAttr { selective_repeat: Some(selective), ..rtr }, rts]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn theory_has_its_limits() {
        assert_eq!(theory(0.0, 30.0), (1.0, 1.0));
        let (back, selective) = theory(0.01, 30.0);
        assert!((0.75..0.77).contains(&back) && (0.98..1.0).contains(&selective));
    }

    /// At 1 % loss, selective repeat keeps 0.8 of the goodput without loss; go-back-N does not.
    #[test]
    fn selective_repeat_keeps_most_of_the_goodput() {
        let lossless = goodput(0.0, true).expect("no loss");
        let (back, selective) = (goodput(1.0, false).expect("a run"), goodput(1.0, true).expect("a run"));
        assert!(selective >= 0.8 * lossless, "{selective} of {lossless} Gb/s");
        assert!(back < selective, "{back} Gb/s with go-back-N");
    }
}
