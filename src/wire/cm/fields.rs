//! Access to fields by their byte offset behind the MAD header, as in the specification's tables.

use crate::{Gid, Psn, Qpn};

use super::{CommId, Kind, PrivateData};

/// The 232 bytes behind the MAD header.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(super) fn u24(self, at: usize) -> u32 {
        let [a, b, c] = self.array(at);
        u32::from_be_bytes([0, a, b, c])
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    /// Returns `width` bits of a byte, the lowest of them bit `low` (bit 0 is the least significant).
    pub(super) fn bits(self, at: usize, low: u32, width: u32) -> u8 {
        self.0[at] >> low & ones(width)
    }

    pub(super) fn bit(self, at: usize, low: u32) -> bool {
        self.bits(at, low, 1) == 1
    }

    pub(super) fn comm_id(self, at: usize) -> CommId {
        CommId(self.u32(at))
    }

    pub(super) fn qpn(self, at: usize) -> Qpn {
        Qpn::new(self.u24(at))
    }

    pub(super) fn psn(self, at: usize) -> Psn {
        Psn::new(self.u24(at))
    }

    pub(super) fn gid(self, at: usize) -> Gid {
        Gid(self.array(at))
    }

    pub(super) fn bytes(self, at: usize, len: usize) -> PrivateData {
        PrivateData::cut(&self.0[at..at + len])
    }

    /// Returns the private data of a message of this kind, which begins at `at`.
    pub(super) fn private_data(self, at: usize, kind: Kind) -> PrivateData {
        self.bytes(at, kind.private_data_len())
    }
}

/// Writable view of the 232 bytes, which must be zero.
pub(super) struct FieldsMut<'a>(pub(super) &'a mut [u8]);

impl FieldsMut<'_> {
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn u24(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes()[1..]);
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn bits(&mut self, at: usize, low: u32, width: u32, value: u8) {
        self.0[at] |= (value & ones(width)) << low;
    }

    pub(super) fn bit(&mut self, at: usize, low: u32, value: bool) {
        self.bits(at, low, 1, value.into());
    }

    pub(super) fn comm_id(&mut self, at: usize, id: CommId) {
        self.u32(at, id.0);
    }

    pub(super) fn gid(&mut self, at: usize, gid: Gid) {
        self.put(at, &gid.0);
    }

    /// Writes `data`, truncated to `room` bytes.
    pub(super) fn bytes(&mut self, at: usize, room: usize, data: &[u8]) {
        self.put(at, &data[..data.len().min(room)]);
    }

    pub(super) fn private_data(&mut self, at: usize, kind: Kind, data: &PrivateData) {
        self.bytes(at, kind.private_data_len(), data);
    }
}

fn ones(width: u32) -> u8 {
    (u16::MAX >> (16 - width)) as u8
}
