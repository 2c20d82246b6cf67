//! Reasons why a frame is not a valid RoCE packet.

use core::fmt;

/// Why a frame is not a valid RoCE packet. A wrong ICRC is reported by
/// [`Envelope::check_icrc`](super::Envelope::check_icrc) instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drop {
    /// Another protocol: ARP, TCP, UDP to another port.
    NotRoce,
    /// PAUSE or PFC; see [`mac_control`](super::mac_control).
    MacControl,
    /// A length field or header exceeds the frame.
    Truncated {
        /// The part that does not fit.
        what: &'static str,
        /// Frame length that the part requires, in bytes.
        need: usize,
        /// Actual length in bytes.
        have: usize,
    },
    /// The IP header is inconsistent, or of another version than the EtherType.
    BadIpHeader {
        /// Version nibble of the IP header.
        version: u8,
        /// Length of the IP header in bytes.
        header_len: usize,
        /// Length of header and payload in bytes.
        total_len: usize,
    },
    /// The GRH's next header is not 0x1b.
    BadGrhNextHeader(u8),
    /// A fragment of an IPv4 UDP datagram. RoCE packets are never fragmented (IBTA annex A17.4.5.1).
    Fragment {
        /// Offset of the fragment in the datagram, in bytes.
        offset: usize,
        /// True unless the fragment is the last.
        more: bool,
    },
    /// The IPv6 header is followed by an extension header.
    Ipv6Extension(u8),
    /// The UDP length is below 8 or exceeds the IP payload.
    BadUdpLength {
        /// Length of header and payload by the UDP header, in bytes.
        udp_len: usize,
        /// Length of the IP payload in bytes.
        ip_payload: usize,
    },
    /// The opcode is unknown.
    UnknownOpcode(u8),
    /// The transport header version (TVer) is not 0.
    BadTransportVersion(u8),
    /// The pad count exceeds the bytes between headers and ICRC.
    BadPad {
        /// Pad count of the BTH.
        pad: u8,
        /// Bytes of payload and pad.
        available: usize,
    },
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drop::NotRoce => f.write_str("not RoCE: neither UDP port 4791 nor EtherType 0x8915"),
            Drop::MacControl => f.write_str("MAC control frame (EtherType 0x8808)"),
            Drop::Truncated { what, need, have } => {
                write!(f, "truncated: {what} ends at byte {need}, only {have} bytes are there")
            }
            Drop::BadIpHeader { version, header_len, total_len } => write!(
                f,
                "bad IP header: version {version}, header of {header_len} bytes, packet of {total_len} bytes"
            ),
            Drop::BadGrhNextHeader(next) => write!(f, "GRH next header {next:#04x}, RoCE v1 has 0x1b"),
            Drop::Fragment { offset, more } => {
                write!(f, "IPv4 fragment at byte {offset}, more follow: {more}")
            }
            Drop::Ipv6Extension(next) => write!(f, "IPv6 extension header {next}"),
            Drop::BadUdpLength { udp_len, ip_payload } => {
                write!(f, "UDP length {udp_len} in an IP payload of {ip_payload} bytes")
            }
            Drop::UnknownOpcode(opcode) => write!(f, "unknown opcode {opcode:#04x}"),
            Drop::BadTransportVersion(version) => write!(f, "transport version {version}, only 0 exists"),
            Drop::BadPad { pad, available } => write!(f, "pad of {pad} bytes where {available} are left"),
        }
    }
}

impl core::error::Error for Drop {}

impl Drop {
    /// Counter names, in the order of [`index`](Self::index).
    pub const COUNTERS: [&'static str; 11] = [
        "rx_not_roce",
        "rx_mac_control",
        "rx_truncated",
        "rx_bad_ip_header",
        "rx_bad_grh",
        "rx_ip_fragment",
        "rx_ipv6_extension",
        "rx_bad_udp_length",
        "rx_unknown_opcode",
        "rx_bad_tver",
        "rx_bad_pad",
    ];

    /// Returns the reason's index in [`COUNTERS`](Self::COUNTERS).
    pub const fn index(&self) -> usize {
        match self {
            Drop::NotRoce => 0,
            Drop::MacControl => 1,
            Drop::Truncated { .. } => 2,
            Drop::BadIpHeader { .. } => 3,
            Drop::BadGrhNextHeader(_) => 4,
            Drop::Fragment { .. } => 5,
            Drop::Ipv6Extension(_) => 6,
            Drop::BadUdpLength { .. } => 7,
            Drop::UnknownOpcode(_) => 8,
            Drop::BadTransportVersion(_) => 9,
            Drop::BadPad { .. } => 10,
        }
    }

    /// Returns the name of the reason's counter.
    pub const fn counter(&self) -> &'static str {
        Drop::COUNTERS[self.index()]
    }
}

/// True for an IPv6 extension header (IANA registry "IPv6 Extension Header Types").
pub(super) const fn is_ipv6_extension(next_header: u8) -> bool {
    matches!(next_header, 0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140)
}
