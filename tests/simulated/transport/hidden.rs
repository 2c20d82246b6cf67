//! The UDP port hides the IPv4 identification, which the ICRC covers, and knows when packets arrived.

use roxie::nic::{Command, CongestionConfig};
use roxie::time::Nanos;
use roxie::verbs::WrOpcode;
use roxie::wire::{Aeth, Bth, Ext, MAX_HEADERS, Opcode, Psn, Syndrome};
use roxie_sim::joined_ports;

use crate::transport::placement::{IDENTIFICATION, Sockets};
use crate::transport::{Answer, FIRST, Setup, Stage};

impl Stage {
    /// Sends a SEND with an ICRC over identification `id`, which the NIC does not see. Returns the NIC's packets.
    fn send_identified(&mut self, psn: u32, id: u16) -> Vec<Answer> {
        self.identified(Opcode::RC_SEND_ONLY, Psn::new(psn), &Ext::None, id)
    }

    /// Sends a packet of 4 bytes like [`Stage::send_identified`].
    fn identified(&mut self, opcode: Opcode, psn: Psn, ext: &Ext, id: u16) -> Vec<Answer> {
        let bth = Bth { opcode, dest_qp: self.qp.handle.qpn, psn, ack_req: true, ..Bth::default() };
        let mut headers = [0; MAX_HEADERS];
        let at = self.template.write_headers(&mut headers, &bth, ext, 4);
        let slot = self.peer.tx_alloc(self.template.frame_len(opcode, 4)).expect("room");
        let mut frame = self.peer.tx_frame(&slot);
        frame.write(0, &headers[..at]);
        frame.write(at, &[1, 2, 3, 4]);
        frame.write(IDENTIFICATION, &id.to_be_bytes());
        self.template.seal(&mut frame);
        frame.write(IDENTIFICATION, &[0, 0]);
        self.peer.tx_commit(slot);
        self.peer.tx_flush(self.now).expect("memory does not fail");
        self.answers()
    }
}

/// A peer increments its identification, or numbers the segments of a train from 0. Any other value may be a
/// coincidence: the packet is accepted and counted as `icrc_weak`.
#[test]
fn implausible_identification_counts_as_weak_icrc() {
    let (local, remote) = joined_ports(1500, None);
    let mut stage = Stage::on(Setup::default(), Box::new(Sockets(local, None)), remote);
    let cases = [
        (50, 0, "the segment of a train"),
        (127, 0, "the last of one"),
        (5000, 1, "neither small nor near 127"),
        (5001, 0, "the next"),
        (5128, 0, "127 later"),
        (5256, 1, "128 later"),
        (5255, 1, "before it"),
        (0xffff, 1, "far away"),
        (128, 1, "one more than a train has"),
        (3, 0, "small, and the next but three"),
    ];
    for (psn, (id, weak, why)) in (0..).zip(cases) {
        stage.receive(psn.into(), 0, 8);
        let before = stage.counter("icrc_weak");
        assert_eq!(stage.send_identified(psn, id), [Answer::ack(psn)], "{id}: {why}");
        assert_eq!(stage.counter("icrc_weak") - before, weak, "{id}: {why}");
    }
    assert_eq!(stage.counter("rx_icrc_encapsulated"), 0);
}

/// A READ response advances the tracked identification like any other packet of the peer.
#[test]
fn read_response_updates_the_peers_identification() {
    let (local, remote) = joined_ports(1500, None);
    let mut stage = Stage::on(Setup::default(), Box::new(Sockets(local, None)), remote);
    stage.receive(0, 0, 8);
    assert_eq!(stage.send_identified(0, 5000), [Answer::ack(0)]);
    assert_eq!(stage.counter("icrc_weak"), 1, "it begins there");
    stage.post(WrOpcode::Read, 4);
    stage.wait(Nanos(1000));
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    stage.identified(Opcode::RC_READ_RESPONSE_ONLY, FIRST, &aeth, 5100);
    stage.receive(1, 0, 8);
    assert_eq!(stage.send_identified(1, 5200), [Answer::ack(1)]);
    assert_eq!(stage.counter("icrc_weak"), 1, "each is less than 128 after the one before");
}

/// A peer's counter starts anywhere: a rejected identification is remembered, and its successor is accepted. A damaged
/// frame has no successor, and the peer's own sequence stays valid.
//= test: IBTA 7.8.1: bad-icrc-is-dropped
#[test]
fn strict_icrc_learns_the_peers_identification() {
    let (local, remote) = joined_ports(1500, None);
    let mut stage =
        Stage::on(Setup { strict_icrc: true, ..Setup::default() }, Box::new(Sockets(local, None)), remote);
    let cases = [
        (0, 5000, false, "a counter that begins there"),
        (0, 5001, true, "the next"),
        (1, 9000, false, "a coincidence"),
        (1, 5002, true, "the peer goes on"),
        (2, 40_000, false, "the peer begins anew"),
        (2, 40_002, true, "and goes on"),
        (3, 5003, false, "no more"),
        (3, 3, true, "the segment of a train"),
    ];
    for (psn, id, taken, why) in cases {
        stage.receive(u64::from(psn), 0, 8);
        let dropped = stage.counter("rx_icrc_encapsulated");
        let answers = stage.send_identified(psn, id);
        assert_eq!(answers, if taken { vec![Answer::ack(psn)] } else { vec![] }, "{id}: {why}");
        assert_eq!(stage.counter("rx_icrc_encapsulated") - dropped, u64::from(!taken), "{id}: {why}");
    }
    assert_eq!(stage.counter("icrc_weak"), 0);
}

/// A late pass finds packets that arrived earlier. Without an arrival time, the time of the pass counts.
#[test]
fn round_trip_ends_at_the_acks_arrival_time() {
    let (begins, arrives, checks) =
        (Nanos::from_micros(100), Nanos::from_micros(130), Nanos::from_micros(900));
    for (known, round_trip) in [(Some(arrives), arrives - begins), (None, checks - begins)] {
        let (local, remote) = joined_ports(1500, None);
        let mut stage = Stage::on(Setup::default(), Box::new(Sockets(local, known)), remote);
        let config = CongestionConfig { control: "swift".parse().expect("settings"), ..Default::default() };
        stage.host.call(stage.now, Command::SetCongestion(Box::new(config))).expect("carried out");
        stage.now = begins;
        stage.post(WrOpcode::Send, 16);
        stage.host.worker.poll(stage.now);
        stage.now = checks;
        stage.acknowledge(FIRST, Syndrome::Ack { credits: 31 }, 1);
        stage.host.worker.poll(stage.now);
        let (now, qp) = (stage.now, &stage.qp);
        let state = stage.host.query(now, qp).control.expect("it is paced");
        assert_eq!(state.round_trip, Some(round_trip), "{known:?}");
    }
}
