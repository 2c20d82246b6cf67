//! SMB2 messages (MS-SMB2 2.2) of a session as guest that writes and reads files. All fields are little-endian.

use super::messages::{Refused, bytes, u16_at, u32_at};

/// Bytes of the header (MS-SMB2 2.2.1.2), in front of each body.
pub(crate) const HEADER: usize = 64;
/// Dialects 3.0.2 and 3.1.1.
pub(crate) const DIALECTS: [u16; 2] = [0x0302, 0x0311];
/// Bytes of a transfer for which a request pays one credit (MS-SMB2 3.1.5.2).
const PER_CREDIT: u32 = 64 << 10;
/// Credits that each request asks for: a transfer of 1 MiB costs 16.
const CREDITS: u16 = 64;
const IS_RESPONSE: u32 = 1;

pub(crate) const SUCCESS: u32 = 0;
/// The answer follows later.
pub(crate) const PENDING: u32 = 0x103;
pub(crate) const MORE_PROCESSING: u32 = 0xc000_0016;

pub(crate) const NEGOTIATE: u16 = 0;
pub(crate) const SESSION_SETUP: u16 = 1;
pub(crate) const LOGOFF: u16 = 2;
pub(crate) const TREE_CONNECT: u16 = 3;
pub(crate) const CREATE: u16 = 5;
pub(crate) const CLOSE: u16 = 6;
pub(crate) const READ: u16 = 8;
pub(crate) const WRITE: u16 = 9;

/// Channel by RDMA, to or from the memory of a [`Buffer`]. The response invalidates its key (MS-SMB2 2.2.19, 2.2.21).
pub(crate) const RDMA_INVALIDATE: u32 = 2;

/// Identifier of an open file.
pub(crate) type FileId = [u8; 16];

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) command: u16,
    /// Status of a response, an NTSTATUS.
    pub(crate) status: u32,
    /// Credits that a request costs.
    pub(crate) charge: u16,
    /// Credits that a request asks for and a response grants.
    pub(crate) credits: u16,
    pub(crate) is_response: bool,
    pub(crate) message_id: u64,
    pub(crate) tree: u32,
    pub(crate) session: u64,
}

impl Header {
    pub(crate) fn parse(message: &[u8]) -> Result<Header, Refused> {
        bytes::<HEADER>(message, 0)?;
        let id = u32_at(message, 0)?;
        if id != u32::from_le_bytes(*b"\xfeSMB") {
            return Err(Refused::Field { field: "ProtocolId", value: id });
        }
        let next = u32_at(message, 20)?;
        if next != 0 {
            return Err(Refused::Field { field: "NextCommand", value: next });
        }
        Ok(Header {
            charge: u16_at(message, 6)?,
            status: u32_at(message, 8)?,
            command: u16_at(message, 12)?,
            credits: u16_at(message, 14)?,
            is_response: u32_at(message, 16)? & IS_RESPONSE != 0,
            message_id: u64::from_le_bytes(bytes(message, 24)?),
            tree: u32_at(message, 36)?,
            session: u64::from_le_bytes(bytes(message, 40)?),
        })
    }

    /// Returns the message with this header and body.
    pub(crate) fn with(self, body: &[u8]) -> Vec<u8> {
        let mut out = Out(b"\xfeSMB".to_vec());
        out.u16(64).u16(self.charge).u32(self.status).u16(self.command).u16(self.credits);
        out.u32(if self.is_response { IS_RESPONSE } else { 0 }).u32(0).u64(self.message_id);
        out.u32(0).u32(self.tree).u64(self.session).raw(&[0; 16]).raw(body);
        out.0
    }

    /// Returns the header of a request, with the credits for a transfer of `length` bytes.
    pub(crate) fn request(command: u16, length: u32) -> Header {
        let charge = length.div_ceil(PER_CREDIT).max(1) as u16;
        Header { command, charge, credits: CREDITS, ..Header::default() }
    }
}

/// Bytes in the making.
#[derive(Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn u16(&mut self, value: u16) -> &mut Out {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Out {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Out {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(&mut self, value: &[u8]) -> &mut Out {
        self.0.extend(value);
        self
    }
}

