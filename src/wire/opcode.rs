//! The opcode table: the meaning of each BTH opcode, and the headers that follow it.
//!
//! Opcode = service in bits 7:5, operation in bits 4:0 (IBTA 9.2.1, table 38; XRC: annex A14;
//! FLUSH and ATOMIC WRITE: annex A19; CNP: annex A17.9.3). Bits 7:6 = 11 are left to manufacturers: Roxie's selective
//! acknowledgement is `RC_ACKNOWLEDGE` there, which other implementations drop as an unknown opcode.

use core::fmt;
use core::ops::BitOr;

/// The opcode byte of a BTH, known or not: [`info`](Opcode::info) looks it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Opcode(pub u8);

/// The transport service that an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram: decoded, never sent.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
}

impl Service {
    /// Returns the abbreviation, such as `RC`.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Rd => "RD",
            Service::Ud => "UD",
            Service::Xrc => "XRC",
            Service::Cnp => "CNP",
        }
    }
}

/// Meaning of a packet, request or response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// Payload for a posted receive.
    Send,
    /// Payload for the memory named by the RETH.
    Write,
    /// Request to read remote memory.
    ReadRequest,
    /// Payload of a READ, or the response to FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// Selective acknowledgement, between peers that agreed to selective repeat.
    SelectiveAcknowledge,
    /// Response to an atomic: the original value.
    AtomicAcknowledge,
    /// 64-bit compare and swap.
    CompareSwap,
    /// 64-bit fetch and add.
    FetchAdd,
    /// Makes earlier writes visible or persistent.
    Flush,
    /// An 8-byte write that does not tear.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
}

/// Position of a packet in its message. A request of one packet is `Only`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Position {
    /// First of several packets.
    First,
    /// Between first and last.
    Middle,
    /// Last of several packets.
    Last,
    /// The only packet.
    Only,
}

impl Position {
    /// True for the first packet of a message.
    pub const fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// True for the last packet of a message.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// A set of headers that follow the BTH. The order of the bits is their order on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Headers(u16);

impl Headers {
    /// No header: the payload follows the BTH.
    pub const NONE: Headers = Headers(0);
    /// Reliable datagram, 4 bytes.
    pub const RDETH: Headers = Headers(1 << 0);
    /// Datagram, 8 bytes.
    pub const DETH: Headers = Headers(1 << 1);
    /// XRC, 4 bytes.
    pub const XRCETH: Headers = Headers(1 << 2);
    /// FLUSH, 4 bytes.
    pub const FETH: Headers = Headers(1 << 3);
    /// RDMA, 16 bytes.
    pub const RETH: Headers = Headers(1 << 4);
    /// Atomic request, 28 bytes.
    pub const ATOMIC_ETH: Headers = Headers(1 << 5);
    /// ACK, 4 bytes.
    pub const AETH: Headers = Headers(1 << 6);
    /// Atomic response, 8 bytes.
    pub const ATOMIC_ACK_ETH: Headers = Headers(1 << 7);
    /// Immediate data, 4 bytes.
    pub const IMM: Headers = Headers(1 << 8);
    /// Invalidate, 4 bytes.
    pub const IETH: Headers = Headers(1 << 9);
    /// Bytes of each header, by bit.
    pub const CNP_RESERVED: Headers = Headers(1 << 10);
    /// Selective acknowledgement, 20 bytes.
    pub const SACK: Headers = Headers(1 << 11);

    /// Bytes of every possible set, so that [`len`](Self::len) is one load.
    const SIZES: [u8; 12] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4, 16, 20];

    /// Bytes of every possible set, so that a length is one load.
    const LENGTHS: [u8; 1 << 12] = {
        let mut table = [0; 1 << 12];
        let mut set = 1usize;
        while set < table.len() {
            let lowest = set.trailing_zeros() as usize;
            table[set] = table[set & (set - 1)] + Self::SIZES[lowest];
            set += 1;
        }
        table
    };

    /// True if the set contains all of `other`.
    pub const fn contains(self, other: Headers) -> bool {
        self.0 & other.0 == other.0
    }

    /// Bytes of all headers in the set.
    pub const fn len(self) -> usize {
        static LENGTHS: [u8; 1 << 12] = Headers::LENGTHS;
        LENGTHS[self.0 as usize] as usize
    }

    /// True if the set has no header.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the offset of `header` (a single one), in bytes after the BTH; `None` if the set lacks it.
    pub const fn offset_of(self, header: Headers) -> Option<usize> {
        if self.contains(header) && !header.is_empty() {
            Some(Headers(self.0 & (header.0 - 1)).len())
        } else {
            None
        }
    }

