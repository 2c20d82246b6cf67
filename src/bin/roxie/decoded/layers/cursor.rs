//! A place in a frame, and what the headers before it said.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use roxie::wire::Drop;
use serde_json::{Value, json};

/// Headers that are read below the RoCE packet at most. Real ones stay below ten.
const MAX_HEADERS: usize = 32;
/// Frames that the capture cut before the headers said what is in them.
pub(super) const CUT: &str = "cut short";

/// Why reading ended before a RoCE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The frame holds something else.
    Other,
    /// The frame may hold RoCE behind a header that is not decoded: which.
    Unread(&'static str),
    /// The frame claims to be RoCE and is not well formed.
    Malformed(Drop),
}

/// A header that follows, by the kind of number that named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Ethernet,
    /// By EtherType.
    Network(u16),
    /// IPv4 or IPv6: the version nibble tells.
    Ip,
    /// By IP protocol number.
    Transport(u8),
    Mpls,
    Gre,
    /// A RoCE packet whose L3 header has this EtherType.
    Roce(u16),
}

/// A header that carried the rest of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    /// The protocol's name.
    pub(crate) kind: &'static str,
    /// The number that tells tunnels of this kind apart, and that number's name.
    pub(crate) id: Option<(&'static str, u32)>,
    /// Addresses of the tunnel's ends, if it goes over IP.
    pub(crate) ends: Option<(IpAddr, IpAddr)>,
}

impl Layer {
    pub(crate) fn as_json(&self) -> Value {
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
        // The line of the packet is long enough without.
        match self.ends {
            Some((src, dst)) if f.alternate() => write!(f, " {src} > {dst}"),
            _ => Ok(()),
        }
    }
}

/// The place.
pub(super) struct Cursor<'a> {
    pub(super) data: Cow<'a, [u8]>,
    pub(super) at: usize,
    /// Where the headers before say that the frame's content ends; beyond `data` if the capture cut it.
    pub(super) end: usize,
    /// Where the last L3 header begins, and the end that was known before it was read.
    pub(super) l3: (usize, usize),
    pub(super) dst_mac: [u8; 6],
    pub(super) src_mac: [u8; 6],
    /// TCIs of the last two tags, the outer one first.
    pub(super) tags: Vec<u16>,
    pub(super) layers: Vec<Layer>,
    /// Addresses of the last IP header, until a layer takes them.
    pub(super) ends: Option<(IpAddr, IpAddr)>,
    /// Bytes of extension headers that were taken out of `data`.
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

    /// The `N` bytes that are `offset` behind the cursor.
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

    /// Goes behind a header of `len` bytes.
    pub(super) fn skip(&mut self, len: usize) -> Result<(), Stop> {
        self.headers += 1;
        if self.headers > MAX_HEADERS {
            return Err(Stop::Unread("more than 32 headers"));
        }
        self.at += len;
        Ok(())
    }

    /// The content ends at most `len` bytes behind the cursor.
    pub(super) fn limit(&mut self, len: usize) {
        self.end = self.end.min(self.at + len);
    }

    /// Notes that the rest is carried by a tunnel or tag.
    pub(super) fn enter(&mut self, kind: &'static str, id: Option<(&'static str, u32)>) {
        self.layers.push(Layer { kind, id, ends: self.ends.take() });
    }

    /// Notes a tag. The packet itself shows two; those outside them are layers.
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
