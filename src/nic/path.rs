//! What a change of the link means to the QPs on it.

use super::{Nic, split};
use crate::time::Nanos;
use crate::verbs::{AsyncEvent, EventKind, Mtu, QpIndex, QpState};
use crate::wire::Gid;

impl Nic {
    /// The port's link changed: new path MTUs are measured by this one; `None`: not even the smallest fits.
    ///
    /// Connected QPs whose packets no longer fit go to the error state, each with an event; datagrams that
    /// no longer fit fail one by one. Returns how many QPs failed.
    pub fn set_largest_mtu(&mut self, now: Nanos, mtu: Option<Mtu>) -> u32 {
        self.config.largest_mtu = mtu.unwrap_or(Mtu::Mtu256);
        self.handles.set_largest_mtu(self.config.largest_mtu);
        let mut failed = 0;
        for place in 0..self.qps.places() {
            let Some(entry) = self.qps.get(place) else { continue };
            let sends = matches!(entry.qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            let connected = entry.qp.qp_type.is_connected();
            if sends && connected && mtu.is_none_or(|mtu| entry.qp.attributes().path_mtu > mtu) {
                self.fail_qp(now, entry.qp.index);
                failed += 1;
            }
        }
        failed
    }

    /// A QP cannot go on, for a reason outside of it: to the error state, with an event.
    pub fn fail_qp(&mut self, now: Nanos, index: QpIndex) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        split!(self, now, entry => qp, ctx);
        if qp.fail(&mut ctx) {
            self.out.events.push(AsyncEvent::Qp(index, EventKind::QpFatal));
        }
        self.touch(index);
    }

    /// The port has another station address: frames of all QPs and along all address handles come from there.
    pub fn set_station(&mut self, mac: [u8; 6]) {
        self.handles.readdress(|av| av.smac = mac);
        for index in 0..self.qps.places() {
            if let Some(entry) = self.qps.get_mut(index) {
                entry.qp.readdress(|av| av.smac = mac);
            }
        }
    }

    /// The way to a peer leads to another station: frames to it go there. Returns how many QPs and
    /// address handles that concerned.
    pub fn set_next_hop(&mut self, peer: Gid, mac: [u8; 6]) -> u32 {
        let mut changed = self.handles.readdress(|av| {
            if av.dgid == peer {
                av.dmac = mac;
            }
        });
        for index in 0..self.qps.places() {
            if let Some(entry) = self.qps.get_mut(index)
                && entry.qp.attributes().av.is_some_and(|av| av.dgid == peer && av.dmac != mac)
            {
                entry.qp.readdress(|av| av.dmac = mac);
                changed += 1;
            }
        }
        changed
    }
}
