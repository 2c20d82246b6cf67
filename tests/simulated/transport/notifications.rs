//! Congestion notification packets (IBTA annex A17.9.3) pass the checks of any other packet before a control sees them.

use roxie::verbs::{QpAttr, QpState, QpType};
use roxie::wire::{Bth, Ext, Opcode};

use crate::transport::{Setup, Stage, template};

fn notification(stage: &Stage) -> Bth {
    Bth { opcode: Opcode::CNP, becn: true, dest_qp: stage.qp.handle.qpn, ..Bth::default() }
}

/// Asserts that `counter` is 1 and the other counters are 0.
fn assert_counted(stage: &Stage, counter: &str, what: &str) {
    let names = [
        "rp_cnp_ignored",
        "rx_wrong_source",
        "rx_malformed",
        "rx_wrong_service",
        "rx_bad_pkey",
        "rx_wrong_state",
    ];
    for name in names {
        assert_eq!(stage.counter(name), u64::from(name == counter), "{what}: {name}");
    }
}

fn arrives(stage: &mut Stage, bth: &Bth, counter: &str, what: &str) {
    stage.send(bth, &Ext::None, &[]);
    assert_eq!(stage.answers(), [], "{what}");
    assert_counted(stage, counter, what);
}

#[test]
fn cnp_reaches_both_connected_services() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut stage = Stage::with(Setup { qp_type, ..Setup::default() });
        let bth = notification(&stage);
        arrives(&mut stage, &bth, "rp_cnp_ignored", &format!("{qp_type:?}"));
    }
}

//= test: IBTA A17.9.3: cnp-is-checked
#[test]
fn cnp_from_a_stranger_is_a_wrong_source() {
    let mut stage = Stage::new();
    let bth = notification(&stage);
    stage.template = template(3);
    arrives(&mut stage, &bth, "rx_wrong_source", "another address");
}

//= test: IBTA A17.9.3: cnp-is-checked
#[test]
fn cnp_without_becn_or_too_long_is_malformed() {
    let mut stage = Stage::new();
    let bth = Bth { becn: false, ..notification(&stage) };
    arrives(&mut stage, &bth, "rx_malformed", "BECN 0");
    for (length, pad) in [(20, 0), (32, 0), (272, 0), (20, 1), (12, 0), (0, 0)] {
        let mut stage = Stage::new();
        let bth = notification(&stage);
        stage.send_padded(&bth, &vec![0; length], pad);
        let what = format!("{length} bytes, {pad} of them pad");
        assert_eq!(stage.answers(), [], "{what}");
        assert_counted(&stage, "rx_malformed", &what);
    }
}

//= test: IBTA A17.9.3: cnp-is-checked
#[test]
fn cnp_with_another_pkey_is_dropped() {
    let mut stage = Stage::new();
    let bth = Bth { pkey: 0x8001, ..notification(&stage) };
    arrives(&mut stage, &bth, "rx_bad_pkey", "P_Key 0x8001");
}

/// A CNP carries no DETH: a datagram QP cannot tell its sender or the affected flow.
#[test]
fn ud_qp_rejects_cnps() {
    let mut stage = Stage::with(Setup { qp_type: QpType::Ud, ..Setup::default() });
    let bth = notification(&stage);
    arrives(&mut stage, &bth, "rx_wrong_service", "UD");
}

#[test]
fn cnp_in_reset_or_error_is_dropped() {
    for state in [QpState::Reset, QpState::Err] {
        let mut stage = Stage::new();
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        stage.host.modify(stage.now, &stage.qp, &attr).expect("from any state");
        let bth = notification(&stage);
        arrives(&mut stage, &bth, "rx_wrong_state", &format!("{state:?}"));
    }
}
