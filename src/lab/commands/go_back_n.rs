//! `roxie lab go-back-n`: recovery from chosen losses.

use clap::Args;
use roxie::port::fault::FaultConfig;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, RKey, SendWr, WcStatus, WrOpcode};
use roxie_report::failure::Failure;
use roxie_sim::Payload;

use super::document::{About, Block, Choice, Facts, Run, Table};
use super::goodput;
use super::stage::{Scene, Stage, block, micros};

pub(super) const ABOUT: About = About {
    name: "go-back-n",
    line: "lose a packet, and see what is retransmitted",
    see: &[
        "One WRITE of several packets, over a link that loses chosen packets. Both ends are captured; the ladder is \
         drawn from the captures.",
        "The responder drops all packets after a gap, and sends one sequence NAK with the PSN that it misses. The \
         requester goes back to that PSN and sends everything from there again: one lost packet costs all packets \
         that were outstanding after it.",
        "No packet follows the last one, so nothing shows the gap. Only the timer detects the loss, after a thousand \
         times as long.",
        "Each loss is played twice. With selective repeat, to which both ends have agreed, the responder keeps what \
         comes behind the gap, and says so in a selective acknowledgement: only the lost packet is sent again. If the \
         last packet is lost, a probe finds it after a few round trips.",
    ],
    change: &[
        "`--lose 1` and `--lose 5` of six packets: the same loss, with the most and the least expensive recovery.",
        "`--lose 6`: no response shows what has arrived, so the timer retransmits everything, a thousand times later.",
        "`--lose 3,7`: the seventh frame sent is a retransmission. If it is lost too, only the timer detects it.",
        "`--timeout 14`: the timeout of stock programs (67 ms). Losing the last packet costs that much, and no NAK \
         helps.",
        "`--lose none`: one ACK for the whole message.",
        "`--goodput`: the goodput at 0.01 % to 5 % loss, with either, and in theory.",
    ],
};

/// Lose chosen packets of a WRITE and draw the recovery
#[derive(Debug, Args)]
#[command(
    long_about = "Sends one WRITE of several packets over a link that drops the chosen ones, and draws the packets of \
        both ends: PSNs, NAK, timer, recovery. Frames are numbered from 1 as they leave the requester, retransmissions \
        included.\n\nThe page also has a run for each single packet.",
    after_help = "Examples:\n  roxie lab go-back-n                      the third of six\n  roxie lab go-back-n --lose 6             \
    the last: the timer has to tell\n  roxie lab go-back-n --lose 2,8 --packets 8\n  roxie lab go-back-n --lose none"
)]
pub(super) struct Arguments {
    /// Number of packets of the message
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=32))]
    packets: u32,
    /// Frames to lose, by their numbers from 1 as they leave the requester, separated by commas; or none
    #[arg(long, value_name = "LIST", default_value = "3", value_parser = lost)]
    lose: Lost,
    /// Local ACK timeout code, 1 to 20: 4.096 us * 2^code
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=20))]
    timeout: u8,
    /// Also measure the goodput of both recoveries at 0.01 % to 5 % random loss, at 100 Gb/s and a round trip of 10 us
    #[arg(long)]
    goodput: bool,
}

