//! Why a frame is not a good RoCE packet.

use thiserror::Error;

/// Every way in which a frame fails to be a good RoCE packet. The ICRC is not among them: see
/// [`Envelope::check_icrc`](super::Envelope::check_icrc).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Drop {
    /// Another protocol: ARP, TCP, UDP to another port.
    #[error("not RoCE: neither UDP port 4791 nor EtherType 0x8915")]
    NotRoce,
    /// PAUSE or PFC: see [`mac_control`](super::mac_control).
    #[error("MAC control frame (EtherType 0x8808)")]
    MacControl,
    /// A length says that more bytes belong to the frame than there are.
    #[error("{what} needs {need} bytes of frame, there are {have}")]
    Truncated {
        /// What does not fit.
        what: &'static str,
        /// Bytes of frame that it takes.
        need: usize,
        /// Bytes that there are.
        have: usize,
    },
    /// The IP header contradicts itself or its EtherType.
    #[error("IP version {version}, header of {header_len} bytes, packet of {total_len}")]
    BadIpHeader {
        /// The version nibble of the IP header.
        version: u8,
        /// Bytes of its header.
        header_len: usize,
        /// Bytes of header and payload.
        total_len: usize,
    },
    /// A GRH that another protocol follows.
    #[error("GRH next header {0:#04x}, RoCE v1 has 0x1b")]
    BadGrhNextHeader(u8),
    /// A fragment of an IPv4 UDP datagram; RoCE packets are never fragmented (IBTA annex A17.4.5.1).
    #[error("IPv4 fragment at byte {offset}, more follow: {more}")]
    Fragment {
        /// Its place in the datagram, in bytes.
        offset: usize,
        /// It is not the last.
        more: bool,
    },
    /// An IPv6 extension header stands before whatever the packet is.
    #[error("IPv6 extension header {0}")]
    Ipv6Extension(u8),
    /// The UDP length does not fit the IP packet.
    #[error("UDP length {udp_len} in an IP payload of {ip_payload} bytes")]
    BadUdpLength {
        /// Bytes of header and payload that UDP says.
        udp_len: usize,
        /// Bytes that IP has.
        ip_payload: usize,
    },
    /// No such opcode.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// TVer is not 0.
    #[error("transport version {0}, only 0 exists")]
    BadTransportVersion(u8),
    /// The pad count exceeds what lies between headers and ICRC.
    #[error("pad of {pad} bytes where {available} are left")]
    BadPad {
        /// The pad count of the BTH.
        pad: u8,
        /// Bytes of payload and pad.
        available: usize,
    },
}

impl Drop {
    /// Names of all counters, in the order of [`index`](Self::index).
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

    /// Which of [`COUNTERS`](Self::COUNTERS) counts it.
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

    /// The name of its counter.
    pub const fn counter(&self) -> &'static str {
        Drop::COUNTERS[self.index()]
    }
}

/// True for an IPv6 extension header (IANA registry "IPv6 Extension Header Types").
pub(super) const fn is_ipv6_extension(next_header: u8) -> bool {
    matches!(next_header, 0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140)
}
