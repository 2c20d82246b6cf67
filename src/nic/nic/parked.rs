//! The state of a QP that waits for copies: see [`parking`](super::parking).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::QpEntry;
use super::gsi::Gsis;
use super::remote_copies::Batch;
use super::table::NumberedTable;
use crate::shared::remote_memory::RemoteMemory;
use crate::verbs::{CqIndex, QpIndex, QpState, Wc};
use roxie_base::time::Nanos;
use roxie_wire::Qpn;

/// Maximum number of bytes of packets and frames that wait for the copies of one process: some 10 ms of a link of 10
/// Gb/s. A QP that has no copies under way may add the copies of one burst.
pub(super) const MAX_HELD: usize = 8 << 20;

/// The state of a parked QP.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) since: Nanos,
    /// How often the QP is in the lists of batches that are out.
    pub(super) batches: usize,
    /// The memory of the first of them, which is charged for the bytes.
    pub(super) memory: Arc<RemoteMemory>,
    /// A write could not be made.
    pub(super) has_lost: bool,
    /// The QP was reset: results of its earlier life are discarded.
    pub(super) was_reset: bool,
    pub(super) completions: Vec<(CqIndex, Wc)>,
    pub(super) frames: VecDeque<KeptFrame>,
    pub(super) set_aside: VecDeque<SetAside>,
    /// Bytes of both.
    pub(super) bytes: usize,
}

/// A frame that waits for payload.
#[derive(Debug)]
pub struct KeptFrame {
    /// The frame.
    pub bytes: Vec<u8>,
    /// True if payload is missing: the frame must not be sent; call
    /// [`Nic::payload_missing`](super::Nic::payload_missing).
    pub is_missing: bool,
    pub(super) pieces: Vec<Piece>,
}

/// Payload of a frame: these copies of a batch belong at this offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) number: u64,
    pub(super) copies: Range<usize>,
    pub(super) offset: usize,
}

/// A received frame that waits.
#[derive(Debug)]
pub struct SetAside {
    /// The frame.
    pub bytes: Vec<u8>,
    pub(super) arrived: Option<Nanos>,
}

impl Parked {
    /// The state of a QP that waits for one batch of this memory.
    pub(super) fn new(since: Nanos, memory: &Arc<RemoteMemory>) -> Parked {
        Parked {
            since,
            batches: 1,
            memory: Arc::clone(memory),
            has_lost: false,
            was_reset: false,
            completions: Vec::new(),
            frames: VecDeque::new(),
            set_aside: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn hold(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.memory.hold(bytes, 0);
    }
}

impl KeptFrame {
    /// Fills in the payload that a batch has brought.
    pub(super) fn fill(&mut self, batch: Option<&Batch>, number: u64) {
        let KeptFrame { bytes, is_missing, pieces } = self;
        pieces.retain(|Piece { copies, offset, number: of }| {
            if *of != number {
                return true;
            }
            match batch.and_then(|batch| batch.read(copies.clone())) {
                Some(payload) => bytes[*offset..*offset + payload.len()].copy_from_slice(payload),
                None => *is_missing = true,
            }
            false
        });
    }
}

impl NumberedTable<QpEntry> {
    pub(super) fn parked_mut(&mut self, qp: QpIndex) -> Option<&mut Parked> {
        if !self.holds(qp.0) {
            return None;
        }
        self.get_mut(qp.0)?.parked.as_deref_mut()
    }

    /// A write of a parked QP could not be made.
    pub(super) fn lose(&mut self, qp: Option<QpIndex>) {
        if let Some(parked) = qp.and_then(|qp| self.parked_mut(qp)) {
            parked.has_lost = true;
        }
    }

    /// Stores the result of an atomic operation, unless its QP is gone or was reset.
    pub(super) fn atomic_done(&mut self, qp: Option<QpIndex>, resource: u8, before: u64) {
        let Some(entry) = qp.filter(|qp| self.holds(qp.0)).and_then(|qp| self.get_mut(qp.0)) else { return };
        if !entry.parked.as_ref().is_some_and(|parked| parked.was_reset) {
            entry.qp.atomic_done(resource, before);
        }
    }

    /// Returns the parked QP that a completion is of.
    pub(super) fn completing(&mut self, gsis: &Gsis, cq: CqIndex, wc: &Wc) -> Option<&mut Parked> {
        let is_its = |qp: &QpIndex| {
            self.get(qp.0).is_some_and(|entry| entry.qp.send_cq == cq || entry.qp.recv_cq() == cq)
        };
        // QP1s have one number.
        let qp = match wc.qpn {
            Qpn::GSI => gsis.all().find(is_its)?,
            qpn => QpIndex(self.name_of(qpn.value())?),
        };
        self.parked_mut(qp)
    }
}

impl QpEntry {
    /// True if the QP's state takes results of frames and packets from before.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.qp.state(), QpState::Reset | QpState::Init | QpState::Err)
    }

    /// True if too many bytes of its process wait for copies.
    #[inline(always)]
    pub(super) fn holds_too_much(&self) -> bool {
        self.client.as_ref().is_some_and(|memory| memory.held() > MAX_HELD)
    }
}
