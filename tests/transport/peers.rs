//! Behaviour of other implementations that differs from Roxie's.

use roxie::sim::Host;
use roxie::time::Nanos;
use roxie::verbs::{WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, Gid, NakCode, Opcode, Syndrome, rnr_timer_ns};

use crate::{FIRST, RETRIES, Stage, TIMEOUT};

/// rdma_rxe sends a sequence NAK for the packets after the one that got an RNR NAK.
#[test]
fn sequence_naks_during_rnr_wait_cost_no_retries() {
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

/// While a peer sends a long response, it does not yet see the repeated request, as with rdma_rxe.
#[test]
fn late_responses_delay_the_timeout() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Read, 100 * 256);
    assert_eq!(stage.wait(Nanos(1000)), [(Opcode::RC_READ_REQUEST, FIRST)]);
    // The first packet of the response is lost; the others arrive over several ACK timeouts.
    stage.read_middle(FIRST + 1, 0xee);
    assert_eq!(stage.wait(Nanos(1000)), [(Opcode::RC_READ_REQUEST, FIRST)]);
    for k in 2..40 {
        stage.read_middle(FIRST + k, 0xee);
        assert_eq!(stage.wait(Nanos(TIMEOUT.0 / 4)), [], "response {k} shows that the peer is at work");
    }
    // Then no more arrive: each timeout costs one retry, and a late packet does not cost another.
    assert_eq!(stage.wait(TIMEOUT), [(Opcode::RC_READ_REQUEST, FIRST)]);
    stage.read_middle(FIRST + 40, 0xee);
    assert_eq!(stage.wait(Nanos(1000)), []);
    // Packets that answer the repeated request are taken.
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

/// A station that took over an address is the new next hop of that address only.
#[test]
fn new_next_hop_affects_only_its_address() {
    let mut stage = Stage::new();
    let peer = |number| Gid::from(Host::address(number, false));
    let mac = [2, 0, 0, 0, 0, 77];
    assert_eq!(stage.host.worker.set_next_hop(peer(9), mac), 0);
    stage.post(WrOpcode::Write, 8);
    assert_eq!(stage.packets()[0].0.dst_mac, Host::mac(2));
    assert_eq!(stage.host.worker.set_next_hop(peer(2), mac), 1);
    assert_eq!(stage.host.worker.set_next_hop(peer(2), mac), 0, "it leads there already");
    stage.post(WrOpcode::Write, 8);
    assert_eq!(stage.packets()[0].0.dst_mac, mac);
}
