//! The InfiniBand transport headers as values, and their encoding (IBTA 9.2 to 9.4).
//!
//! The zerocopy structs are private views of bytes, each under its bit diagram. The transport uses the public
//! types.

use core::fmt;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Opcode, Psn, Qpn};

/// A big-endian 24-bit field: PSN, QPN or MSN.
type U24 = [u8; 3];

fn read24(b: U24) -> u32 {
    u32::from_be_bytes([0, b[0], b[1], b[2]])
}

fn write24(v: u32) -> U24 {
    let [_, a, b, c] = v.to_be_bytes();
    [a, b, c]
}

/// Base transport header, 12 bytes.
///
/// ```text
///  0               8               16              24
/// +---------------+-+-+---+-------+-------------------------------+
/// |    opcode     |S|M|pad| tver  |            pkey               |
/// +-+-+-----------+---------------+-------------------------------+
/// |F|B| reserved6 |                  dest_qp                      |
/// +-+-------------+-----------------------------------------------+
/// |A|  reserved7  |                    psn                        |
/// +---------------+-----------------------------------------------+
/// ```
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    /// FECN, BECN, six reserved bits and the destination QPN.
    congestion_and_qp: U32,
    /// AckReq, seven reserved bits and the PSN.
    ack_and_psn: U32,
}

/// Base transport header, present in every packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Service, operation and position.
    pub opcode: Opcode,
    /// Solicited event: the completion wakes a receiver that is armed for solicited events only.
    pub solicited: bool,
    /// Migration state (MigReq). ConnectX sends 1, rxe 0; both are accepted.
    pub mig_req: bool,
    /// Number of pad bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Transport header version; only 0 is defined.
    pub tver: u8,
    /// Partition key; bit 15 is full membership.
    pub pkey: u16,
    /// Forward congestion, set by an InfiniBand switch. RoCE v2 uses ECN instead.
    pub fecn: bool,
    /// Backward congestion notification; set in a CNP.
    pub becn: bool,
    /// Six reserved bits, not covered by the ICRC. Some NICs set them.
    pub reserved6: u8,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// Requests an acknowledgement.
    pub ack_req: bool,
    /// The seven reserved bits next to AckReq, as received.
    pub reserved7: u8,
    /// Packet sequence number, 24 bits.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// Decodes the header. All values of the 12 bytes are accepted.
    pub fn read(bytes: &[u8; Bth::LEN]) -> Bth {
        //= IBTA 9.2: reserved-bits-mean-nothing
        let raw: &RawBth = zerocopy::transmute_ref!(bytes);
        let (qp_word, psn_word) = (raw.congestion_and_qp.get(), raw.ack_and_psn.get());
        let (congestion, ack) = ((qp_word >> 24) as u8, (psn_word >> 24) as u8);
        Bth {
            opcode: Opcode(raw.opcode),
            solicited: raw.flags & 0x80 != 0,
            mig_req: raw.flags & 0x40 != 0,
            pad: raw.flags >> 4 & 3,
            tver: raw.flags & 0x0f,
            pkey: raw.pkey.get(),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            reserved6: congestion & 0x3f,
            dest_qp: Qpn::new(qp_word),
            ack_req: ack & 0x80 != 0,
            reserved7: ack & 0x7f,
            psn: Psn::new(psn_word),
        }
    }

    /// Encodes the header. Of a field narrower than its type, the low bits are used.
    pub fn to_bytes(&self) -> [u8; Bth::LEN] {
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.reserved6 & 0x3f;
        let ack = u8::from(self.ack_req) << 7 | self.reserved7 & 0x7f;
        let raw = RawBth {
            opcode: self.opcode.0,
            flags: u8::from(self.solicited) << 7
                | u8::from(self.mig_req) << 6
                | (self.pad & 3) << 4
                | self.tver & 0x0f,
            pkey: self.pkey.into(),
            congestion_and_qp: (u32::from(congestion) << 24 | self.dest_qp.value()).into(),
            ack_and_psn: (u32::from(ack) << 24 | self.psn.value()).into(),
        };
        zerocopy::transmute!(raw)
    }
}

