//! Passes of one worker by several threads.

use roxie::nic::NicConfig;
use roxie::port::memory;
use roxie::time::Nanos;
use roxie::verbs::{Access, QpAttr, QpState};
use roxie_sim::Host;

use super::end;

/// A thread may read its clock, be preempted, and run its pass after one that began later.
#[test]
fn completion_timestamps_never_decrease() {
    let (port, _peer) = memory::pair(end(1), end(2));
    let mut host = Host::new(1, NicConfig::default(), Box::new(port));
    let qp = host.queue_pair().signal_all().cq_entries(8).create();
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    let init =
        QpAttr { access: Some(Access::empty()), pkey_index: Some(0), port: Some(1), ..to(QpState::Init) };
    host.modify(Nanos(100), &qp, &init).expect("INIT");
    host.modify(Nanos(200), &qp, &to(QpState::Err)).expect("ERR");
    // In the error state, each pass flushes what was posted before it.
    for time in [300, 250, 400] {
        host.post_recv(&qp, time, &[]).expect("room");
        host.poll(Nanos(time));
    }
    let times: Vec<_> =
        std::iter::from_fn(|| qp.cq.poll_timed()).map(|(wc, time)| (wc.wr_id, time)).collect();
    assert_eq!(times, [(300, 300), (250, 300), (400, 400)]);
}