/// Returns UTF-16 of a name.
pub(crate) fn utf16(name: &str) -> Vec<u8> {
    name.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Returns the bytes that a message names by offset and length.
pub(crate) fn range(message: &[u8], offset: usize, length: usize) -> Result<&[u8], Refused> {
    let needed = offset as u64 + length as u64;
    let inside = (offset >= HEADER).then(|| message.get(offset..offset.saturating_add(length))).flatten();
    inside.ok_or(Refused::Short { length: message.len(), needed })
}

/// Memory that the server reaches by RDMA: a buffer descriptor (MS-SMBD 2.2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) offset: u64,
    pub(crate) token: u32,
    pub(crate) length: u32,
}

impl Buffer {
    pub(crate) fn parse(message: &[u8], at: usize) -> Result<Buffer, Refused> {
        let bytes = range(message, at, 16)?;
        let offset = u64::from_le_bytes(bytes.first_chunk().copied().expect("8 bytes"));
        Ok(Buffer { offset, token: u32_at(bytes, 8)?, length: u32_at(bytes, 12)? })
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut out = Out::default();
        out.u64(self.offset).u32(self.token).u32(self.length);
        out.0
    }
}

/// Data of a READ or a WRITE: in the message, or by RDMA on this channel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Message(&'a [u8]),
    Rdma(u32, Buffer),
}

/// Returns the body of a NEGOTIATE request, with the context that 3.1.1 demands: integrity of these messages by
/// SHA-512.
pub(crate) fn negotiate(guid: &[u8; 16], salt: &[u8; 32]) -> Vec<u8> {
    let mut out = Out::default();
    // Signing is enabled, transfers may cost several credits.
    out.u16(36).u16(DIALECTS.len() as u16).u16(1).u16(0).u32(4).raw(guid);
    // The contexts begin at the next multiple of 8: 64 + 36 bytes and two dialects are 104.
    out.u32(104).u16(1).u16(0).u16(DIALECTS[0]).u16(DIALECTS[1]);
    out.u16(1).u16(38).u32(0).u16(1).u16(32).u16(1).raw(salt);
    out.0
}

/// Limits of a server, in its NEGOTIATE response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) dialect: u16,
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    pub(crate) requires_signing: bool,
}

impl Negotiated {
    pub(crate) fn parse(message: &[u8]) -> Result<Negotiated, Refused> {
        let dialect = u16_at(message, HEADER + 4)?;
        if !DIALECTS.contains(&dialect) {
            return Err(Refused::Field { field: "DialectRevision", value: dialect.into() });
        }
        Ok(Negotiated {
            dialect,
            requires_signing: u16_at(message, HEADER + 2)? & 2 != 0,
            max_read: u32_at(message, HEADER + 32)?,
            max_write: u32_at(message, HEADER + 36)?,
        })
    }

    pub(crate) fn to_body(self) -> Vec<u8> {
        let mut out = Out::default();
        out.u16(65).u16(1).u16(self.dialect).u16(1).raw(&[0; 16]).u32(4);
        out.u32(self.max_read).u32(self.max_read).u32(self.max_write).u64(0).u64(0);
        out.u16(128).u16(0).u32(128).u16(1).u16(38).u32(0).u16(1).u16(32).u16(1).raw(&[0; 32]);
        out.0
    }
}

/// Returns the body of a SESSION_SETUP request with a security token.
pub(crate) fn session_setup(token: &[u8]) -> Vec<u8> {
    let mut out = Out::default();
    out.u16(25).u16(0x0100).u32(0).u32(0).u16(88).u16(token.len() as u16).u64(0).raw(token);
    out.0
}

/// Returns the first token of NTLM (MS-NLMP 2.2.1.1): no domain, no workstation.
pub(crate) fn ntlm_negotiate() -> Vec<u8> {
    let mut out = Out(b"NTLMSSP\0".to_vec());
    // Unicode, the target's name, NTLM.
    out.u32(1).u32(0x0000_0205).u64(0).u64(0);
    out.0
}