impl Default for Bth {
    /// RC_SEND_ONLY with PSN 0 to QP 0 in the default partition: a base for struct update.
    fn default() -> Bth {
        Bth {
            opcode: Opcode::RC_SEND_ONLY,
            solicited: false,
            mig_req: false,
            pad: 0,
            tver: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp: Qpn::new(0),
            ack_req: false,
            reserved7: 0,
            psn: Psn::new(0),
        }
    }
}

/// `VA64 RKey32 DMALen32`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReth {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

/// RDMA extended header: the remote memory of a WRITE, READ, FLUSH or ATOMIC WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address of the first byte at the responder.
    pub va: u64,
    /// The rkey of the region or window at the responder.
    pub rkey: u32,
    /// Bytes of the whole message, at most 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Decodes the header.
    pub fn read(bytes: &[u8; Reth::LEN]) -> Reth {
        let raw: &RawReth = zerocopy::transmute_ref!(bytes);
        Reth { va: raw.va.get(), rkey: raw.rkey.get(), dma_len: raw.dma_len.get() }
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; Reth::LEN] {
        zerocopy::transmute!(RawReth {
            va: self.va.into(),
            rkey: self.rkey.into(),
            dma_len: self.dma_len.into()
        })
    }
}

/// ACK extended header: `Syndrome8 MSN24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK; see [`Syndrome`].
    pub syndrome: u8,
    /// Message sequence number, 24 bits: number of messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header.
    pub fn read(bytes: &[u8; Aeth::LEN]) -> Aeth {
        let [syndrome, a, b, c] = *bytes;
        Aeth { syndrome, msn: read24([a, b, c]) }
    }

    /// Encodes the header. Of the MSN, the low 24 bits are used.
    pub fn to_bytes(&self) -> [u8; Aeth::LEN] {
        let [a, b, c] = write24(self.msn);
        [self.syndrome, a, b, c]
    }

    /// Returns the syndrome's meaning.
    pub fn kind(&self) -> Syndrome {
        self.syndrome.into()
    }
}

/// `VA64 RKey32 Swap/Add64 Compare64`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAtomicEth {
    va: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

/// Atomic extended header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address, a multiple of 8.
    pub va: u64,
    /// The rkey of the region or window at the responder.
    pub rkey: u32,
    /// The swap or add operand.
    pub swap_or_add: u64,
    /// The compare operand.
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Decodes the header.
    pub fn read(bytes: &[u8; AtomicEth::LEN]) -> AtomicEth {
        let raw: &RawAtomicEth = zerocopy::transmute_ref!(bytes);
        AtomicEth {
            va: raw.va.get(),
            rkey: raw.rkey.get(),
            swap_or_add: raw.swap_or_add.get(),
            compare: raw.compare.get(),
        }
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; AtomicEth::LEN] {
        zerocopy::transmute!(RawAtomicEth {
            va: self.va.into(),
            rkey: self.rkey.into(),
            swap_or_add: self.swap_or_add.into(),
            compare: self.compare.into(),
        })
    }
}

/// Datagram extended header: `QKey32 rsv8 SrcQP24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Queue key; must match the receiver's.
    pub qkey: u32,
    /// Number of the sending QP.
    pub src_qp: Qpn,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header.
    pub fn read(bytes: &[u8; Deth::LEN]) -> Deth {
        let [k0, k1, k2, k3, _, a, b, c] = *bytes;
        Deth { qkey: u32::from_be_bytes([k0, k1, k2, k3]), src_qp: Qpn::new(read24([a, b, c])) }
    }

    /// Encodes the header, with the reserved byte zero.
    pub fn to_bytes(&self) -> [u8; Deth::LEN] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [a, b, c] = write24(self.src_qp.value());
        [k0, k1, k2, k3, 0, a, b, c]
    }
}

/// XRC extended header: `rsv8 XRCSRQ24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XrcEth {
    /// Number of the destination SRQ, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header.
    pub fn read(bytes: &[u8; XrcEth::LEN]) -> XrcEth {
        let [_, a, b, c] = *bytes;
        XrcEth { srqn: read24([a, b, c]) }
    }

    /// Encodes the header, with the reserved byte zero.
    pub fn to_bytes(&self) -> [u8; XrcEth::LEN] {
        let [a, b, c] = write24(self.srqn);
        [0, a, b, c]
    }
}