    const fn union(self, other: Headers) -> Headers {
        Headers(self.0 | other.0)
    }
}

impl BitOr for Headers {
    type Output = Headers;
    fn bitor(self, rhs: Headers) -> Headers {
        self.union(rhs)
    }
}

/// A row of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The opcode, service bits included.
    pub opcode: Opcode,
    /// Name as tools print it: `RC_SEND_ONLY`.
    pub name: &'static str,
    /// Transport service, the upper three bits.
    pub service: Service,
    /// Meaning of the packet.
    pub operation: Operation,
    /// Position in the message.
    pub position: Position,
    /// Headers between BTH and payload.
    pub headers: Headers,
}

impl OpcodeInfo {
    /// True for responses: READ responses, acknowledgements and atomic acknowledgements.
    pub const fn is_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::SelectiveAcknowledge
        )
    }
}

/// Generates the constants and the table from one list of rows.
macro_rules! opcodes {
    ($($code:literal $name:ident: $service:ident $operation:ident $position:ident [$($header:ident)*];)*) => {
        impl Opcode {
            $(
                #[doc = concat!("`", stringify!($code), "`")]
                pub const $name: Opcode = Opcode($code);
            )*
        }

        //= IBTA 9.2.1: opcode-has-service-and-operation
        static TABLE: &[OpcodeInfo] = &[
            $(OpcodeInfo {
                opcode: Opcode($code),
                name: stringify!($name),
                service: Service::$service,
                operation: Operation::$operation,
                position: Position::$position,
                headers: Headers::NONE$(.union(Headers::$header))*,
            },)*
        ];

        const CODES: &[u8] = &[$($code),*];
    };
}

