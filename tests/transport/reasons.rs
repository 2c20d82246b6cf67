//! Why a packet leaves, as a capture of the NIC's port is told.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use roxie::port::Port;
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::sim::joined_ports;
use roxie::time::Nanos;
use roxie::verbs::WrOpcode;
use roxie::wire::{NakCode, Syndrome};

use crate::{FIRST, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// A capture file in memory.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// How often a comment says so.
    fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().windows(text.len()).filter(|w| *w == text.as_bytes()).count()
    }
}

fn captured(setup: Setup) -> (Stage, Shared) {
    let file = Shared::default();
    let (near, far) = joined_ports(1500, None);
    let near: Box<dyn Port> =
        Box::new(PcapPort::new(near, file.clone(), Timestamps::Virtual, None).expect("a file"));
    (Stage::on(setup, near, far), file)
}

#[test]
fn a_packet_that_leaves_again_says_after_what_and_which_try_it_is() {
    let (mut stage, file) = captured(Setup { rnr_retry: 3, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
    stage.wait(Nanos(20_000));
    stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
    stage.wait(Nanos(20_000));
    stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
    stage.wait(SOON);
    stage.wait(TIMEOUT);
    let told = [
        "retransmit after RNR NAK, try 1 of 3",
        "retransmit after RNR NAK, try 2 of 3",
        "retransmit after sequence NAK, try 1 of 2",
        "retransmit after timeout, try 2 of 2",
    ];
    assert_eq!(told.map(|text| file.count(text)), [1; 4]);
    assert_eq!(file.count("retransmit after"), 4);
}

#[test]
fn the_reason_lasts_until_everything_that_had_been_sent_is_acknowledged() {
    let (mut stage, file) = captured(Setup::default());
    for _ in 0..3 {
        stage.post(WrOpcode::Write, 4);
    }
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
    // Progress, but not all: what leaves is still what the NAK asked for.
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(file.count("retransmit after sequence NAK"), 2);
    assert_eq!(file.count("retransmit after timeout"), 0);
}