/// FLUSH extended header: placement type in bits 3:0, selectivity in bits 5:4 (IBTA annex A19,
/// `rxe_hdr.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth(pub u32);

impl Feth {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// Placement type: global visibility, to the whole host.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement type: persistence, across a power loss.
    pub const PERSISTENCE: u8 = 2;

    /// The requested guarantees (placement type).
    pub const fn placement(self) -> u8 {
        (self.0 & 0x0f) as u8
    }

    /// Selectivity: 0 for the range of the RETH, 1 for the whole memory region.
    pub const fn selectivity(self) -> u8 {
        (self.0 >> 4 & 3) as u8
    }
}

/// Meaning of an AETH's syndrome (IBTA 9.7.5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Syndrome {
    /// Positive acknowledgement up to the PSN. See [`credits`] for the code.
    Ack {
        /// Five bits of end-to-end credit code.
        credits: u8,
    },
    /// No receive was posted. The requester must wait [`rnr_timer_ns`] of the code before it retries.
    RnrNak {
        /// Five bits of timer code.
        timer: u8,
    },
    /// The request failed.
    Nak(NakCode),
    /// Any other syndrome, as received.
    Reserved(u8),
}

/// Why a request was refused (IBTA table 49).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NakCode {
    /// PSN sequence error: the requester must retransmit from this PSN.
    PsnSequence,
    /// Invalid request: malformed, or not allowed on this QP.
    InvalidRequest,
    /// Remote access error: key, bounds or rights.
    RemoteAccess,
    /// Remote operational error: the responder failed to execute the request.
    RemoteOperational,
    /// Invalid RD request; reliable datagram only.
    InvalidRdRequest,
}

impl From<u8> for Syndrome {
    fn from(byte: u8) -> Syndrome {
        let low = byte & 0x1f;
        //= IBTA 9.7.5.2: syndrome-has-kind-and-value
        match (byte >> 5, low) {
            (0, credits) => Syndrome::Ack { credits },
            (1, timer) => Syndrome::RnrNak { timer },
            (3, 0) => Syndrome::Nak(NakCode::PsnSequence),
            (3, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (3, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            (3, 4) => Syndrome::Nak(NakCode::InvalidRdRequest),
            _ => Syndrome::Reserved(byte),
        }
    }
}

impl From<Syndrome> for u8 {
    fn from(s: Syndrome) -> u8 {
        match s {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(NakCode::PsnSequence) => 0x60,
            Syndrome::Nak(NakCode::InvalidRequest) => 0x61,
            Syndrome::Nak(NakCode::RemoteAccess) => 0x62,
            Syndrome::Nak(NakCode::RemoteOperational) => 0x63,
            Syndrome::Nak(NakCode::InvalidRdRequest) => 0x64,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

impl Syndrome {
    /// Returns the name in one word: `ACK`, `RNR_NAK`, `NAK_PSN_SEQUENCE`, … `RESERVED`.
    pub const fn name(self) -> &'static str {
        match self {
            Syndrome::Ack { .. } => "ACK",
            Syndrome::RnrNak { .. } => "RNR_NAK",
            Syndrome::Nak(NakCode::PsnSequence) => "NAK_PSN_SEQUENCE",
            Syndrome::Nak(NakCode::InvalidRequest) => "NAK_INVALID_REQUEST",
            Syndrome::Nak(NakCode::RemoteAccess) => "NAK_REMOTE_ACCESS",
            Syndrome::Nak(NakCode::RemoteOperational) => "NAK_REMOTE_OPERATIONAL",
            Syndrome::Nak(NakCode::InvalidRdRequest) => "NAK_INVALID_RD_REQUEST",
            Syndrome::Reserved(_) => "RESERVED",
        }
    }
}

impl fmt::Display for Syndrome {
    /// `ACK credits 31`, `RNR_NAK timer 12 (0.64 ms)`, `NAK_REMOTE_ACCESS`, `RESERVED 0x40`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Syndrome::Ack { credits } => write!(f, " credits {credits}"),
            Syndrome::RnrNak { timer } => {
                write!(f, " timer {timer} ({} ms)", rnr_timer_ns(timer) as f64 / 1e6)
            }
            Syndrome::Nak(_) => Ok(()),
            Syndrome::Reserved(byte) => write!(f, " {byte:#04x}"),
        }
    }
}

/// Returns the delay of an RNR NAK timer code in nanoseconds (IBTA table 50). The low five bits of `code` are
/// used.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    //= IBTA 9.7.5.2.8: rnr-timer-has-its-table
    const UNITS_OF_10_US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS_OF_10_US[(code & 0x1f) as usize] as u64 * 10_000
}

/// Returns the number of messages that a credit code allows (IBTA table 47); `None` for 31, no information.
/// The low five bits of `code` are used.
pub const fn credits(code: u8) -> Option<u32> {
    //= IBTA 9.7.7.2: credit-codes-have-their-table
    const CREDITS: [u32; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];
    let i = (code & 0x1f) as usize;
    if i < CREDITS.len() { Some(CREDITS[i]) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bth_round_trips_any_twelve_bytes() {
        for seed in 0..=255u8 {
            let bytes: [u8; 12] =
                core::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add((i as u8).wrapping_mul(73)));
            assert_eq!(Bth::read(&bytes).to_bytes(), bytes);
        }
    }

    #[test]
    fn bth_layout_follows_specification() {
        let bth = Bth {
            opcode: Opcode::CNP,
            solicited: true,
            pad: 2,
            pkey: 0x7fff,
            becn: true,
            dest_qp: Qpn::new(0x010203),
            ack_req: true,
            psn: Psn::new(0xfffefd),
            ..Bth::default()
        };
        assert_eq!(bth.to_bytes(), [0x81, 0xa0, 0x7f, 0xff, 0x40, 1, 2, 3, 0x80, 0xff, 0xfe, 0xfd]);
    }

    //= test: IBTA 9.7.5.2: syndrome-has-kind-and-value
    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=255u8 {
            assert_eq!(u8::from(Syndrome::from(byte)), byte);
        }
        for reserved in [0x40, 0x65, 0x7f, 0x80, 0xe0] {
            assert_eq!(Syndrome::from(reserved), Syndrome::Reserved(reserved));
        }
    }