opcodes! {
    0x00 RC_SEND_FIRST: Rc Send First [];
    0x01 RC_SEND_MIDDLE: Rc Send Middle [];
    0x02 RC_SEND_LAST: Rc Send Last [];
    0x03 RC_SEND_LAST_IMM: Rc Send Last [IMM];
    0x04 RC_SEND_ONLY: Rc Send Only [];
    0x05 RC_SEND_ONLY_IMM: Rc Send Only [IMM];
    0x06 RC_WRITE_FIRST: Rc Write First [RETH];
    0x07 RC_WRITE_MIDDLE: Rc Write Middle [];
    0x08 RC_WRITE_LAST: Rc Write Last [];
    0x09 RC_WRITE_LAST_IMM: Rc Write Last [IMM];
    0x0a RC_WRITE_ONLY: Rc Write Only [RETH];
    0x0b RC_WRITE_ONLY_IMM: Rc Write Only [RETH IMM];
    0x0c RC_READ_REQUEST: Rc ReadRequest Only [RETH];
    0x0d RC_READ_RESPONSE_FIRST: Rc ReadResponse First [AETH];
    0x0e RC_READ_RESPONSE_MIDDLE: Rc ReadResponse Middle [];
    0x0f RC_READ_RESPONSE_LAST: Rc ReadResponse Last [AETH];
    0x10 RC_READ_RESPONSE_ONLY: Rc ReadResponse Only [AETH];
    0x11 RC_ACKNOWLEDGE: Rc Acknowledge Only [AETH];
    0x12 RC_ATOMIC_ACKNOWLEDGE: Rc AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH];
    0x13 RC_COMPARE_SWAP: Rc CompareSwap Only [ATOMIC_ETH];
    0x14 RC_FETCH_ADD: Rc FetchAdd Only [ATOMIC_ETH];
    0x16 RC_SEND_LAST_INVALIDATE: Rc Send Last [IETH];
    0x17 RC_SEND_ONLY_INVALIDATE: Rc Send Only [IETH];
    0x1c RC_FLUSH: Rc Flush Only [FETH RETH];
    0x1d RC_ATOMIC_WRITE: Rc AtomicWrite Only [RETH];
    0x20 UC_SEND_FIRST: Uc Send First [];
    0x21 UC_SEND_MIDDLE: Uc Send Middle [];
    0x22 UC_SEND_LAST: Uc Send Last [];
    0x23 UC_SEND_LAST_IMM: Uc Send Last [IMM];
    0x24 UC_SEND_ONLY: Uc Send Only [];
    0x25 UC_SEND_ONLY_IMM: Uc Send Only [IMM];
    0x26 UC_WRITE_FIRST: Uc Write First [RETH];
    0x27 UC_WRITE_MIDDLE: Uc Write Middle [];
    0x28 UC_WRITE_LAST: Uc Write Last [];
    0x29 UC_WRITE_LAST_IMM: Uc Write Last [IMM];
    0x2a UC_WRITE_ONLY: Uc Write Only [RETH];
    0x2b UC_WRITE_ONLY_IMM: Uc Write Only [RETH IMM];
    0x40 RD_SEND_FIRST: Rd Send First [RDETH DETH];
    0x41 RD_SEND_MIDDLE: Rd Send Middle [RDETH DETH];
    0x42 RD_SEND_LAST: Rd Send Last [RDETH DETH];
    0x43 RD_SEND_LAST_IMM: Rd Send Last [RDETH DETH IMM];
    0x44 RD_SEND_ONLY: Rd Send Only [RDETH DETH];
    0x45 RD_SEND_ONLY_IMM: Rd Send Only [RDETH DETH IMM];
    0x46 RD_WRITE_FIRST: Rd Write First [RDETH DETH RETH];
    0x47 RD_WRITE_MIDDLE: Rd Write Middle [RDETH DETH];
    0x48 RD_WRITE_LAST: Rd Write Last [RDETH DETH];
    0x49 RD_WRITE_LAST_IMM: Rd Write Last [RDETH DETH IMM];
    0x4a RD_WRITE_ONLY: Rd Write Only [RDETH DETH RETH];
    0x4b RD_WRITE_ONLY_IMM: Rd Write Only [RDETH DETH RETH IMM];
    0x4c RD_READ_REQUEST: Rd ReadRequest Only [RDETH DETH RETH];
    0x4d RD_READ_RESPONSE_FIRST: Rd ReadResponse First [RDETH AETH];
    0x4e RD_READ_RESPONSE_MIDDLE: Rd ReadResponse Middle [RDETH];
    0x4f RD_READ_RESPONSE_LAST: Rd ReadResponse Last [RDETH AETH];
    0x50 RD_READ_RESPONSE_ONLY: Rd ReadResponse Only [RDETH AETH];
    0x51 RD_ACKNOWLEDGE: Rd Acknowledge Only [RDETH AETH];
    0x52 RD_ATOMIC_ACKNOWLEDGE: Rd AtomicAcknowledge Only [RDETH AETH ATOMIC_ACK_ETH];
    0x53 RD_COMPARE_SWAP: Rd CompareSwap Only [RDETH DETH ATOMIC_ETH];
    0x54 RD_FETCH_ADD: Rd FetchAdd Only [RDETH DETH ATOMIC_ETH];
    0x64 UD_SEND_ONLY: Ud Send Only [DETH];
    0x65 UD_SEND_ONLY_IMM: Ud Send Only [DETH IMM];
    0x81 CNP: Cnp Cnp Only [CNP_RESERVED];
    0xa0 XRC_SEND_FIRST: Xrc Send First [XRCETH];
    0xa1 XRC_SEND_MIDDLE: Xrc Send Middle [XRCETH];
    0xa2 XRC_SEND_LAST: Xrc Send Last [XRCETH];
    0xa3 XRC_SEND_LAST_IMM: Xrc Send Last [XRCETH IMM];
    0xa4 XRC_SEND_ONLY: Xrc Send Only [XRCETH];
    0xa5 XRC_SEND_ONLY_IMM: Xrc Send Only [XRCETH IMM];
    0xa6 XRC_WRITE_FIRST: Xrc Write First [XRCETH RETH];
    0xa7 XRC_WRITE_MIDDLE: Xrc Write Middle [XRCETH];
    0xa8 XRC_WRITE_LAST: Xrc Write Last [XRCETH];
    0xa9 XRC_WRITE_LAST_IMM: Xrc Write Last [XRCETH IMM];
    0xaa XRC_WRITE_ONLY: Xrc Write Only [XRCETH RETH];
    0xab XRC_WRITE_ONLY_IMM: Xrc Write Only [XRCETH RETH IMM];
    0xac XRC_READ_REQUEST: Xrc ReadRequest Only [XRCETH RETH];
    0xad XRC_READ_RESPONSE_FIRST: Xrc ReadResponse First [AETH];
    0xae XRC_READ_RESPONSE_MIDDLE: Xrc ReadResponse Middle [];
    0xaf XRC_READ_RESPONSE_LAST: Xrc ReadResponse Last [AETH];
    0xb0 XRC_READ_RESPONSE_ONLY: Xrc ReadResponse Only [AETH];
    0xb1 XRC_ACKNOWLEDGE: Xrc Acknowledge Only [AETH];
    0xb2 XRC_ATOMIC_ACKNOWLEDGE: Xrc AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH];
    0xb3 XRC_COMPARE_SWAP: Xrc CompareSwap Only [XRCETH ATOMIC_ETH];
    0xb4 XRC_FETCH_ADD: Xrc FetchAdd Only [XRCETH ATOMIC_ETH];
    0xb6 XRC_SEND_LAST_INVALIDATE: Xrc Send Last [XRCETH IETH];
    0xb7 XRC_SEND_ONLY_INVALIDATE: Xrc Send Only [XRCETH IETH];
    0xbc XRC_FLUSH: Xrc Flush Only [XRCETH FETH RETH];
    0xbd XRC_ATOMIC_WRITE: Xrc AtomicWrite Only [XRCETH RETH];
    0xd1 RC_SELECTIVE_ACKNOWLEDGE: Rc SelectiveAcknowledge Only [AETH SACK];
}

