//! An application that posts in the middle of a pass. A port calls it there.

use std::io;

use roxie::frame::FrameMut;
use roxie::nic::ReceiveSource;
use roxie::port::{Port, PortInfo, Received, TxId};
use roxie::shared::RecvRing;
use roxie::time::Nanos;
use roxie::verbs::{QpState, WcStatus};
use roxie::wire::{Ext, NakCode, Opcode};
use roxie_sim::joined_ports;

use crate::transport::{Answer, Setup, Stage};

/// A port that runs `call` after each receive burst, before the rest of the pass.
struct Calling<F> {
    inner: Box<dyn Port>,
    call: F,
    burst: usize,
}

impl<F: FnMut() + Send + 'static> Port for Calling<F> {
    fn info(&self) -> &PortInfo {
        self.inner.info()
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.burst = self.inner.rx_burst(now);
        self.burst
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        self.inner.rx_frame(i)
    }

    fn rx_release(&mut self) {
        self.inner.rx_release();
        if std::mem::take(&mut self.burst) > 0 {
            (self.call)();
        }
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        self.inner.tx_alloc(len)
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.inner.tx_frame(id)
    }

    fn tx_commit(&mut self, id: TxId) {
        self.inner.tx_commit(id);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.inner.tx_cancel(id);
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.inner.tx_flush(now)
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
    }
}

/// The late receive rings no doorbell: the queue has not been armed for one.
#[test]
fn receive_posted_while_the_qp_fails_is_flushed() {
    let (local, remote) = joined_ports(1500, None);
    let ring = RecvRing::new(8, 1).expect("memory for a queue");
    let poster = ring.clone();
    let call = move || {
        poster.post(2, &[]).expect("room for a receive");
    };
    let mut stage = Stage::on(Setup::default(), Box::new(Calling { inner: local, call, burst: 0 }), remote);
    stage.qp = stage.host.queue_pair().signal_all().receives(ReceiveSource::Own(ring)).create();
    stage.connect(&Setup::default());
    stage.receive(1, 0, 8);
    let refused = stage.request(Opcode::RC_SEND_MIDDLE, 0, Ext::None, &[1; 256]);
    assert_eq!(refused, [Answer::nak(0, NakCode::InvalidRequest)]);
    assert_eq!(stage.state(), QpState::Err);
    assert_eq!(stage.statuses(), [(1, WcStatus::WrFlush), (2, WcStatus::WrFlush)]);
}
