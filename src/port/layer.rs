//! Delegation from a layer to the port below it.

/// Implements methods of [`Port`](super::Port) by a call of the port below, field `inner`.
///
/// A layer lists the methods by name, so that a method which it must not delegate blindly (`follow`, `info`) is a
/// visible decision.
macro_rules! pass_on {
    ($($method:ident),+ $(,)?) => { $( pass_on!(@$method); )+ };
    (@tx_alloc) => {
        fn tx_alloc(&mut self, len: usize) -> Option<$crate::TxId> {
            self.inner.tx_alloc(len)
        }
    };
    (@tx_frame) => {
        fn tx_frame(&mut self, id: &$crate::TxId) -> roxie_base::frame::FrameMut<'_> {
            self.inner.tx_frame(id)
        }
    };
    (@set_now) => {
        fn set_now(&mut self, now: roxie_base::time::Nanos) {
            self.inner.set_now(now);
        }
    };
    (@tx_arrange) => {
        fn tx_arrange(&mut self) {
            self.inner.tx_arrange();
        }
    };
    (@tx_note) => {
        fn tx_note(&mut self, id: &$crate::TxId, note: std::fmt::Arguments<'_>) {
            self.inner.tx_note(id, note);
        }
    };
    (@tx_cancel) => {
        fn tx_cancel(&mut self, id: $crate::TxId) {
            self.inner.tx_cancel(id);
        }
    };
    (@tx_flush) => {
        fn tx_flush(&mut self, now: roxie_base::time::Nanos) -> std::io::Result<()> {
            self.inner.tx_flush(now)
        }
    };
    (@rx_waiting) => {
        fn rx_waiting(&mut self) -> Option<(usize, usize)> {
            self.inner.rx_waiting()
        }
    };
    (@set_rx_wishes) => {
        fn set_rx_wishes(&mut self, wishes: $crate::RxOptions) -> std::io::Result<()> {
            self.inner.set_rx_wishes(wishes)
        }
    };
    (@set_vlans) => {
        fn set_vlans(&mut self, addresses: &[(std::net::IpAddr, u16)]) -> std::io::Result<()> {
            self.inner.set_vlans(addresses)
        }
    };
    (@expect_frames) => {
        fn expect_frames(&mut self, frames: usize) {
            self.inner.expect_frames(frames);
        }
    };
    (@is_sent) => {
        fn is_sent(&mut self, id: &$crate::TxId) -> bool {
            self.inner.is_sent(id)
        }
    };
    (@wants_notes) => {
        fn wants_notes(&self) -> bool {
            self.inner.wants_notes()
        }
    };
    (@tx_pending) => {
        fn tx_pending(&self) -> bool {
            self.inner.tx_pending()
        }
    };
    (@join) => {
        fn join(&mut self, group: std::net::IpAddr) -> std::io::Result<()> {
            self.inner.join(group)
        }
    };
    (@leave) => {
        fn leave(&mut self, group: std::net::IpAddr) {
            self.inner.leave(group);
        }
    };
    (@steer) => {
        fn steer(&mut self, flows: &[roxie_base::flow::FlowMatch]) -> std::io::Result<()> {
            self.inner.steer(flows)
        }
    };
    (@undelivered) => {
        fn undelivered(&self) -> std::io::Result<Option<$crate::undelivered::Undelivered>> {
            self.inner.undelivered()
        }
    };
    (@event_fds) => {
        fn event_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            self.inner.event_fds()
        }
    };
}