/// Table row of each opcode byte, or `UNKNOWN`.
static INDEX: [u8; 256] = {
    let mut index = [UNKNOWN; 256];
    let mut row = 0;
    while row < CODES.len() {
        assert!(index[CODES[row] as usize] == UNKNOWN, "an opcode is in the table twice");
        index[CODES[row] as usize] = row as u8;
        row += 1;
    }
    index
};

const UNKNOWN: u8 = u8::MAX;

impl Opcode {
    /// Returns the row of the opcode; `None` if it is unknown.
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE.get(usize::from(INDEX[usize::from(self.0)]))
    }

    /// Returns every known opcode, in ascending order.
    pub fn all() -> impl Iterator<Item = &'static OpcodeInfo> {
        TABLE.iter()
    }
}

impl fmt::Display for Opcode {
    /// The name, or `OPCODE_0x1f` for an unknown one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.pad(info.name),
            None => write!(f, "OPCODE_{:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test: IBTA 9.2.1: opcode-has-service-and-operation
    #[test]
    fn known_opcodes_find_their_row_others_none() {
        let known = (0..=255).filter_map(|b| Opcode(b).info()).count();
        assert_eq!(known, Opcode::all().count());
        for row in Opcode::all() {
            assert_eq!(row.opcode.info().map(|i| i.name), Some(row.name));
        }
        for unknown in [0x15, 0x18, 0x1f, 0x2c, 0x60, 0x66, 0x80, 0x82, 0xb5, 0xc0, 0xff] {
            assert!(Opcode(unknown).info().is_none(), "{unknown:#x}");
        }
    }

    //= test: IBTA 9.2.1: opcode-has-service-and-operation
    #[test]
    fn service_is_in_upper_three_bits() {
        for row in Opcode::all() {
            let expected = match row.opcode.0 >> 5 {
                0 => Service::Rc,
                1 => Service::Uc,
                2 => Service::Rd,
                3 => Service::Ud,
                4 => Service::Cnp,
                5 => Service::Xrc,
                // Manufacturer-specific: one opcode of Roxie's, for RC.
                _ => Service::Rc,
            };
            assert_eq!(row.service, expected, "{}", row.name);
        }
    }

    //= test: IBTA A14: xrc-request-names-its-queue
    #[test]
    fn xrc_requests_carry_xrceth_responses_do_not() {
        for row in Opcode::all().filter(|r| r.service == Service::Xrc) {
            let rc = Opcode(row.opcode.0 & 0x1f).info().unwrap();
            let extra = if row.is_response() { Headers::NONE } else { Headers::XRCETH };
            assert_eq!(row.headers, rc.headers | extra, "{}", row.name);
        }
    }

    #[test]
    fn headers_are_in_wire_order() {
        let h = Opcode::XRC_WRITE_ONLY_IMM.info().unwrap().headers;
        assert_eq!(h.len(), 24);
        assert_eq!(h.offset_of(Headers::XRCETH), Some(0));
        assert_eq!(h.offset_of(Headers::RETH), Some(4));
        assert_eq!(h.offset_of(Headers::IMM), Some(20));
        assert_eq!(h.offset_of(Headers::AETH), None);
        let flush = Opcode::RC_FLUSH.info().unwrap().headers;
        assert_eq!((flush.offset_of(Headers::FETH), flush.offset_of(Headers::RETH)), (Some(0), Some(4)));
        let ack = Opcode::RC_ATOMIC_ACKNOWLEDGE.info().unwrap().headers;
        assert_eq!(
            (ack.offset_of(Headers::AETH), ack.offset_of(Headers::ATOMIC_ACK_ETH)),
            (Some(0), Some(4))
        );
        assert_eq!(Opcode::RD_COMPARE_SWAP.info().unwrap().headers.len(), 40);
    }
}
