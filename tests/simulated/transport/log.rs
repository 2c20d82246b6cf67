//! The log that a QP keeps of its events.

use roxie::nic::{Answer as Reply, Command, LOG_LENGTH};
use roxie::time::Nanos;
use roxie::verbs::{QpAttr, QpState, WrOpcode};
use roxie::wire::{Ext, NakCode, Opcode, Syndrome};

use crate::transport::{FIRST, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);

impl Stage {
    /// Returns the QP's log without the times.
    pub(crate) fn log(&mut self) -> Vec<String> {
        let index = self.qp.handle.index;
        match self.host.call(self.now, Command::QueryLog(index)) {
            Ok(Reply::QpLog(records)) => {
                let text = |record: &roxie::nic::QpRecord| {
                    let text = record.to_string();
                    let time = format!("{} ", record.at);
                    text.strip_prefix(&time).expect("a record begins with its time").to_owned()
                };
                records.iter().map(text).collect()
            }
            other => panic!("a log: {other:?}"),
        }
    }
}

const BEGINNING: [&str; 3] = ["Reset -> Init", "Init -> Rtr", "Rtr -> Rts"];

#[test]
fn routine_traffic_leaves_no_log_record() {
    let mut stage = Stage::new();
    stage.receive(1, 0, 64);
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]);
    stage.post(WrOpcode::Write, 8);
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 31 }, 1);
    stage.wait(SOON);
    assert_eq!(stage.log(), BEGINNING);
}

#[test]
fn log_lists_drops_naks_and_timeouts_in_order() {
    let mut stage = Stage::new();
    stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]);
    for psn in [3, 4, 5] {
        stage.request(Opcode::RC_WRITE_ONLY, psn, Ext::Reth(stage.reth(0, 8)), &[1; 8]);
    }
    stage.post(WrOpcode::Write, 8);
    stage.wait(Nanos(TIMEOUT.0 * 3 / 2));
    stage.acknowledge(FIRST, Syndrome::Nak(NakCode::RemoteAccess), 0);
    stage.wait(SOON);
    let log = stage.log();
    assert_eq!(log[..3], BEGINNING);
    let expected = [
        "RC_SEND_ONLY psn 0: no receive posted: RNR NAK",
        "RC_WRITE_ONLY psn 3: ahead of its turn: PSN 0 is due; silent, already asked for, and 2 more",
        "no acknowledgement in time: timeout: go back and send again",
    ];
    assert_eq!(log[3..6], expected);
    let refused = format!("RC_ACKNOWLEDGE psn {FIRST}: work request fails, QP to error: remote access error");
    assert!(log[6].starts_with(&refused), "{}", log[6]);
    assert_eq!(log[7..], ["Rts -> Err"]);
}

#[test]
fn log_is_bounded_and_freed_with_its_qp() {
    let mut stage = Stage::new();
    for _ in 0..LOG_LENGTH {
        for state in [QpState::Sqd, QpState::Rts] {
            let attr = QpAttr { state: Some(state), ..QpAttr::default() };
            stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
        }
    }
    let log = stage.log();
    assert_eq!(log.len(), LOG_LENGTH);
    assert_eq!(log[LOG_LENGTH - 2..], ["Rts -> Sqd", "Sqd -> Rts"]);
    let index = stage.qp.handle.index;
    stage.host.call(stage.now, Command::DestroyQp(index)).expect("the QP exists");
    assert!(stage.host.call(stage.now, Command::QueryLog(index)).is_err());
}