    /// Compares with a second copy of the table, in the specification's milliseconds.
    //= test: IBTA 9.7.5.2.8: rnr-timer-has-its-table
    #[test]
    fn rnr_timer_codes_follow_the_table() {
        let milliseconds = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
            2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76,
            327.68, 491.52,
        ];
        for (code, time) in (0..).zip(milliseconds) {
            assert_eq!(rnr_timer_ns(code), (time * 1e6_f64).round() as u64, "code {code}");
        }
        assert_eq!(rnr_timer_ns(32), rnr_timer_ns(0), "five bits count");
        assert_eq!(Syndrome::from(0x2c).to_string(), "RNR_NAK timer 12 (0.64 ms)");
    }

    /// Codes alternate powers of two and the numbers halfway between them.
    //= test: IBTA 9.7.7.2: credit-codes-have-their-table
    #[test]
    fn credit_codes_follow_the_table() {
        let counts = (0..31u32).map(|code| match code {
            0..4 => code,
            _ => (2 + code % 2) << (code / 2 - 1),
        });
        for (code, count) in (0..).zip(counts) {
            assert_eq!(credits(code), Some(count), "code {code}");
        }
        assert_eq!((credits(4), credits(5), credits(30), credits(31)), (Some(4), Some(6), Some(32768), None));
    }

    //= test: IBTA 9.7.5.2: syndrome-has-kind-and-value
    #[test]
    fn syndrome_bytes_follow_the_table() {
        let named = [
            (0x00, Syndrome::Ack { credits: 0 }),
            (0x1f, Syndrome::Ack { credits: 31 }),
            (0x20, Syndrome::RnrNak { timer: 0 }),
            (0x2c, Syndrome::RnrNak { timer: 12 }),
            (0x60, Syndrome::Nak(NakCode::PsnSequence)),
            (0x61, Syndrome::Nak(NakCode::InvalidRequest)),
            (0x62, Syndrome::Nak(NakCode::RemoteAccess)),
            (0x63, Syndrome::Nak(NakCode::RemoteOperational)),
            (0x64, Syndrome::Nak(NakCode::InvalidRdRequest)),
        ];
        for (byte, syndrome) in named {
            assert_eq!((Syndrome::from(byte), u8::from(syndrome)), (syndrome, byte));
        }
    }
}
