//! UD: datagrams, the network header in front of them, Q_Keys, multicast.

use std::net::IpAddr;
use std::ops::Range;

use super::transfer::{MESSAGES, Plan};
use super::{Failure, PATIENCE, carry_out, expect_pattern, expect_receives, must};
use crate::end::{
    Access, Destination, Done, End, Handle, MULTICAST_QPN, Pair, PairKind, Receive, Registration, Request,
    Status,
};
use crate::error::Error;
use crate::rows::{Family, Network, Op};

/// Bytes of network header in front of a datagram in its receive.
const HEADER: usize = 40;
const QKEY: u32 = 0x1122_3344;
/// Bytes of the messages of feature rows.
const LENGTH: usize = 500;
/// The TTL of both ends' handles.
const HOP_LIMIT: u8 = 64;
/// UDP header, BTH, DETH and ICRC: the IP payload beside the message and its immediate data.
const AROUND: usize = 8 + 12 + 8 + 4;
const IPPROTO_UDP: u8 = 17;
/// Next header of a GRH: an InfiniBand transport header (IBTA 8.3.1).
const NEXT_IS_BTH: u8 = 0x1b;
/// Bytes of a UDP header, which RoCE v1 lacks.
const UDP: usize = 8;

/// A datagram queue pair and a region at each end, and the requester's address handle.
struct Stage<'a> {
    requester: &'a mut dyn End,
    responder: &'a mut dyn End,
    local: Registration,
    remote: Registration,
    requesting: Pair,
    answers: Pair,
    handle: Handle,
    family: Family,
}

impl<'a> Stage<'a> {
    /// `remote` has room for `slots` receives of `size` bytes.
    fn set(
        (family, seed): (Family, u64),
        (slots, size): (usize, usize),
        requester: &'a mut dyn End,
        responder: &'a mut dyn End,
    ) -> Result<Stage<'a>, Error> {
        let local = requester.register((slots * size).max(1), Access::ALL)?;
        let remote = responder.register(slots * (HEADER + size), Access::ALL)?;
        responder.fill(remote, 0..slots * (HEADER + size), !0)?;
        let psn = seed as u32 & 0xff_ffff;
        let requesting = requester.create_pair(PairKind::Ud { qkey: QKEY, psn })?;
        let answers = responder.create_pair(PairKind::Ud { qkey: QKEY, psn: !psn & 0xff_ffff })?;
        let handle = requester.create_handle(family, responder.address(family)?)?;
        Ok(Stage { requester, responder, local, remote, requesting, answers, handle, family })
    }

    fn to(&self, qkey: u32) -> Option<Destination> {
        Some(Destination { handle: self.handle, qpn: self.answers.qpn, qkey })
    }

    /// Returns the range of receive `i`, with its header.
    fn receive_range(&self, i: usize, size: usize) -> Range<usize> {
        i * (HEADER + size)..(i + 1) * (HEADER + size)
    }

    fn post_receive(&mut self, i: usize, size: usize) -> Result<(), Error> {
        let to = Some((self.remote, self.receive_range(i, size).start, HEADER + size));
        self.responder.post_receive(self.answers, &Receive { wr_id: 1000 + i as u64, to })
    }

    /// Sends message `i`, which completes at once.
    fn send(&mut self, i: usize, seed: u64, datagram: Option<Destination>) -> Result<(), Failure> {
        let from = i * LENGTH;
        self.requester.fill(self.local, from..from + LENGTH, seed)?;
        let local = Some((self.local, from, LENGTH));
        let request = Request { local, datagram, ..Request::new(i as u64, Op::Send) };
        carry_out(self.requester, self.requesting, &request, Status::SUCCESS).map(drop)
    }

    /// Checks that receive `i`, and no other, holds the message of `seed`.
    fn expect(&mut self, i: usize, seed: u64) -> Result<(), Failure> {
        let seen = expect_receives(self.responder, self.answers, &[1000 + i as u64])?;
        must!(seen[0].byte_len as usize == HEADER + LENGTH, "byte_len {}", seen[0].byte_len);
        let range = self.receive_range(i, LENGTH);
        expect_pattern(self.responder, self.remote, range.start + HEADER..range.end, seed, "the datagram")
    }
}

/// Sends datagrams of one size; checks data, length, sender, immediate data, and each byte of the network header.
pub(super) fn transfer(plan: &Plan, requester: &mut dyn End, responder: &mut dyn End) -> Result<(), Failure> {
    let size = plan.size;
    let mut stage = Stage::set((plan.family, plan.seed), (MESSAGES, size), requester, responder)?;
    let seed_of = |i: usize| plan.seed.wrapping_add(i as u64);
    let imm = |i: usize| (plan.seed >> 32) as u32 ^ i as u32;
    let datagram = stage.to(QKEY);
    for i in 0..MESSAGES {
        stage.requester.fill(stage.local, i * size..(i + 1) * size, seed_of(i))?;
        stage.post_receive(i, size)?;
    }
    for i in 0..MESSAGES {
        let local = Some((stage.local, i * size, size));
        let request = Request { local, imm: imm(i), datagram, ..Request::new(i as u64, plan.op) };
        stage.requester.post_send(stage.requesting, &request)?;
    }
    let sent = stage.requester.poll(stage.requesting, MESSAGES, PATIENCE)?;
    let good =
        |c: &crate::end::Completion| (c.status, c.done) == (Status::SUCCESS, Some(Done::Request(Op::Send)));
    must!(sent.len() == MESSAGES && sent.iter().all(good), "the requester's completions are {sent:?}");
    let wr_ids: Vec<u64> = (1000..).take(MESSAGES).collect();
    let seen = expect_receives(stage.responder, stage.answers, &wr_ids)?;
    for (i, c) in seen.iter().enumerate() {
        let want = plan.op.has_imm().then(|| imm(i));
        must!(c.byte_len as usize == HEADER + size, "byte_len {}, should be {}", c.byte_len, HEADER + size);
        must!(c.imm == want, "immediate data {:x?} and should be {want:x?}", c.imm);
        let from = stage.requesting.qpn;
        must!(
            c.datagram_from == Some(from),
            "it is from {:x?} and should be from {from:#x}",
            c.datagram_from
        );
        let range = stage.receive_range(i, size);
        let (data, to) = (range.start + HEADER..range.end, stage.responder.address(plan.family)?);
        expect_pattern(stage.responder, stage.remote, data, seed_of(i), "the datagram")?;
        let padded = size.next_multiple_of(4) + if plan.op.has_imm() { 4 } else { 0 };
        match plan.network {
            Network::V1 => check_grh(&mut stage, range.start, to, AROUND - UDP + padded)?,
            _ => check_header(&mut stage, range.start, to, AROUND + padded)?,
        }
    }
    Ok(())
}

