//! Effects of a change of the link on the QPs.

use super::{Answer, ControlError, Nic, split};
use crate::verbs::{AddressVector, AsyncEvent, EventKind, LocalGid, Mtu, QpIndex, QpState};
use roxie_base::time::Nanos;

impl Nic {
    /// Sets the largest path MTU after a change of the link; `None`: not even the smallest fits.
    ///
    /// Connected QPs with packets that no longer fit enter the error state, each with an event. Datagrams that no
    /// longer fit fail individually. Returns the number of failed QPs.
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

    /// Replaces the GIDs. QPs whose source is gone enter the error state, each with an event; work requests along
    /// handles from there fail.
    pub(super) fn set_gids(&mut self, now: Nanos, gids: Vec<LocalGid>) -> Result<Answer, ControlError> {
        self.gids.set(gids)?;
        self.handles.mark_removed(|av| !self.gids.may_send(av));
        for place in 0..self.qps.places() {
            let index = QpIndex(self.qps.name_at(place));
            let path = self.qps.get(index.0).and_then(|entry| entry.qp.attributes().av);
            if path.is_some_and(|av| !self.gids.may_send(&av)) {
                self.fail_qp(now, index);
            }
        }
        Ok(Answer::Done)
    }

    /// Moves a QP to the error state, with an event, for a reason outside of the QP.
    pub fn fail_qp(&mut self, now: Nanos, index: QpIndex) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        split!(self, now, entry => qp, ctx);
        if qp.fail(&mut ctx) {
            self.out.events.push(AsyncEvent::Qp(index, EventKind::QpFatal));
        }
        self.mark_changed(index);
    }

    /// As [`fail_qp`](Self::fail_qp), for a QP that has lost a write: its peer hears nothing more.
    pub fn lose_qp(&mut self, now: Nanos, index: QpIndex) {
        self.fail_qp(now, index);
        if let Some(entry) = self.qps.get_mut(index.0) {
            entry.qp.forget_replies();
        }
    }

    /// Sets the port's MAC address, the source address of all QPs and address handles.
    pub fn set_station(&mut self, mac: [u8; 6]) {
        self.handles.readdress(|av| av.smac = mac);
        for index in 0..self.qps.places() {
            if let Some(entry) = self.qps.get_mut(index) {
                entry.qp.readdress(|av| av.smac = mac);
            }
        }
    }

    /// Sets the MAC address of the next hop of some paths. Returns the number of QPs and address handles that change.
    pub fn set_next_hop(&mut self, goes_there: impl Fn(&AddressVector) -> bool, mac: [u8; 6]) -> u32 {
        let mut changed = self.handles.readdress(|av| {
            if goes_there(av) {
                av.dmac = mac;
            }
        });
        for index in 0..self.qps.places() {
            if let Some(entry) = self.qps.get_mut(index)
                && entry.qp.attributes().av.is_some_and(|av| goes_there(&av) && av.dmac != mac)
            {
                entry.qp.readdress(|av| av.dmac = mac);
                changed += 1;
            }
        }
        changed
    }
}
