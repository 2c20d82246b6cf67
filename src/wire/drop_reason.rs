//! Reasons why a frame is not a valid RoCE packet.

use thiserror::Error;

/// Why a frame is not a valid RoCE packet. A wrong ICRC is reported by
/// [`Envelope::check_icrc`](super::Envelope::check_icrc) instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Drop {
    /// Another protocol: ARP, TCP, UDP to another port.
    #[error("not RoCE: neither UDP port 4791 nor EtherType 0x8915")]
    NotRoce,
    /// PAUSE or PFC; see [`mac_control`](super::mac_control).
    #[error("MAC control frame (EtherType 0x8808)")]
    MacControl,
    /// A length field or header exceeds the frame.
    #[error("truncated: {what} ends at byte {need}, only {have} bytes are there")]
    Truncated {
        /// The part that does not fit.
        what: &'static str,
        /// Frame length that the part requires, in bytes.
        need: usize,
        /// Actual length in bytes.
        have: usize,
    },
    /// The IP header is inconsistent, or of another version than the EtherType.
    #[error("bad IP header: version {version}, header of {header_len} bytes, packet of {total_len} bytes")]
    BadIpHeader {
        /// Version nibble of the IP header.
        version: u8,
        /// Length of the IP header in bytes.
        header_len: usize,
        /// Length of header and payload in bytes.
        total_len: usize,
    },
    /// The GRH's next header is not 0x1b.
    #[error("GRH next header {0:#04x}, RoCE v1 has 0x1b")]
    BadGrhNextHeader(u8),
    /// A fragment of an IPv4 UDP datagram. RoCE packets are never fragmented (IBTA annex A17.4.5.1).
    #[error("IPv4 fragment at byte {offset}, more follow: {more}")]
    Fragment {
        /// Offset of the fragment in the datagram, in bytes.
        offset: usize,
        /// True unless the fragment is the last.
        more: bool,
    },
    /// The IPv6 header is followed by an extension header.
    #[error("IPv6 extension header {0}")]
    Ipv6Extension(u8),
    /// The UDP length is below 8 or exceeds the IP payload.
    #[error("UDP length {udp_len} in an IP payload of {ip_payload} bytes")]
    BadUdpLength {
        /// Length of header and payload by the UDP header, in bytes.
        udp_len: usize,
        /// Length of the IP payload in bytes.
        ip_payload: usize,
    },
    /// The opcode is unknown.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The transport header version (TVer) is not 0.
    #[error("transport version {0}, only 0 exists")]
    BadTransportVersion(u8),
    /// The pad count exceeds the bytes between headers and ICRC.
    #[error("pad of {pad} bytes where {available} are left")]
    BadPad {
        /// Pad count of the BTH.
        pad: u8,
        /// Bytes of payload and pad.
        available: usize,
    },
}

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
