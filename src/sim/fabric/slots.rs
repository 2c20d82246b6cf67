//! Transmit side of a simulated port: slots that are written, then committed or cancelled, and the port's counters.

use roxie_port::TxId;

/// Slots allocated since the last flush.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Indexed by `TxId`: the frame (`None` if cancelled), and whether it was committed.
    open: Vec<(Option<Vec<u8>>, bool)>,
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Allocates a slot with this buffer.
    pub(super) fn open(&mut self, frame: Vec<u8>) -> TxId {
        let id = TxId(u32::try_from(self.open.len()).expect("a turn sends fewer than 2^32 frames"));
        self.open.push((Some(frame), false));
        id
    }

    pub(super) fn frame(&mut self, id: &TxId) -> &mut [u8] {
        self.open[id.0 as usize].0.as_mut().expect("written before its commit")
    }

    pub(super) fn commit(&mut self, id: TxId) {
        let slot = &mut self.open[id.0 as usize];
        assert!(slot.0.is_some() && !slot.1, "a transmit slot is committed or cancelled once");
        slot.1 = true;
    }

    /// Cancels a slot and returns its buffer.
    pub(super) fn cancel(&mut self, id: TxId) -> Vec<u8> {
        let frame = self.open[id.0 as usize].0.take();
        frame.expect("a transmit slot is committed or cancelled once")
    }

    /// Takes the committed frames, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Vec<u8>> {
        self.open.drain(..).filter_map(|(frame, committed)| {
            assert!(frame.is_none() || committed, "every slot is committed or cancelled before the flush");
            frame
        })
    }
}

/// Counters of a simulated port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortCounts {
    pub(super) rx_packets: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_stalled: u64,
    pub(super) tx_too_long: u64,
}

impl PortCounts {
    pub(super) fn received(&mut self, frame: &[u8]) {
        self.rx_packets += 1;
        self.rx_bytes += frame.len() as u64;
    }

    pub(super) fn sent(&mut self, frame: &[u8]) {
        self.tx_packets += 1;
        self.tx_bytes += frame.len() as u64;
    }

    pub(super) fn list(&self, out: &mut Vec<(&'static str, u64)>) {
        out.extend([
            ("rx_packets", self.rx_packets),
            ("rx_bytes", self.rx_bytes),
            ("tx_packets", self.tx_packets),
            ("tx_bytes", self.tx_bytes),
            ("tx_stalled", self.tx_stalled),
            ("tx_too_long", self.tx_too_long),
        ]);
    }
}
