//! A position in a frame, with the state that the headers before it left.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use roxie::wire::Drop;
use serde_json::{Value, json};

/// Most headers read in front of the RoCE packet. Real frames have fewer than ten.
const MAX_HEADERS: usize = 32;
/// Kind of frames that the capture truncated before their content was known.
pub(super) const CUT: &str = "cut short";

/// Why parsing ended before a RoCE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The frame carries another protocol.
    Other,
    /// The frame may carry RoCE behind a header that is not decoded; the header's name.
    Unread(&'static str),
    /// The frame claims to be RoCE but is malformed.
    Malformed(Drop),
}

/// The next header, by the field that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Ethernet,
    /// By EtherType.
    Network(u16),
    /// IPv4 or IPv6, by the version nibble.
    Ip,
    /// By IP protocol number.
    Transport(u8),
    Mpls,
    Gre,
    /// A RoCE packet; the EtherType of its L3 header.
    Roce(u16),
}

/// A tunnel or tag that encapsulates the rest of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The protocol's name.
    pub kind: &'static str,
    /// The tunnel's identifier, with its name: a VNI, a label, a session.
    pub id: Option<(&'static str, u32)>,
    /// Addresses of the tunnel's endpoints, if it runs over IP.
    pub ends: Option<(IpAddr, IpAddr)>,
}

impl Layer {
    /// Returns the object of a JSON row.
    pub fn as_json(&self) -> Value {
        let mut row = json!({ "kind": self.kind });
        if let Some((name, number)) = self.id {
            row[name] = number.into();
        }
        if let Some((src, dst)) = self.ends {
            row["src"] = src.to_string().into();
            row["dst"] = dst.to_string().into();
        }
        row
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        self.id.map_or(Ok(()), |(name, number)| write!(f, " {name} {number}"))?;
        // Endpoints only in the verbose form: the packet's line is long already.
        match self.ends {
            Some((src, dst)) if f.alternate() => write!(f, " {src} > {dst}"),
            _ => Ok(()),
        }
    }
}

/// A position in a frame.
pub(super) struct Cursor<'a> {
    pub(super) data: Cow<'a, [u8]>,
    pub(super) at: usize,
    /// End of the content according to the headers so far; past `data.len()` if the capture truncated the frame.
    pub(super) end: usize,
    /// Start of the last L3 header, and the value of `end` before it was parsed.
    pub(super) l3: (usize, usize),
    pub(super) dst_mac: [u8; 6],
    pub(super) src_mac: [u8; 6],
    /// TCIs of the two innermost tags, the outer one first.
    pub(super) tags: Vec<u16>,
    pub(super) layers: Vec<Layer>,
    /// Addresses of the last IP header, until a layer takes them as its endpoints.
    pub(super) ends: Option<(IpAddr, IpAddr)>,
    /// Number of bytes of extension headers removed from `data`.
    pub(super) removed: usize,
    headers: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8], at: usize, wire_len: usize) -> Cursor<'a> {
        Cursor {
            data: Cow::Borrowed(data),
            at,
            end: wire_len,
            l3: (at, wire_len),
            dst_mac: [0; 6],
            src_mac: [0; 6],
            tags: Vec::new(),
            layers: Vec::new(),
            ends: None,
            removed: 0,
            headers: 0,
        }
    }

    /// Returns the `N` bytes at `offset` from the cursor.
    pub(super) fn peek<const N: usize>(&self, offset: usize) -> Result<[u8; N], Stop> {
        let at = self.at + offset;
        if at + N > self.end {
            return Err(Stop::Other);
        }
        self.data.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Stop::Unread(CUT))
    }

    pub(super) fn peek_u16(&self, offset: usize) -> Result<u16, Stop> {
        self.peek(offset).map(u16::from_be_bytes)
    }

    /// Advances the cursor past a header of `len` bytes.
    pub(super) fn skip(&mut self, len: usize) -> Result<(), Stop> {
        self.headers += 1;
        if self.headers > MAX_HEADERS {
            return Err(Stop::Unread("more than 32 headers"));
        }
        self.at += len;
        Ok(())
    }

    /// Bounds the content to `len` bytes from the cursor.
    pub(super) fn limit(&mut self, len: usize) {
        self.end = self.end.min(self.at + len);
    }

    /// Records a tunnel or tag around the rest of the frame.
    pub(super) fn enter(&mut self, kind: &'static str, id: Option<(&'static str, u32)>) {
        self.layers.push(Layer { kind, id, ends: self.ends.take() });
    }

    /// Records a VLAN tag. The packet shows the two innermost; tags outside them become layers.
    pub(super) fn tag(&mut self, tci: u16) {
        if self.tags.len() == 2 {
            let outermost = self.tags.remove(0);
            self.layers.push(Layer {
                kind: "VLAN",
                id: Some(("vlan", u32::from(outermost & 0x0fff))),
                ends: None,
            });
        }
        self.tags.push(tci);
    }
}
