//! How many receive queues an interface really has: ethtool over generic netlink.
//!
//! rtnetlink tells how many were allocated, which is often more than are in use. The numbers are those of
//! `include/uapi/linux/ethtool_netlink.h` and `genetlink.h`.

use std::io;

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NlasIterator, parse_u16, parse_u32};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

use super::netlink::receive;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_A_CHANNELS_HEADER: u16 = 1;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// `struct nlmsghdr`, then `struct genlmsghdr`.
const HEADERS: usize = 16 + 4;

/// Receive queues in use on the interface with this index: receive-only plus combined channels.
///
/// # Errors
/// `EOPNOTSUPP` from drivers that do not say (they have one queue, as a rule).
pub(super) fn rx_queues(index: u32) -> io::Result<u32> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let name = DefaultNla::new(CTRL_ATTR_FAMILY_NAME, b"ethtool\0".to_vec());
    let family = exchange(&socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)?;
    let family = attribute(&family, CTRL_ATTR_FAMILY_ID)
        .and_then(|value| parse_u16(&value).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "ethtool family without an id"))?;

    let device = bytes_of(&DefaultNla::new(ETHTOOL_A_HEADER_DEV_INDEX, index.to_ne_bytes().to_vec()));
    let header = DefaultNla::new(ETHTOOL_A_CHANNELS_HEADER | NLA_F_NESTED, device);
    let channels = exchange(&socket, family, ETHTOOL_MSG_CHANNELS_GET, &header)?;
    let count = |kind| attribute(&channels, kind).and_then(|v| parse_u32(&v).ok()).unwrap_or(0);
    Ok(count(ETHTOOL_A_CHANNELS_RX_COUNT) + count(ETHTOOL_A_CHANNELS_COMBINED_COUNT))
}

/// Sends one attribute to a family and returns the attributes of the answer.
fn exchange(socket: &Socket, family: u16, command: u8, attribute: &DefaultNla) -> io::Result<Vec<u8>> {
    let payload = bytes_of(attribute);
    let length = u32::try_from(HEADERS + payload.len()).map_err(io::Error::other)?;
    let mut packet = Vec::with_capacity(HEADERS + payload.len());
    packet.extend(length.to_ne_bytes());
    packet.extend(family.to_ne_bytes());
    packet.extend(NLM_F_REQUEST.to_ne_bytes());
    packet.extend([0; 8]); // sequence number and port: one exchange at a time, on a socket of its own
    packet.extend([command, 1, 0, 0]);
    packet.extend(payload);
    socket.send(&packet, 0)?;

    let answer = receive(socket)?;
    let short = || io::Error::new(io::ErrorKind::InvalidData, "generic netlink answer cut short");
    let kind = parse_u16(answer.get(4..6).ok_or_else(short)?).map_err(io::Error::other)?;
    if kind == NLMSG_ERROR {
        let code: [u8; 4] = answer.get(16..20).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
        return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code).wrapping_neg()));
    }
    answer.get(HEADERS..).map(<[u8]>::to_vec).ok_or_else(short)
}

fn bytes_of(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

/// The value of the first attribute of that kind.
fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    NlasIterator::new(attributes).flatten().find(|a| a.kind() == kind).map(|a| a.value().to_vec())
}
