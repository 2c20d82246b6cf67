//! The classic BPF program that selects the frames of a packet socket.
//!
//! The kernel runs it on frames from the Ethernet header on, VLAN tags apart. Addresses are compared by the receiver:
//! they change, and frames to other hosts' addresses are rare. A load beyond the frame's end refuses the frame.

use crate::RxOptions;
use crate::group::{ATTRIBUTE, DESTINATION_QP, MULTICAST, QP1, REMOTE_ID, REQUEST_ID};
use roxie_base::addressee::{DREQ, REQ, SIDR_REP, SIDR_REQ};
use roxie_base::frame::ROCE_V2_PORT;

/// An instruction: code, jump if true, jump if false, operand.
pub(super) type Instruction = (u16, u8, u8, u32);

/// `BPF_LD | BPF_ABS` of `BPF_B` and `BPF_H`.
const LOAD_8: u16 = 0x30;
const LOAD_16: u16 = 0x28;
/// `BPF_LD | BPF_IND`, at X + k, of `BPF_B`, `BPF_H` and `BPF_W`.
const LOAD_8_AT_X: u16 = 0x50;
const LOAD_16_AT_X: u16 = 0x48;
const LOAD_32_AT_X: u16 = 0x40;
/// `BPF_LD | BPF_LEN`: length of the frame.
const LOAD_LENGTH: u16 = 0x80;
/// `BPF_LDX | BPF_B | BPF_MSH`: X = length of the IPv4 header at k.
const X_IS_HEADER_LENGTH: u16 = 0xb1;
/// `BPF_LDX | BPF_IMM`.
const X_IS: u16 = 0x01;
/// `BPF_ALU | BPF_K` of `BPF_AND` and `BPF_RSH`.
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
/// `BPF_JMP | BPF_JA`.
const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`, and `BPF_JSET`.
const EQUALS: u16 = 0x15;
const HAS_BITS: u16 = 0x45;
/// `BPF_JMP | BPF_JGT | BPF_K`, and `BPF_JGE`.
const EXCEEDS: u16 = 0x25;
const REACHES: u16 = 0x35;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
const ACCEPT: Instruction = (RETURN, 0, 0, u32::MAX);
/// Accepts as many bytes as the headers of a frame with two tags may have.
const ACCEPT_HEADERS: Instruction = (RETURN, 0, 0, 128);
const REFUSE: Instruction = (RETURN, 0, 0, 0);
/// `SKF_AD_OFF + SKF_AD_PKTTYPE`: to whom the frame is addressed (`linux/if_packet.h`).
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const TO_HOST: u32 = 0;
const TO_GROUP: u32 = 2;
const TO_OTHER_HOST: u32 = 3;

const ETHERTYPE: u32 = 12;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const MAC_CONTROL: u32 = 0x8808;
const ROCE_V1: u32 = 0x8915;
const VLAN: u32 = 0x8100;
const SERVICE_VLAN: u32 = 0x88a8;
const UDP: u32 = 17;
/// Offset of the IP header, and offsets in IP and UDP headers.
const IP: u32 = 14;
const V4_FRAGMENT: u32 = 6;
const V4_PROTOCOL: u32 = 9;
const V6_NEXT_HEADER: u32 = 6;
const V6_HEADER: u32 = 40;
/// A GRH, less the UDP header that does not follow.
const GRH_WITHOUT_UDP: u32 = 40 - 8;
const DESTINATION_PORT: u32 = 2;
const MORE_FRAGMENTS_OR_OFFSET: u32 = 0x3fff;
/// Offset of the datagram in a frame without its IP header.
const DATAGRAM: u32 = IP + 8;

/// Bytes of a frame to QP1 behind its IP header: UDP header, BTH, DETH, a management datagram, ICRC (IBTA 13.4.2).
const MANAGEMENT: u32 = 8 + 12 + 8 + 256 + 4;
/// Shortest and longest frame with one management datagram: over IPv4 without options, and with all.
const SHORTEST_MANAGEMENT: u32 = IP + 20 + MANAGEMENT;
const LONGEST_MANAGEMENT: u32 = IP + 60 + MANAGEMENT;

/// The frames that a socket takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Frames that arrive for this station, and those to groups, up to a length in bytes, but for management datagrams.
    Lone(u32),
    /// Longer ones, which are trains but for jumbo frames of other stacks. A flood of lone frames so fills no slots of
    /// trains.
    Trains(u32),
    /// Frames to QP1 with the length of one management datagram. A flood of them so fills no ring of the others.
    Management,
    /// Frames on the loopback interface, whose MAC address no frame has as its destination, and those to groups.
    Loopback,
}

/// Returns the program that accepts RoCE of a source: with `units`, packets to QPs of these units, to groups, and
/// requests of the connection manager, for release too; without, all. RoCE v1 and MAC control frames only if wanted. Of
/// frames with a second tag it accepts the headers, which the receiver counts.
pub(super) fn program(source: Source, wishes: RxOptions, units: Option<&[u8]>) -> Vec<Instruction> {
    let own = match source {
        Source::Lone(_) | Source::Trains(_) | Source::Management => TO_HOST,
        Source::Loopback => TO_OTHER_HOST,
    };
    let mac_control = wishes.mac_control && matches!(source, Source::Lone(_));
    let v6 = [(LOAD_8, 0, 0, IP + V6_NEXT_HEADER), (EQUALS, 1, 0, UDP), REFUSE, (X_IS, 0, 0, V6_HEADER)];
    let v4 = [
        (LOAD_8, 0, 0, IP + V4_PROTOCOL),
        (EQUALS, 1, 0, UDP),
        REFUSE,
        (LOAD_16, 0, 0, IP + V4_FRAGMENT),
        (HAS_BITS, 0, 1, MORE_FRAGMENTS_OR_OFFSET),
        REFUSE,
        (X_IS_HEADER_LENGTH, 0, 0, IP),
        (JUMP, 0, 0, v6.len() as u32),
    ];
    let port = [(LOAD_16_AT_X, 0, 0, IP + DESTINATION_PORT), (EQUALS, 1, 0, ROCE_V2_PORT.into()), REFUSE];
    let tagged = if source == Source::Management { REFUSE } else { ACCEPT_HEADERS };
    let tags = [(EQUALS, 1, 0, VLAN), (EQUALS, 0, 1, SERVICE_VLAN), tagged, REFUSE];
    let behind_tags = (v4.len() + v6.len() + port.len()) as u8;
    // RoCE v1 skips the test of the port.
    let over_port = (JUMP, 0, 0, (tags.len() as u8 + behind_tags).into());
    let v1 = [
        (EQUALS, 0, 2, ROCE_V1),
        if wishes.roce_v1 { (X_IS, 0, 0, GRH_WITHOUT_UDP) } else { REFUSE },
        if wishes.roce_v1 { over_port } else { REFUSE },
    ];
    let others = (v1.len() + tags.len()) as u8;
    // Lengths first, because most frames have another.
    let mut code = vec![(LOAD_LENGTH, 0, 0, 0)];
    match source {
        Source::Lone(longest) => code.extend([(EXCEEDS, 0, 1, longest), REFUSE]),
        Source::Trains(longest) => code.extend([(EXCEEDS, 1, 0, longest), REFUSE]),
        Source::Management => {
            code.extend([(EXCEEDS, 1, 0, LONGEST_MANAGEMENT), (REACHES, 1, 0, SHORTEST_MANAGEMENT), REFUSE]);
        }
        Source::Loopback => {}
    }
    code.extend([
        (LOAD_8, 0, 0, PACKET_TYPE),
        (EQUALS, 2, 0, own),
        (EQUALS, 1, 0, TO_GROUP),
        REFUSE,
        (LOAD_16, 0, 0, ETHERTYPE),
        (EQUALS, 0, 1, MAC_CONTROL),
        if mac_control { ACCEPT } else { REFUSE },
        (EQUALS, 1 + others + v4.len() as u8, 0, IPV6),
        (EQUALS, others, 0, IPV4),
    ]);
    code.extend(v1);
    code.extend(tags);
    code.extend(v4);
    code.extend(v6);
    code.extend(port);
    match source {
        Source::Lone(_) => code.extend(refuse_management()),
        Source::Management => code.extend(refuse_data()),
        Source::Trains(_) | Source::Loopback => {}
    }
    match units {
        Some(units) => code.extend(select_units(units)),
        None => code.push(ACCEPT),
    }
    code
}

/// Returns the part of the program that refuses lone management datagrams.
fn refuse_management() -> [Instruction; 7] {
    [
        /* 0 */ (LOAD_LENGTH, 0, 0, 0),
        /* 1 */ (EXCEEDS, 5, 0, LONGEST_MANAGEMENT),
        /* 2 */ (REACHES, 0, 4, SHORTEST_MANAGEMENT),
        /* 3 */ (LOAD_32_AT_X, 0, 0, DATAGRAM + DESTINATION_QP as u32),
        /* 4 */ (AND, 0, 0, 0xff_ffff),
        /* 5 */ (EQUALS, 0, 1, QP1),
        /* 6 */ REFUSE,
    ]
}

/// Returns the part of the program that refuses all other frames of that length.
fn refuse_data() -> [Instruction; 4] {
    [
        (LOAD_32_AT_X, 0, 0, DATAGRAM + DESTINATION_QP as u32),
        (AND, 0, 0, 0xff_ffff),
        (EQUALS, 1, 0, QP1),
        REFUSE,
    ]
}

/// Returns the end of the program: accepts by destination QP.
fn select_units(units: &[u8]) -> Vec<Instruction> {
    let at = |offset: usize| DATAGRAM + offset as u32;
    let mut code = vec![
        /*  0 */ (LOAD_32_AT_X, 0, 0, at(DESTINATION_QP)),
        /*  1 */ (AND, 0, 0, 0xff_ffff),
        /*  2 */ (EQUALS, 0, 1, MULTICAST),
        /*  3 */ ACCEPT,
        /*  4 */ (EQUALS, 2, 0, QP1),
        /*  5 */ (SHIFT_RIGHT, 0, 0, 16),
        /*  6 */ (JUMP, 0, 0, 9),
        /*  7 */ (LOAD_16_AT_X, 0, 0, at(ATTRIBUTE)),
        /*  8 */ (EQUALS, 2, 0, REQ.into()),
        /*  9 */ (EQUALS, 1, 0, SIDR_REQ.into()),
        /* 10 */ (EQUALS, 0, 1, DREQ.into()),
        /* 11 */ ACCEPT,
        /* 12 */ (EQUALS, 2, 0, SIDR_REP.into()),
        /* 13 */ (LOAD_8_AT_X, 0, 0, at(REMOTE_ID)),
        /* 14 */ (JUMP, 0, 0, 1),
        /* 15 */ (LOAD_8_AT_X, 0, 0, at(REQUEST_ID)),
    ];
    for unit in units {
        code.extend([(EQUALS, 0, 1, u32::from(*unit)), ACCEPT]);
    }
    code.push(REFUSE);
    code
}
