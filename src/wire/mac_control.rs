//! MAC control: PAUSE (802.3 annex 31B) and priority flow control (802.1Q 36, annex 31D).

use super::net::{SHORTEST_FRAME, ether_type};
use crate::frame::Frame;

/// Destination of MAC control frames. Bridges do not forward it.
pub const DESTINATION: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];

/// Length of a MAC control frame without FCS, in bytes.
pub const FRAME_LEN: usize = SHORTEST_FRAME;

/// Bytes per quantum: 512 bit times (802.3 31B.2).
const QUANTUM: usize = 64;

const OPCODE_PAUSE: u16 = 0x0001;
const OPCODE_PFC: u16 = 0x0101;

/// Returns the bytes that are sent in `quanta`.
pub const fn quanta_bytes(quanta: u16) -> usize {
    quanta as usize * QUANTUM
}

/// Returns the duration of `quanta` at `bits_per_second`, in nanoseconds, not rounded.
pub fn quanta_nanos(quanta: u16, bits_per_second: f64) -> f64 {
    quanta_bytes(quanta) as f64 * 8e9 / bits_per_second
}

/// Returns the maximum response time to a PAUSE or PFC frame: quanta from the end of the frame to the last
/// bit that a conforming station begins to send, by the rate of the link (802.3 31B.3.7).
pub const fn response_quanta(bits_per_second: u64) -> u16 {
    const GBPS: u64 = 1_000_000_000;
    match bits_per_second.div_ceil(GBPS) {
        0..=10 => 67,
        11..=25 => 80,
        26..=40 => 118,
        41..=50 => 147,
        51..=100 => 394,
        101..=200 => 453,
        _ => 905,
    }
}

/// A parsed MAC control frame. Pause times are in quanta of 512 bit times; 0 resumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MacControl {
    /// Stop all priorities.
    Pause {
        /// Pause time in quanta.
        quanta: u16,
    },
    /// Stop the enabled priorities.
    Pfc {
        /// Bit n enables `quanta[n]`.
        enable: u8,
        /// Pause time in quanta, by priority.
        quanta: [u16; 8],
    },
}

impl MacControl {
    /// Parses a frame; `None` if it is truncated, or neither PAUSE nor PFC.
    pub fn parse(frame: &Frame<'_>) -> Option<MacControl> {
        let mut bytes = [0; 34];
        let n = frame.copy_to(0, &mut bytes);
        let (words, _) = bytes[..n].as_chunks::<2>();
        let word = |i: usize| words.get(i).map(|w| u16::from_be_bytes(*w));
        if word(6)? != ether_type::MAC_CONTROL {
            return None;
        }
        match word(7)? {
            OPCODE_PAUSE => Some(MacControl::Pause { quanta: word(8)? }),
            OPCODE_PFC => {
                let [_, enable] = word(8)?.to_be_bytes();
                let mut quanta = [0; 8];
                for (priority, time) in quanta.iter_mut().enumerate() {
                    *time = word(9 + priority)?;
                }
                Some(MacControl::Pfc { enable, quanta })
            }
            _ => None,
        }
    }

    /// Builds the frame from `src_mac`, padded to the minimum length.
    pub fn build(&self, src_mac: [u8; 6]) -> [u8; FRAME_LEN] {
        let mut frame = [0; FRAME_LEN];
        frame[..6].copy_from_slice(&DESTINATION);
        frame[6..12].copy_from_slice(&src_mac);
        frame[12..14].copy_from_slice(&ether_type::MAC_CONTROL.to_be_bytes());
        match *self {
            MacControl::Pause { quanta } => {
                frame[14..16].copy_from_slice(&OPCODE_PAUSE.to_be_bytes());
                frame[16..18].copy_from_slice(&quanta.to_be_bytes());
            }
            MacControl::Pfc { enable, quanta } => {
                frame[14..16].copy_from_slice(&OPCODE_PFC.to_be_bytes());
                frame[17] = enable;
                for (slot, time) in frame[18..34].chunks_exact_mut(2).zip(quanta) {
                    slot.copy_from_slice(&time.to_be_bytes());
                }
            }
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn pfc_frame_layout_follows_standard() {
        let pfc = MacControl::Pfc { enable: 0x08, quanta: [0, 0, 0, 0xffff, 0, 0, 0, 7] };
        let frame = pfc.build(SRC);
        assert_eq!(frame[..18], [1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 8, 1, 1, 0, 8]);
        assert_eq!(frame[24..26], [0xff, 0xff]);
        assert_eq!(frame[32..36], [0, 7, 0, 0]);
    }

    #[test]
    fn built_frame_parses_at_any_split() {
        for control in [
            MacControl::Pause { quanta: 0x1234 },
            MacControl::Pfc { enable: 0xa5, quanta: [1, 2, 3, 4, 5, 6, 7, 8] },
        ] {
            let frame = control.build(SRC);
            for split in 0..=FRAME_LEN {
                let (a, b) = frame.split_at(split);
                assert_eq!(MacControl::parse(&Frame { a, b }), Some(control));
            }
        }
    }

    #[test]
    fn other_opcodes_and_short_frames_are_none() {
        let mut frame = MacControl::Pfc { enable: 1, quanta: [1; 8] }.build(SRC);
        assert_eq!(MacControl::parse(&Frame::whole(&frame[..33])), None);
        frame[15] = 2;
        assert_eq!(MacControl::parse(&Frame::whole(&frame)), None);
    }
}
