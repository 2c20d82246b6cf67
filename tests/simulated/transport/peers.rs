//! Behavior of other implementations that differs from Roxie's.

use roxie::time::Nanos;
use roxie::verbs::{WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, Gid, NakCode, Opcode, Syndrome, rnr_timer_ns};
use roxie_sim::Host;

use crate::transport::{FIRST, RETRIES, Stage, TIMEOUT};

/// After an RNR NAK, rdma_rxe answers the packets that follow with a sequence NAK.
#[test]
fn sequence_naks_during_rnr_wait_cost_no_retry() {
    const TIMER: u8 = 14;
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 3 * 256);
    let message = [
        (Opcode::RC_SEND_FIRST, FIRST),
        (Opcode::RC_SEND_MIDDLE, FIRST + 1),
        (Opcode::RC_SEND_LAST, FIRST + 2),
    ];
    assert_eq!(stage.wait(Nanos(1000)), message);
    for round in 0..3 * u32::from(RETRIES) {
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer: TIMER }, 0);
        stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
        let wait = Nanos(rnr_timer_ns(TIMER));
        assert_eq!(
            stage.wait(wait - Nanos(2000)),
            [],
            "round {round}: nothing leaves before the wait is over"
        );
        assert_eq!(stage.wait(Nanos(4000)), message, "round {round}");
    }
    assert_eq!(stage.completions(), []);
    stage.acknowledge(FIRST + 2, Syndrome::Ack { credits: 31 }, 1);
    stage.wait(Nanos(1000));
    assert_eq!(stage.completions().iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
}

/// rdma_rxe finishes a long READ response before it handles the repeated request.
#[test]
fn late_read_responses_restart_the_ack_timeout() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Read, 100 * 256);
    assert_eq!(stage.wait(Nanos(1000)), [(Opcode::RC_READ_REQUEST, FIRST)]);
    // The first response packet is lost; the rest arrives over several ACK timeouts.
    stage.read_middle(FIRST + 1, 0xee);
    assert_eq!(stage.wait(Nanos(1000)), [(Opcode::RC_READ_REQUEST, FIRST)]);
    for k in 2..40 {
        stage.read_middle(FIRST + k, 0xee);
        assert_eq!(stage.wait(Nanos(TIMEOUT.0 / 4)), [], "response {k} restarts the timeout");
    }
    // Then the responses stop: each timeout costs one retry. A late packet costs none.
    assert_eq!(stage.wait(TIMEOUT), [(Opcode::RC_READ_REQUEST, FIRST)]);
    stage.read_middle(FIRST + 40, 0xee);
    assert_eq!(stage.wait(Nanos(1000)), []);
    // Responses to the repeated request are stored.
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST, aeth, &[0x11; 256]);
    stage.wait(Nanos(1000));
    assert_eq!(
        stage.memory.bytes(0, 512),
        [[0x11; 256], [0; 256]].concat(),
        "only what came in order is stored"
    );
    assert_eq!(stage.completions(), []);
}

/// A new link address for one IP address changes only the paths to that address.
#[test]
fn changed_next_hop_affects_only_its_destination() {
    let mut stage = Stage::new();
    let peer = |number| Gid::from(Host::address(number, false));
    let mac = [2, 0, 0, 0, 0, 77];
    let set = |stage: &mut Stage, number| stage.host.worker.set_next_hop(|av| av.dgid == peer(number), mac);
    assert_eq!(set(&mut stage, 9), 0);
    stage.post(WrOpcode::Write, 8);
    assert_eq!(stage.packets()[0].0.dst_mac, Host::mac(2));
    assert_eq!(set(&mut stage, 2), 1);
    assert_eq!(set(&mut stage, 2), 0, "the path already has this next hop");
    stage.post(WrOpcode::Write, 8);
    assert_eq!(stage.packets()[0].0.dst_mac, mac);
}