/// Returns the last token of NTLM (MS-NLMP 2.2.1.3) for a user without a password: responses are empty, so a server
/// takes the user for a guest or refuses.
pub(crate) fn ntlm_authenticate(user: &str) -> Vec<u8> {
    let (user, mut out) = (utf16(user), Out(b"NTLMSSP\0".to_vec()));
    out.u32(3);
    for length in [0, 0, 0, user.len() as u16, 0, 0] {
        out.u16(length).u16(length).u32(64);
    }
    out.u32(0x0000_0205).raw(&user);
    out.0
}

/// Returns the body of a TREE_CONNECT request for a share by its whole path.
pub(crate) fn tree_connect(path: &str) -> Vec<u8> {
    let (path, mut out) = (utf16(path), Out::default());
    out.u16(9).u16(0).u16(72).u16(path.len() as u16).raw(&path);
    out.0
}

/// Returns the body of a CREATE request for a file below the share, to read, or to write from its begin: then it is
/// made or emptied.
pub(crate) fn create(name: &str, writes: bool) -> Vec<u8> {
    let (name, mut out) = (utf16(name), Out::default());
    let (access, disposition) = if writes { (0x0012_019f, 5) } else { (0x0012_0089, 1) };
    out.u16(57).u16(0).u32(2).u64(0).u64(0).u32(access).u32(0x80).u32(7).u32(disposition).u32(0x40);
    out.u16(120).u16(name.len() as u16).u32(0).u32(0).raw(&name);
    out.0
}

/// Returns the file of a CREATE response, and its length.
pub(crate) fn created(message: &[u8]) -> Result<(FileId, u64), Refused> {
    Ok((bytes(message, HEADER + 64)?, u64::from_le_bytes(bytes(message, HEADER + 48)?)))
}

pub(crate) fn created_body(file: FileId, length: u64) -> Vec<u8> {
    let mut out = Out::default();
    out.u16(89).u16(0).u32(1).raw(&[0; 32]).u64(length).u64(length).u32(0x80).u32(0).raw(&file).u64(0);
    out.0
}

/// Returns the body of a WRITE request.
pub(crate) fn write(file: FileId, offset: u64, place: Place<'_>) -> Vec<u8> {
    let mut out = Out::default();
    match place {
        Place::Message(data) => {
            out.u16(49).u16(112).u32(data.len() as u32).u64(offset).raw(&file);
            out.u32(0).u32(0).u32(0).u32(0).raw(data);
        }
        Place::Rdma(channel, buffer) => {
            out.u16(49).u16(0).u32(0).u64(offset).raw(&file);
            out.u32(channel).u32(buffer.length).u16(112).u16(16).u32(0).raw(&buffer.to_bytes());
        }
    }
    out.0
}

/// Returns the bytes that a WRITE has written.
pub(crate) fn written(message: &[u8]) -> Result<u32, Refused> {
    u32_at(message, HEADER + 4)
}

/// Returns the body of a READ request; a message's bytes are not used, only their number.
pub(crate) fn read(file: FileId, offset: u64, length: u32, rdma: Option<(u32, Buffer)>) -> Vec<u8> {
    let mut out = Out::default();
    // The response's data begin where its body ends.
    out.u16(49).raw(&[80, 0]).u32(length).u64(offset).raw(&file).u32(1);
    match rdma {
        Some((channel, buffer)) => out.u32(channel).u32(0).u16(112).u16(16).raw(&buffer.to_bytes()),
        // The body is never without a byte behind it.
        None => out.u32(0).u32(0).u32(0).raw(&[0]),
    };
    out.0
}

/// Returns the data in a READ response, and the bytes that were moved by RDMA.
pub(crate) fn read_data(message: &[u8]) -> Result<(&[u8], u32), Refused> {
    let offset = bytes::<1>(message, HEADER + 2)?[0].into();
    let (length, moved) = (u32_at(message, HEADER + 4)?, u32_at(message, HEADER + 8)?);
    let data = if length == 0 { &[] } else { range(message, offset, length as usize)? };
    Ok((data, moved))
}

/// Returns the body of a CLOSE request.
pub(crate) fn close(file: FileId) -> Vec<u8> {
    let mut out = Out::default();
    out.u16(24).u16(0).u32(0).raw(&file);
    out.0
}

#[cfg(test)]
#[path = "smb2_tests.rs"]
mod tests;
