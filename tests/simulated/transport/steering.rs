//! A port that stops taking flows, as the kernel may.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use roxie::flow::FlowMatch;
use roxie::nic::{Command, ControlError};
use roxie::port::{Port, Received};
use roxie::verbs::QpType;

use crate::transport::placement::passed_on;
use crate::transport::raw::{another, flow, of_type};
use crate::transport::{Setup, Stage, joined_ports};

const TYPE: [u8; 2] = [0x88, 0xb5];

/// A port, and whether it refuses to steer.
struct Refusing(Box<dyn Port>, Arc<AtomicBool>);

impl Port for Refusing {
    passed_on!();

    fn rx_frame(&self, i: usize) -> Received<'_> {
        self.0.rx_frame(i)
    }

    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        if self.1.load(Relaxed) { Err(io::Error::other("the map is full")) } else { self.0.steer(flows) }
    }
}

/// The flow that stays is the newest one, which a failed addition would have taken with it.
#[test]
fn refused_steering_keeps_earlier_flows() {
    let refuses = Arc::new(AtomicBool::new(false));
    let (local, remote) = joined_ports(1500, None);
    let local = Box::new(Refusing(local, Arc::clone(&refuses)));
    let mut stage = Stage::on(Setup { qp_type: QpType::RawPacket, ..Setup::default() }, local, remote);
    let [leaving, staying] = [another(&mut stage), another(&mut stage)];
    flow(&mut stage, &leaving, of_type(0, TYPE)).unwrap();
    let flow_id = flow(&mut stage, &staying, of_type(1, TYPE)).unwrap();
    refuses.store(true, Relaxed);
    stage.host.call_now(Command::DestroyQp(leaving.handle.index)).expect("the QP and its flow are gone");
    assert_eq!(stage.host.worker.nic().objects().flows, 1);
    let refused = flow(&mut stage, &staying, of_type(2, TYPE));
    assert!(
        matches!(&refused, Err(ControlError::Steer(why)) if why.contains("the map is full")),
        "{refused:?}"
    );
    assert_eq!(stage.host.worker.nic().objects().flows, 1);
    stage.host.call_now(Command::DestroyFlow(flow_id)).expect("the flow is gone");
    assert_eq!(stage.host.worker.nic().objects().flows, 0);
}
