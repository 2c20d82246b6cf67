//! Memory of other processes, which takes a system call to reach: many copies in one.
//!
//! A NIC that serves other processes reads what the frames of a burst need ahead, before the first of them is filled. What the frames of
//! a burst bring is written after the last of them, before anybody is told of it: a completion, an acknowledgement, the answer to a READ.
//! By then the packets count as executed. So where a page is not there, which the process has taken away while it was registered, the QP
//! fails, and its peer is not told why.

use std::ops::Range;
use std::sync::Arc;

use super::Nic;
use super::dma::{DmaOut, HostSide};
use crate::frame::Frame;
use crate::shared::remote_memory::{Places, RemoteMemory};
use crate::time::Nanos;
use crate::transport::{DmaIn, Span};
use crate::verbs::{QpIndex, WcStatus};

/// Bytes that are read ahead, or written behind, at most.
const MOST: usize = 64 << 10;

/// Copies from and to memory of other processes that are made together.
#[derive(Debug, Default)]
pub(super) struct Far {
    pub(super) ahead: Ahead,
    behind: Behind,
    /// QPs whose payload could not be written.
    lost: Vec<QpIndex>,
}

impl Far {
    /// Has payload for `to` wait to be written behind. False: it is not for another process's memory, or more than may wait.
    pub(super) fn put_off(
        &mut self,
        host: &HostSide<'_>,
        qp: QpIndex,
        to: Span,
        bytes: (&[u8], &[u8]),
    ) -> bool {
        let length = bytes.0.len() + bytes.1.len();
        let Some((process, address)) = host.far(to, length) else { return false };
        if self.behind.add(process, (address, length), qp, bytes) {
            return true;
        }
        self.behind.write(&mut self.lost);
        self.behind.add(process, (address, length), qp, bytes)
    }
}

/// What frames that come next take from the memory of another process.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    bytes: Vec<u8>,
    places: Places,
    /// The copies that wait here, by their places in the plan.
    copies: Range<usize>,
    /// Where the bytes of the first of them begin.
    at: usize,
    /// Copies before this place have to be made one by one: not all that was asked for with them is there.
    alone_until: usize,
}

impl Ahead {
    /// The bytes of the `index`-th copy of a plan. `None`: they are not of another process, or to be copied by themselves.
    pub(super) fn take(&mut self, host: &HostSide<'_>, plan: &[DmaOut], index: usize) -> Option<&[u8]> {
        if !self.copies.contains(&index) {
            self.read(host, plan, index);
        }
        if self.copies.start != index || self.copies.is_empty() {
            return None;
        }
        let from = self.at;
        self.at += usize::from(plan[index].length);
        self.copies.start += 1;
        self.bytes.get(from..self.at)
    }

    /// The plan has been carried out.
    pub(super) fn clear(&mut self) {
        (self.copies, self.at, self.alone_until) = (0..0, 0, 0);
    }

    /// Reads what copies from the `first` on need, as far as it is of one process.
    fn read(&mut self, host: &HostSide<'_>, plan: &[DmaOut], first: usize) {
        (self.copies, self.at) = (0..0, 0);
        if first < self.alone_until {
            return;
        }
        let far = |op: &DmaOut| host.far(op.from, op.length.into());
        let Some((process, _)) = plan.get(first).and_then(far) else { return };
        self.places.clear();
        let (mut length, mut count) = (0, 0);
        for op in &plan[first..] {
            let Some((_, address)) = far(op).filter(|(of, _)| Arc::ptr_eq(of, process)) else { break };
            let more = usize::from(op.length);
            if length + more > MOST || !self.places.add(address, more) {
                break;
            }
            (length, count) = (length + more, count + 1);
        }
        if count < 2 {
            return;
        }
        self.bytes.resize(MOST, 0);
        match process.read_all(&self.places, &mut self.bytes[..length]) {
            true => self.copies = first..first + count,
            false => self.alone_until = first + count,
        }
    }
}

/// Payload that has come for the memory of one process, and is not there yet.
#[derive(Debug, Default)]
struct Behind {
    process: Option<Arc<RemoteMemory>>,
    bytes: Vec<u8>,
    places: Places,
    /// Where the bytes of each copy go, how many they are, and whose they are.
    copies: Vec<(u64, usize, QpIndex)>,
}

impl Behind {
    /// A copy more of what `bytes` adds, of `length`. False: what waits has to be written first.
    fn add(
        &mut self,
        process: &Arc<RemoteMemory>,
        (address, length): (u64, usize),
        qp: QpIndex,
        bytes: (&[u8], &[u8]),
    ) -> bool {
        let other = self.process.as_ref().is_some_and(|before| !Arc::ptr_eq(before, process));
        if other || self.bytes.len() + length > MOST || !self.places.add(address, length) {
            return false;
        }
        self.process.get_or_insert_with(|| Arc::clone(process));
        self.bytes.extend_from_slice(bytes.0);
        self.bytes.extend_from_slice(bytes.1);
        self.copies.push((address, length, qp));
        true
    }

    /// Writes all that waits. QPs whose bytes cannot be written are lost.
    fn write(&mut self, lost: &mut Vec<QpIndex>) {
        let Some(process) = self.process.take() else { return };
        if !process.write_all(&self.places, &self.bytes) {
            let mut rest = &self.bytes[..];
            for (address, length, qp) in &self.copies {
                let (these, others) = rest.split_at(*length);
                rest = others;
                if process.write(*address, these).is_err() {
                    lost.push(*qp);
                }
            }
        }
        self.bytes.clear();
        self.places.clear();
        self.copies.clear();
    }
}

impl Nic {
    /// Has what a packet of this QP asked of memory, from number `first` on, wait for [`write_behind`](Self::write_behind). False: it has
    /// to be done now, behind what waits.
    pub(super) fn put_off(&mut self, qp: QpIndex, first: usize, frame: Frame<'_>) -> bool {
        let host = HostSide { regions: &self.regions, table: &self.memory };
        let far = |op: &DmaIn| match *op {
            DmaIn::Scatter { length, to, .. } => host.far(to, length.into()).is_some(),
            _ => false,
        };
        if !self.out.dma_in[first..].iter().all(far) {
            return false;
        }
        for op in self.out.dma_in.drain(first..) {
            let DmaIn::Scatter { offset, length, to, .. } = op else { continue };
            let start = usize::from(offset);
            let added = self.far.put_off(&host, qp, to, frame.slices(start..start + usize::from(length)));
            debug_assert!(added, "looked up above");
        }
        true
    }

    /// Writes what frames have brought to the memory of other processes. To be called before anybody is told of it.
    #[inline]
    pub fn write_behind(&mut self, now: Nanos) {
        if self.far.behind.process.is_some() || !self.far.lost.is_empty() {
            self.write_now(now);
        }
    }

    fn write_now(&mut self, now: Nanos) {
        self.far.behind.write(&mut self.far.lost);
        while let Some(index) = self.far.lost.pop() {
            self.counters.memory_faults += 1;
            let Some(entry) = self.qps.get(index.0) else { continue };
            let qpn = entry.qp.qpn;
            let completed = self.out.completions.iter_mut().map(|(_, wc)| wc);
            for wc in completed.filter(|wc| wc.qpn == qpn && wc.status == WcStatus::Success) {
                wc.status = WcStatus::LocProt;
            }
            self.fail_qp(now, index);
        }
    }
}
