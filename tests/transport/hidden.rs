//! Identifications of IPv4 packets that the ICRC covers and sockets do not show: which are believed.

use roxie::sim::joined_ports;
use roxie::wire::{Bth, Ext, MAX_HEADERS, Opcode, Psn};

use crate::placement::{IDENTIFICATION, Sockets};
use crate::{Answer, Setup, Stage};

impl Stage {
    /// The peer's SEND with this identification, which the NIC does not see; the answers.
    fn send_identified(&mut self, psn: u32, id: u16) -> Vec<Answer> {
        let opcode = Opcode::RC_SEND_ONLY;
        let bth =
            Bth { opcode, dest_qp: self.qp.handle.qpn, psn: Psn::new(psn), ack_req: true, ..Bth::default() };
        let mut headers = [0; MAX_HEADERS];
        let at = self.template.write_headers(&mut headers, &bth, &Ext::None, 4);
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

/// A peer counts, or numbers the segments of a train from 0. What is neither is counted: it may be a coincidence.
#[test]
fn an_identification_is_weak_unless_it_is_small_or_follows_the_last() {
    let (near, far) = joined_ports(1500, None);
    let mut stage = Stage::on(Setup::default(), Box::new(Sockets(near)), far);
    let cases = [
        (50, 0, "the segment of a train"),
        (127, 0, "the last of one"),
        (5000, 1, "neither small nor near 127"),
        (5001, 0, "the next"),
        (5128, 0, "127 later"),
        (5256, 1, "128 later"),
        (5255, 1, "before it"),
        (0xffff, 1, "far away"),
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