/// Checks the 40 bytes in front of a datagram: the IPv6 header, or 20 zero bytes and the IPv4 header (annex A17.4.5.1).
fn check_header(stage: &mut Stage<'_>, start: usize, to: IpAddr, payload: usize) -> Result<(), Failure> {
    let got = stage.responder.read(stage.remote, start..start + HEADER)?;
    let want = match (stage.requester.address(stage.family)?, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut want = vec![0; 20];
            let total = (20 + payload) as u16;
            want.extend([0x45, 0]);
            want.extend(total.to_be_bytes());
            // The sender chooses the identification; the checksum follows from it.
            want.extend(&got[24..26]);
            want.extend([0x40, 0, HOP_LIMIT, IPPROTO_UDP]);
            want.extend(&got[30..32]);
            want.extend(from.octets());
            want.extend(to.octets());
            // A packet that never leaves its host has no checksum.
            let sound = from == to || internet_sum(&got[20..]) == 0xffff;
            must!(sound, "the IPv4 header's checksum is wrong: {got:02x?}");
            want
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut want = vec![0x60, 0, 0, 0];
            want.extend((payload as u16).to_be_bytes());
            want.extend([IPPROTO_UDP, HOP_LIMIT]);
            want.extend(from.octets());
            want.extend(to.octets());
            want
        }
        (from, to) => unreachable!("{from} and {to} are of two IP versions"),
    };
    must!(got == want, "the network header is {got:02x?} and should be {want:02x?}");
    Ok(())
}

/// Checks the 40 bytes in front of a datagram of RoCE v1: the GRH as sent, with IPv4 addresses mapped into GIDs (annex
/// A17.4.2).
fn check_grh(stage: &mut Stage<'_>, start: usize, to: IpAddr, payload: usize) -> Result<(), Failure> {
    let got = stage.responder.read(stage.remote, start..start + HEADER)?;
    let gid = |address| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut want = vec![0x60, 0, 0, 0];
    want.extend((payload as u16).to_be_bytes());
    want.extend([NEXT_IS_BTH, HOP_LIMIT]);
    want.extend(gid(stage.requester.address(stage.family)?));
    want.extend(gid(to));
    must!(got == want, "the GRH is {got:02x?} and should be {want:02x?}");
    Ok(())
}

/// Returns the sum of RFC 1071: all ones if the header's checksum is right.
fn internet_sum(header: &[u8]) -> u32 {
    let words = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

/// A datagram with another Q_Key takes no receive.
pub(super) fn wrong_qkey(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set((family, seed), (2, LENGTH), requester, responder)?;
    stage.post_receive(0, LENGTH)?;
    stage.send(0, !seed, stage.to(QKEY + 1))?;
    stage.send(1, seed, stage.to(QKEY))?;
    stage.expect(0, seed)
}

/// A datagram without a receive is lost, and takes none that is posted later.
pub(super) fn no_receive(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set((family, seed), (2, LENGTH), requester, responder)?;
    stage.send(0, !seed, stage.to(QKEY))?;
    super::unreliable::overtake(family, seed, stage.requester, stage.responder)?;
    stage.post_receive(0, LENGTH)?;
    stage.send(1, seed, stage.to(QKEY))?;
    stage.expect(0, seed)
}

/// Returns a group of organization-local scope (RFC 2365, RFC 4291 2.7).
fn group(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([239, 71, 1, 2]),
        Family::V6 => IpAddr::from([0xff18, 0, 0, 0, 0, 0, 0x71, 0x102]),
    }
}

/// The responder joins a group, receives a datagram to it, leaves, and receives no more.
pub(super) fn multicast(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set((family, seed), (3, LENGTH), requester, responder)?;
    let (group, answers) = (group(family), stage.answers);
    let member = stage.responder.is_member(group)?;
    must!(!member, "the responder's kernel was in {group} before");
    stage.responder.attach(answers, group)?;
    let member = stage.responder.is_member(group)?;
    must!(member, "the responder's kernel is not in {group}");
    let handle = stage.requester.create_handle(family, group)?;
    let to_group = Some(Destination { handle, qpn: MULTICAST_QPN, qkey: QKEY });
    stage.post_receive(0, LENGTH)?;
    stage.send(0, seed, to_group)?;
    stage.expect(0, seed)?;
    check_header(&mut stage, 0, group, AROUND + LENGTH)?;
    stage.responder.detach(answers, group)?;
    let member = stage.responder.is_member(group)?;
    must!(!member, "the responder's kernel is still in {group}");
    stage.post_receive(1, LENGTH)?;
    stage.send(1, !seed, to_group)?;
    stage.send(2, seed.rotate_left(1), stage.to(QKEY))?;
    stage.expect(1, seed.rotate_left(1))
}
