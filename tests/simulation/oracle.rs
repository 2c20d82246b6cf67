//! What must hold, from the outside: bytes, completions, order. Knows nothing of packets.

use roxie::sim::{HostQp, HostRegion};
use roxie::verbs::{Wc, WcOpcode, WcStatus, WrOpcode};

use crate::scenario::Op;

/// What lies between slices and must never change.
pub const GUARD: u8 = 0xa5;
/// Bytes of it.
pub const GUARD_LEN: u64 = 16;
/// Receives carry this bit in their id, sends do not.
pub const RECEIVE: u64 = 1 << 63;

/// The bytes of a message: no two messages, and no two places in one, look alike.
pub fn pattern(stream: u64, op: usize, length: usize) -> Vec<u8> {
    let seed = stream.wrapping_mul(31).wrapping_add(op as u64).wrapping_mul(0x9e37_79b9);
    (0..length as u64)
        .map(|i| ((i.wrapping_mul(0x0001_016b) ^ seed) >> (i % 3)) as u8 ^ (i >> 8) as u8)
        .collect()
}

/// Where each operation's bytes lie in a region: slices with guards between them.
#[derive(Clone, Debug)]
pub struct Layout {
    pub offsets: Vec<u64>,
    pub total: u64,
}

impl Layout {
    pub fn new(lengths: impl Iterator<Item = u64>) -> Layout {
        let mut total = GUARD_LEN;
        let offsets = lengths
            .map(|length| {
                let offset = total;
                total = (total + length + GUARD_LEN).next_multiple_of(8);
                offset
            })
            .collect();
        Layout { offsets, total: total + GUARD_LEN }
    }

    /// Everything outside of the slices is as it was.
    pub fn assert_guards(&self, region: &HostRegion, lengths: impl Iterator<Item = u64>, what: &str) {
        let bytes = region.bytes(0, self.total as usize);
        let mut covered = vec![false; bytes.len()];
        for (offset, length) in self.offsets.iter().zip(lengths) {
            covered[*offset as usize..(*offset + length) as usize].fill(true);
        }
        for (at, byte) in bytes.iter().enumerate().filter(|(at, _)| !covered[*at]) {
            assert!(*byte == GUARD, "{what}: byte {at} outside of every slice was changed to {byte:#04x}");
        }
    }
}

/// Judges the completions of one side's sends, or of the receives that the other side's sends consume.
#[derive(Debug)]
pub struct Completions {
    /// Ids that must complete, in this order.
    expected: Vec<usize>,
    next: usize,
    what: String,
}

impl Completions {
    pub fn sends(ops: &[Op], sig_all: bool, what: String) -> Completions {
        let expected = (0..ops.len()).filter(|i| sig_all || ops[*i].signaled).collect();
        Completions { expected, next: 0, what }
    }

    pub fn receives(ops: &[Op], what: String) -> Completions {
        let expected = (0..ops.len()).filter(|i| ops[*i].opcode.consumes_receive()).collect();
        Completions { expected, next: 0, what }
    }

    /// How many have come.
    pub fn count(&self) -> usize {
        self.next
    }

    pub fn all_came(&self) -> bool {
        self.next == self.expected.len()
    }

    /// The operation that a completion is for.
    fn take(&mut self, wc: &Wc, qp: &HostQp) -> usize {
        assert!(wc.status == WcStatus::Success, "{}: {:?}", self.what, wc);
        assert!(wc.qpn == qp.handle.qpn, "{}: of QP {}, not {}", self.what, wc.qpn, qp.handle.qpn);
        let Some(op) = self.expected.get(self.next) else {
            panic!("{}: a completion too many: {wc:?}", self.what);
        };
        self.next += 1;
        *op
    }

    pub fn send(&mut self, wc: &Wc, qp: &HostQp, ops: &[Op]) -> usize {
        let op = self.take(wc, qp);
        assert!(wc.wr_id == op as u64, "{}: {} completes where {op} is due", self.what, wc.wr_id);
        let opcode = match ops[op].opcode {
            WrOpcode::Send | WrOpcode::SendImm => WcOpcode::Send,
            WrOpcode::Write | WrOpcode::WriteImm => WcOpcode::Write,
            WrOpcode::Read => WcOpcode::Read,
            WrOpcode::CompareSwap => WcOpcode::CompareSwap,
            WrOpcode::FetchAdd => WcOpcode::FetchAdd,
            WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
            WrOpcode::Flush => WcOpcode::Flush,
            other => panic!("{}: {op} is {other:?}, which no stream has", self.what),
        };
        assert!(wc.opcode == opcode, "{}: {op} is {opcode:?}, not {:?}", self.what, wc.opcode);
        op
    }

    pub fn receive(&mut self, wc: &Wc, qp: &HostQp, ops: &[Op]) -> usize {
        let number = self.next as u64;
        let op = self.take(wc, qp);
        assert!(
            wc.wr_id == RECEIVE | number,
            "{}: receive {:#x} is not number {number}",
            self.what,
            wc.wr_id
        );
        let sent = &ops[op];
        let (opcode, imm) = match sent.opcode {
            WrOpcode::Send => (WcOpcode::Recv, None),
            WrOpcode::SendImm => (WcOpcode::Recv, Some(sent.imm)),
            _ => (WcOpcode::RecvWriteImm, Some(sent.imm)),
        };
        assert!(wc.opcode == opcode, "{}: {op} arrives as {:?}", self.what, wc.opcode);
        assert!(
            wc.byte_len == sent.length,
            "{}: {op} has {} bytes of {}",
            self.what,
            wc.byte_len,
            sent.length
        );
        let has_imm = wc.flags.contains(roxie::verbs::WcFlags::WITH_IMM);
        assert!(has_imm == imm.is_some(), "{}: {op}: immediate data: {has_imm}", self.what);
        assert!(imm.is_none_or(|imm| imm == wc.imm), "{}: {op}: immediate {:#x}", self.what, wc.imm);
        op
    }
}

/// The bytes are those of the operation.
pub fn assert_bytes(region: &HostRegion, offset: u64, expected: &[u8], what: &str) {
    let found = region.bytes(offset, expected.len());
    if let Some(at) = (0..expected.len()).find(|i| found[*i] != expected[*i]) {
        panic!("{what}: byte {at} of {} is {:#04x}, not {:#04x}", expected.len(), found[at], expected[at]);
    }
}