/// Names of the two recoveries.
const RECOVERIES: [&str; 2] = ["go-back-N", "selective repeat"];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lost(Vec<u64>);

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0[..] {
            [] => f.write_str("none"),
            all => f.write_str(&all.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

fn lost(text: &str) -> Result<Lost, String> {
    if text == "none" {
        return Ok(Lost(vec![]));
    }
    let number = |part: &str| match part.trim().parse::<u64>() {
        Ok(n) if (1..=64).contains(&n) => Ok(n),
        _ => Err(format!("`{part}` is no number of a frame: give 1 to 64, separated by commas, or none")),
    };
    let mut all = text.split(',').map(number).collect::<Result<Vec<u64>, _>>()?;
    all.sort_unstable();
    all.dedup();
    Ok(Lost(all))
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let mut all = vec![arguments.lose.clone()];
    let others =
        std::iter::once(Lost(vec![])).chain((1..=u64::from(arguments.packets)).map(|n| Lost(vec![n])));
    all.extend(others.filter(|lost| *lost != arguments.lose));
    let both = all.iter().flat_map(|lost| [(lost, false), (lost, true)]);
    let runs =
        both.map(|(lost, selective)| play(arguments, lost, selective)).collect::<Result<Vec<_>, _>>()?;
    let facts = [
        ("packets sent", "packets_sent"),
        ("again", "sent_again"),
        ("NAKs", "naks"),
        ("SACKs", "sacks"),
        ("timeouts", "timeouts"),
        ("complete after us", "completed_us"),
    ];
    let table = Table::of_runs("Cost of each loss", &["lost", "recovery"], &facts, &runs);
    let mut across = vec![Block::Table(table)];
    if arguments.goodput {
        across.extend(goodput::blocks()?);
    }
    Ok((runs, across))
}

fn play(arguments: &Arguments, lost: &Lost, selective: bool) -> Result<Run, Failure> {
    let text: Vec<String> = lost.0.iter().map(|n| format!("tx.drop=nth{n}")).collect();
    let faults = match &text[..] {
        [] => None,
        all => Some(FaultConfig::parse(&all.join(",")).map_err(|e| Failure::Usage(e.to_string()))?),
    };
    let scene = Scene { faults: [faults, None], timeout: arguments.timeout, ..Scene::default() };
    let mut stage = Stage::with(&scene, |_, steps| goodput::agreed(steps, selective))?;
    let bytes = arguments.packets * Mtu::Mtu1024.bytes() as u32;
    let pattern: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    stage.regions[0].memory.write(0, &pattern).map_err(|e| Failure::Run(format!("the source: {e:?}")))?;
    let wr = SendWr {
        opcode: WrOpcode::Write,
        remote_addr: stage.regions[1].address,
        rkey: RKey(stage.regions[1].key),
        ..SendWr::default()
    };
    let source = stage.regions[0].sge(0, bytes);
    stage.post(&wr, Payload::Sges(&[source]))?;
    let (at, wc) = stage.completed()?;
    if wc.status != WcStatus::Success {
        return Err(Failure::Run(format!("the WRITE ended with {} after {} us", wc.status, micros(at))));
    }
    stage.run(at + Nanos::from_micros(50));
    let whole = stage.regions[1].bytes(0, bytes as usize) == pattern;
    let mut facts = Facts::default();
    facts.tell("message_packets", arguments.packets, "packets", "of the message");
    facts.tell("packets_sent", stage.counter(0, "sent_pkts"), "packets", "the requester sent");
    facts.tell("sent_again", stage.counter(0, "retransmitted_packets"), "packets", "of those again");
    facts.tell(
        "dropped_out_of_sequence",
        stage.counter(1, "out_of_sequence"),
        "packets",
        "arrived after the gap, and were dropped unless kept",
    );
    facts.tell("kept", stage.counter(1, "early_kept"), "packets", "of those were kept (selective repeat)");
    facts.tell("naks", stage.counter(0, "packet_seq_err"), "", "sequence NAKs were received");
    facts.tell("sacks", stage.counter(0, "rcvd_sacks"), "", "selective acknowledgements were received");
    facts.tell(
        "probes",
        stage.counter(0, "tail_probes"),
        "",
        "probes after a silence shorter than the timeout",
    );
    facts.tell("timeouts", stage.counter(0, "local_ack_timeout_err"), "", "timeouts of the requester");
    facts.tell(
        "timeout_us",
        4.096 * f64::from(1 << arguments.timeout),
        "us",
        "timeout of the queue pair; the timer fires after one to four times as long",
    );
    facts.tell("completed_us", micros(at), "us", "from posting to completion");
    facts.tell("data_is_whole", whole, "", "all data has arrived unchanged");
    let (ladder, _) = stage.end()?;
    let recovery = RECOVERIES[usize::from(selective)];
    let heading = format!("A WRITE of {} packets; lost: {lost}; {recovery}", arguments.packets);
    let choice = vec![Choice::new("lost", lost), Choice::new("recovery", recovery)];
    Ok(Run { choice, facts, blocks: vec![block(&heading, ladder)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_frames_are_sorted_and_bounded() {
        assert_eq!(lost("3, 1,3").unwrap(), Lost(vec![1, 3]));
        assert_eq!(lost("none").unwrap().to_string(), "none");
        assert!(lost("0").is_err() && lost("65").is_err() && lost("").is_err());
    }
}
