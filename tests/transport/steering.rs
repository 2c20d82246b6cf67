//! A port that stops taking flows, as the kernel may.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use roxie::flow::FlowMatch;
use roxie::frame::FrameMut;
use roxie::nic::{Command, ControlError};
use roxie::port::{Port, PortInfo, Received, TxId};
use roxie::time::Nanos;
use roxie::verbs::QpType;

use crate::raw::{another, flow, of_type};
use crate::{Setup, Stage, joined_ports};

const TYPE: [u8; 2] = [0x88, 0xb5];

/// A port, and whether it refuses to steer.
struct Refusing(Box<dyn Port>, Arc<AtomicBool>);

impl Port for Refusing {
    fn info(&self) -> &PortInfo {
        self.0.info()
    }
    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.0.rx_burst(now)
    }
    fn rx_frame(&self, i: usize) -> Received<'_> {
        self.0.rx_frame(i)
    }
    fn rx_release(&mut self) {
        self.0.rx_release();
    }
    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        self.0.tx_alloc(len)
    }
    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.0.tx_frame(id)
    }
    fn tx_commit(&mut self, id: TxId) {
        self.0.tx_commit(id);
    }
    fn tx_cancel(&mut self, id: TxId) {
        self.0.tx_cancel(id);
    }
    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.0.counters(out);
    }
    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.0.tx_flush(now)
    }
    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        if self.1.load(Relaxed) { Err(io::Error::other("the map is full")) } else { self.0.steer(flows) }
    }
}

/// The flow that stays is the newest one, which a failed addition would have taken with it.
#[test]
fn refused_steering_keeps_earlier_flows() {
    let refuses = Arc::new(AtomicBool::new(false));
    let (near, far) = joined_ports(1500, None);
    let near = Box::new(Refusing(near, Arc::clone(&refuses)));
    let mut stage = Stage::on(Setup { qp_type: QpType::RawPacket, ..Setup::default() }, near, far);
    let [leaving, staying] = [another(&mut stage), another(&mut stage)];
    flow(&mut stage, &leaving, of_type(0, TYPE)).unwrap();
    let kept = flow(&mut stage, &staying, of_type(1, TYPE)).unwrap();
    refuses.store(true, Relaxed);
    stage.host.call_now(Command::DestroyQp(leaving.handle.index)).expect("the QP and its flow are gone");
    assert_eq!(stage.host.worker.nic().objects().flows, 1);
    let refused = flow(&mut stage, &staying, of_type(2, TYPE));
    assert!(
        matches!(&refused, Err(ControlError::Steer(why)) if why.contains("the map is full")),
        "{refused:?}"
    );
    assert_eq!(stage.host.worker.nic().objects().flows, 1);
    stage.host.call_now(Command::DestroyFlow(kept)).expect("the flow is gone");
    assert_eq!(stage.host.worker.nic().objects().flows, 0);
}
