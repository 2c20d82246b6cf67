//! Requests to a generic netlink family: one attribute in the request, the attributes of the answer in return.
//!
//! The numbers are as in `include/uapi/linux/genetlink.h`.

use std::io;

use netlink_packet_core::{DefaultNla, Emitable, NlasIterator, parse_u16, parse_u32};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

use super::netlink::receive;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// `struct nlmsghdr`, then `struct genlmsghdr`.
const HEADERS: usize = 16 + 4;

/// A generic netlink family of the kernel, with a socket of its own.
#[derive(Debug)]
pub(super) struct Family {
    socket: Socket,
    id: u16,
}

impl Family {
    /// Opens the family with this name, in the calling thread's network namespace.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no such family.
    pub(super) fn open(name: &str) -> io::Result<Family> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        let controller = Family { socket, id: GENL_ID_CTRL };
        let answer = controller.request(CTRL_CMD_GETFAMILY, &DefaultNla::new(CTRL_ATTR_FAMILY_NAME, text))?;
        let id = attribute(&answer, CTRL_ATTR_FAMILY_ID).and_then(|value| parse_u16(&value).ok());
        let id = id.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a family without an id"))?;
        Ok(Family { id, ..controller })
    }

    /// Sends one attribute and returns the attributes of the answer.
    ///
    /// # Errors
    /// The kernel's error, such as `EOPNOTSUPP`.
    pub(super) fn request(&self, command: u8, attribute: &DefaultNla) -> io::Result<Vec<u8>> {
        self.exchange(command, &bytes_of(attribute))
    }

    /// Sends several attributes and returns the attributes of the answer.
    ///
    /// # Errors
    /// As [`request`](Family::request).
    pub(super) fn set(&self, command: u8, attributes: &[DefaultNla]) -> io::Result<Vec<u8>> {
        let payload: Vec<u8> = attributes.iter().flat_map(bytes_of).collect();
        self.exchange(command, &payload)
    }

    fn exchange(&self, command: u8, payload: &[u8]) -> io::Result<Vec<u8>> {
        let length = u32::try_from(HEADERS + payload.len()).map_err(io::Error::other)?;
        let mut packet = Vec::with_capacity(HEADERS + payload.len());
        packet.extend(length.to_ne_bytes());
        packet.extend(self.id.to_ne_bytes());
        packet.extend(NLM_F_REQUEST.to_ne_bytes());
        packet.extend([0; 8]); // sequence number and port: one exchange at a time, on a socket of its own
        packet.extend([command, 1, 0, 0]);
        packet.extend(payload);
        self.socket.send(&packet, 0)?;

        let answer = receive(&self.socket)?;
        let short = || io::Error::new(io::ErrorKind::InvalidData, "generic netlink answer cut short");
        let kind = parse_u16(answer.get(4..6).ok_or_else(short)?).map_err(io::Error::other)?;
        if kind == NLMSG_ERROR {
            let code: [u8; 4] = answer.get(16..20).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
            return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code).wrapping_neg()));
        }
        answer.get(HEADERS..).map(<[u8]>::to_vec).ok_or_else(short)
    }
}

pub(super) fn bytes_of(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

/// Returns the value of the first attribute of that kind.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    NlasIterator::new(attributes).flatten().find(|a| a.kind() == kind).map(|a| a.value().to_vec())
}

/// Returns the first attribute of that kind as a number; 0 if absent.
pub(super) fn number(attributes: &[u8], kind: u16) -> u32 {
    attribute(attributes, kind).and_then(|value| parse_u32(&value).ok()).unwrap_or(0)
}
