//! The form of packets: lengths, and the order of operations and positions.

use roxie_wire::{NetHeader, Operation, Packet, Position, Psn};

use super::{Cause, MOST_SHAPES, MTUS, Request, Stream};
use crate::through::rules::{Rule, Tally};

/// True if a packet may have this length. `mtu`: the path MTU, if it is known.
pub(in crate::through) fn length_fits(position: Position, length: u32, mtu: Option<u32>) -> bool {
    match position {
        Position::First | Position::Middle => MTUS.contains(&length) && mtu.is_none_or(|mtu| mtu == length),
        Position::Last => length > 0 && length <= mtu.unwrap_or(MTUS[0]),
        Position::Only => length <= mtu.unwrap_or(MTUS[0]),
    }
}

/// True if a packet of the second shape may follow one of the first.
pub(in crate::through) fn may_follow(
    (operation, position): (Operation, Position),
    next: (Operation, Position),
) -> bool {
    let continues = matches!(next.1, Position::Middle | Position::Last);
    match position {
        Position::First | Position::Middle => continues && operation == next.0,
        Position::Last | Position::Only => !continues,
    }
}

impl Stream {
    /// Checks the length of a packet of either direction.
    pub(super) fn check_length(&mut self, packet: &Packet, rules: &mut Tally) {
        let info = packet.info();
        if !matches!(info.operation, Operation::Send | Operation::Write | Operation::ReadResponse) {
            return;
        }
        let length = packet.payload.len() as u32;
        let mtu = self.mtu.filter(|_| self.is_mtu_sure);
        rules.judge(Rule::LengthsFit, length_fits(info.position, length, mtu), || {
            let mtu = mtu.map_or("not known".to_owned(), |mtu| format!("{mtu} bytes by earlier packets"));
            format!("{} of PSN {} has {length} bytes; the path MTU is {mtu}", info.name, packet.bth.psn)
        });
        if matches!(info.position, Position::First | Position::Middle) {
            self.learn(length);
        }
    }

    /// Checks the operation and position of a request, which ends before the PSN `end`, against those of the requests
    /// beside it.
    pub(super) fn check_shape(&mut self, packet: &Packet, end: Psn, rules: &mut Tally) {
        let (psn, info) = (packet.bth.psn, packet.info());
        let shape = (info.operation, info.position);
        // Of a new request, these are of the same PSNs a lap before.
        let is_new = !psn.is_before(self.next);
        let known = self.shapes.get(&psn.value()).copied().filter(|_| !is_new);
        // A READ may go on at any of its PSNs.
        if let Some(known) = known.filter(|known| known.0 != Operation::ReadRequest) {
            rules.judge(Rule::AgainAlike, known == shape, || {
                format!("PSN {psn} is sent again as {}, and was {:?} {:?}", info.name, known.0, known.1)
            });
        }
        let before = self.shapes.get(&(psn + 0x00ff_ffff).value()).copied();
        let after = self.shapes.get(&end.value()).copied().filter(|_| !is_new);
        let pairs = [before.map(|before| (before, shape)), after.map(|after| (shape, after))];
        for (one, next) in pairs.into_iter().flatten() {
            rules.judge(Rule::OpcodesInOrder, may_follow(one, next), || {
                format!("{:?} {:?} is followed by {:?} {:?}, at PSN {psn}", one.0, one.1, next.0, next.1)
            });
        }
        if self.shapes.insert(psn.value(), shape).is_none() {
            self.shaped.push_back(psn.value());
        }
        if self.shaped.len() > MOST_SHAPES
            && let Some(oldest) = self.shaped.pop_front()
        {
            self.shapes.remove(&oldest);
        }
    }

    /// Checks that a sequence NAK is the first of its gap. A network may double one.
    pub(super) fn check_nak(&mut self, packet: &Packet, rules: &mut Tally) {
        let (psn, frame) = (packet.bth.psn, rules.scene.frame);
        let id = match packet.net {
            NetHeader::Ipv4(header) => Some(header.id),
            NetHeader::Ipv6(_) | NetHeader::Grh(_) => None,
        };
        let before = self.nak_sent.replace(Cause { psn, frame, id }).filter(|nak| nak.psn == psn);
        let is_copy = before.is_some_and(|nak| nak.id == id) && (id.is_some() || !rules.scene.is_own);
        if self.is_captured && is_copy {
            return rules.undecided(Rule::NakOnce, || {
                format!("a sequence NAK of PSN {psn} in frame {frame} may be a copy of the one before")
            });
        }
        rules.judge_by(Rule::NakOnce, before.is_none(), before.map(|nak| nak.frame), || {
            format!("a second sequence NAK of PSN {psn}, which has not come since the first")
        });
    }

    /// Checks the position and length of a READ response by its request.
    pub(super) fn check_response(&mut self, packet: &Packet, rules: &mut Tally) {
        let (psn, info) = (packet.bth.psn, packet.info());
        let is_response = info.operation == Operation::ReadResponse;
        let Some(mtu) = self.mtu.filter(|_| is_response && self.is_mtu_sure) else { return };
        let covers = |request: &Request| {
            request.operation == Operation::ReadRequest
                && !psn.is_before(request.psn)
                && psn.is_before(request.psn + request.span(Some(mtu)))
        };
        // The responses to a part of a READ begin and end with the part.
        let found = self
            .outstanding
            .iter_mut()
            .find(|request| covers(request))
            .filter(|request| !request.has_restarted);
        let Some(request) = found else { return };
        let (at, span) = (psn.distance_from(request.psn) as u32, request.span(Some(mtu)));
        let begins = matches!(info.position, Position::First | Position::Only);
        if self.is_captured && begins && at > 0 {
            // The capture may lack the request for this part.
            request.has_restarted = true;
            return rules.undecided(Rule::ResponsesFit, || {
                format!(
                    "{} of PSN {psn} begins within a READ: the capture may lack a READ of that part",
                    info.name
                )
            });
        }
        let is_last = at + 1 == span;
        let length = if is_last { request.dma - at * mtu } else { mtu };
        let fits = match info.position {
            Position::First => at == 0 && !is_last,
            Position::Middle => at > 0 && !is_last,
            Position::Last => at > 0 && is_last,
            Position::Only => at == 0 && is_last,
        };
        let has = packet.payload.len() as u32;
        rules.judge(Rule::ResponsesFit, fits && has == length, || {
            let place = format!("packet {} of {span} of the READ of {} bytes", at + 1, request.dma);
            format!("{} of {has} bytes has PSN {psn}: {place}, which has {length} bytes", info.name)
        });
    }
}
