//! Packets of services without acknowledgements, and congestion notifications: what each says by itself, and with the
//! one before it.

use std::collections::HashMap;

use roxie_wire::{Operation, Packet, Position, Psn, Service};

use super::rules::{Rule, Tally};
use super::stream::{length_fits, may_follow};
use super::{Key, MOST_STREAMS};

/// Reserved bytes behind the BTH of a congestion notification. The parser takes them for a header.
const RESERVED: usize = 16;

/// The last packet to a queue pair of UC.
#[derive(Clone, Copy, Debug)]
struct Last {
    psn: Psn,
    shape: (Operation, Position),
    length: u32,
    frame: u64,
}

/// Judges packets that nothing acknowledges. What was lost makes no rule stricter: two packets are compared if their
/// PSNs are successive.
#[derive(Debug, Default)]
pub(super) struct Unreliable {
    last: HashMap<Key, Last>,
}

impl Unreliable {
    /// Takes a packet of the scene.
    pub(super) fn take(&mut self, packet: &Packet, key: Key, tally: &mut Tally) {
        match packet.info().service {
            Service::Uc => self.connected(packet, key, tally),
            Service::Ud => check_length(packet, None, tally),
            Service::Cnp => check_notification(packet, tally),
            Service::Rc | Service::Xrc | Service::Rd => {}
        }
    }

    /// A packet of UC.
    fn connected(&mut self, packet: &Packet, key: Key, tally: &mut Tally) {
        let (psn, info) = (packet.bth.psn, packet.info());
        let shape = (info.operation, info.position);
        let before = self.last.get(&key).copied().filter(|last| last.psn + 1 == psn);
        if let Some(before) = before {
            tally.judge_by(Rule::OpcodesInOrder, may_follow(before.shape, shape), Some(before.frame), || {
                let ((one, at), (next, to)) = (before.shape, shape);
                format!("{one:?} {at:?} is followed by {next:?} {to:?}, at PSN {psn}")
            });
        }
        let begun = before.filter(|last| matches!(last.shape.1, Position::First | Position::Middle));
        check_length(packet, begun.map(|last| last.length), tally);
        if self.last.len() < MOST_STREAMS || self.last.contains_key(&key) {
            let (length, frame) = (packet.payload.len() as u32, tally.scene.frame);
            self.last.insert(key, Last { psn, shape, length, frame });
        }
    }
}

/// Checks the length of a packet. `before`: that of the packet before it in its message.
fn check_length(packet: &Packet, before: Option<u32>, tally: &mut Tally) {
    let (info, length) = (packet.info(), packet.payload.len() as u32);
    // That before a FIRST or an ONLY is of another message.
    let mtu = before.filter(|_| matches!(info.position, Position::Middle | Position::Last));
    tally.judge(Rule::LengthsFit, length_fits(info.position, length, mtu), || {
        let before = before.map_or(String::new(), |before| format!("; the one before has {before}"));
        format!("{} of PSN {} has {length} bytes{before}", info.name, packet.bth.psn)
    });
}

/// Checks the form of a congestion notification (IBTA A17.9.3).
fn check_notification(packet: &Packet, tally: &mut Tally) {
    let (bth, length) = (&packet.bth, RESERVED + packet.payload.len());
    let holds = bth.becn && !bth.ack_req && length == RESERVED;
    tally.judge(Rule::NotificationForm, holds, || {
        let becn = if bth.becn { "BECN" } else { "no BECN" };
        let asks = if bth.ack_req { ", asks for an acknowledgement" } else { "" };
        format!("a notification has {becn} and {length} bytes{asks}")
    });
}
