//! The classic BPF program that selects the frames of a packet socket.
//!
//! The kernel runs it on frames from the Ethernet header on, VLAN tags apart. Addresses are compared by the receiver: they change,
//! and frames to other hosts' addresses are rare.

use roxie_base::frame::ROCE_V2_PORT;

/// An instruction: code, jump if true, jump if false, operand.
pub(super) type Instruction = (u16, u8, u8, u32);

/// `BPF_LD | BPF_B | BPF_ABS`, and the same for 16 bits.
const LOAD_8: u16 = 0x30;
const LOAD_16: u16 = 0x28;
/// `BPF_LD | BPF_H | BPF_IND`: at X + k.
const LOAD_16_AT_X: u16 = 0x48;
/// `BPF_LDX | BPF_B | BPF_MSH`: X = length of the IPv4 header at k.
const X_IS_HEADER_LENGTH: u16 = 0xb1;
/// `BPF_JMP | BPF_JEQ | BPF_K`, and `BPF_JSET`.
const EQUALS: u16 = 0x15;
const HAS_BITS: u16 = 0x45;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE`: to whom the frame is addressed (`linux/if_packet.h`).
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const TO_HOST: u32 = 0;
const TO_GROUP: u32 = 2;

const ETHERTYPE: u32 = 12;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const MAC_CONTROL: u32 = 0x8808;
const UDP: u32 = 17;
/// Offset of the IP header, and offsets in IP and UDP headers.
const IP: u32 = 14;
const V4_FRAGMENT: u32 = 6;
const V4_PROTOCOL: u32 = 9;
const V6_NEXT_HEADER: u32 = 6;
const V6_HEADER: u32 = 40;
const DESTINATION_PORT: u32 = 2;
const MORE_FRAGMENTS_OR_OFFSET: u32 = 0x3fff;

/// Returns the program that accepts RoCE v2 to this station or to a group, and MAC control frames if wanted.
pub(super) fn program(mac_control: bool) -> Vec<Instruction> {
    // Jumps count instructions from the next one on.
    let to = |at: u8, place: u8| place - at - 1;
    let (v6, accept, refuse) = (14, 18, 19);
    let control = if mac_control { accept } else { refuse };
    let port = u32::from(ROCE_V2_PORT);
    vec![
        /*  0 */ (LOAD_8, 0, 0, PACKET_TYPE),
        /*  1 */ (EQUALS, to(1, 3), 0, TO_HOST),
        /*  2 */ (EQUALS, 0, to(2, refuse), TO_GROUP),
        /*  3 */ (LOAD_16, 0, 0, ETHERTYPE),
        /*  4 */ (EQUALS, to(4, v6), 0, IPV6),
        /*  5 */ (EQUALS, to(5, control), 0, MAC_CONTROL),
        /*  6 */ (EQUALS, 0, to(6, refuse), IPV4),
        /*  7 */ (LOAD_8, 0, 0, IP + V4_PROTOCOL),
        /*  8 */ (EQUALS, 0, to(8, refuse), UDP),
        /*  9 */ (LOAD_16, 0, 0, IP + V4_FRAGMENT),
        /* 10 */ (HAS_BITS, to(10, refuse), 0, MORE_FRAGMENTS_OR_OFFSET),
        /* 11 */ (X_IS_HEADER_LENGTH, 0, 0, IP),
        /* 12 */ (LOAD_16_AT_X, 0, 0, IP + DESTINATION_PORT),
        /* 13 */ (EQUALS, to(13, accept), to(13, refuse), port),
        /* 14 */ (LOAD_8, 0, 0, IP + V6_NEXT_HEADER),
        /* 15 */ (EQUALS, 0, to(15, refuse), UDP),
        /* 16 */ (LOAD_16, 0, 0, IP + V6_HEADER + DESTINATION_PORT),
        /* 17 */ (EQUALS, to(17, accept), to(17, refuse), port),
        /* 18 */ (RETURN, 0, 0, u32::MAX),
        /* 19 */ (RETURN, 0, 0, 0),
    ]
}
