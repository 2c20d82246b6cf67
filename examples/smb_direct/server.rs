//! A server for one client in the same process: files in memory, for guests. A real server has far more to check.

use std::collections::HashMap;

use roxie::host::MemoryRegion;
use roxie::verbs::{Access, RKey, SendWr};

use super::Result;
use super::messages::{Refused, bytes, u16_at, u32_at};
use super::smb2::{self, Buffer, DIALECTS, HEADER, Header, Negotiated, range};
use super::transport::{MAX_READ_WRITE, Transport};

const INVALID_PARAMETER: u32 = 0xc000_000d;
const NOT_FOUND: u32 = 0xc000_0034;
const END_OF_FILE: u32 = 0xc000_0011;
/// Bytes of a file at most.
const LONGEST: u64 = 64 << 20;

/// A response without its header: a status, a body, and the buffer with the key that it invalidates.
struct Answer {
    status: u32,
    body: Vec<u8>,
    invalidates: Option<Buffer>,
}

impl Answer {
    fn ok(body: Vec<u8>) -> Answer {
        Answer { status: smb2::SUCCESS, body, invalidates: None }
    }

    /// Returns an error response (MS-SMB2 2.2.2).
    fn error(status: u32) -> Answer {
        Answer { status, body: vec![9, 0, 0, 0, 0, 0, 0, 0, 0], invalidates: None }
    }
}

/// The server's end of a connection.
struct Server {
    transport: Transport,
    memory: MemoryRegion,
    files: HashMap<String, Vec<u8>>,
    /// Names of opened files, by their identifiers.
    open: Vec<String>,
    has_challenged: bool,
}

/// Serves a client until its LOGOFF. Returns the number of its requests.
pub(crate) fn serve(transport: Transport) -> Result<u64> {
    let memory = transport.pd().register(MAX_READ_WRITE as usize, Access::LOCAL_WRITE)?;
    let mut server =
        Server { transport, memory, files: HashMap::new(), open: Vec::new(), has_challenged: false };
    for count in 1.. {
        let (message, _) = server.transport.receive()?;
        let header = Header::parse(&message)?;
        let answer = server.answer(&header, &message)?;
        let response = Header { status: answer.status, is_response: true, session: 1, tree: 1, ..header }
            .with(&answer.body);
        match answer.invalidates {
            Some(buffer) => server.transport.send_invalidating(response, RKey(buffer.token))?,
            None => server.transport.send(response)?,
        }
        if header.command == smb2::LOGOFF {
            server.transport.flush()?;
            return Ok(count);
        }
    }
    unreachable!("a count without end")
}

impl Server {
    fn answer(&mut self, header: &Header, message: &[u8]) -> Result<Answer> {
        Ok(match header.command {
            smb2::NEGOTIATE => {
                let (max_read, max_write) = (MAX_READ_WRITE, MAX_READ_WRITE);
                let limits =
                    Negotiated { dialect: DIALECTS[1], max_read, max_write, requires_signing: false };
                Answer::ok(limits.to_body())
            }
            smb2::SESSION_SETUP => {
                let status = if self.has_challenged { smb2::SUCCESS } else { smb2::MORE_PROCESSING };
                self.has_challenged = true;
                // No token: the client does not look at it. The session is a guest's.
                Answer { status, ..Answer::ok(vec![9, 0, 1, 0, 72, 0, 0, 0]) }
            }
            smb2::TREE_CONNECT => Answer::ok([&[16, 0, 1, 0][..], &[0; 12]].concat()),
            smb2::CREATE => self.create(message)?,
            smb2::CLOSE => Answer::ok([&[60, 0][..], &[0; 58]].concat()),
            smb2::LOGOFF => Answer::ok(vec![4, 0, 0, 0]),
            smb2::READ => self.read(message)?,
            smb2::WRITE => self.write(message)?,
            _ => Answer::error(INVALID_PARAMETER),
        })
    }

    fn create(&mut self, message: &[u8]) -> Result<Answer> {
        let (offset, length) = (u16_at(message, HEADER + 44)?, u16_at(message, HEADER + 46)?);
        let name = range(message, offset.into(), length.into())?;
        let name = String::from_utf16_lossy(
            &name.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect::<Vec<_>>(),
        );
        // Disposition 5: the file is made, or emptied.
        if u32_at(message, HEADER + 36)? == 5 {
            self.files.insert(name.clone(), Vec::new());
        }
        let Some(file) = self.files.get(&name) else { return Ok(Answer::error(NOT_FOUND)) };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(self.open.len() as u64).to_le_bytes());
        self.open.push(name);
        Ok(Answer::ok(smb2::created_body(id, file.len() as u64)))
    }

    fn file(&mut self, message: &[u8]) -> Result<&mut Vec<u8>, Refused> {
        let id = u64::from_le_bytes(bytes(message, HEADER + 16)?);
        let unknown = Refused::Field { field: "FileId", value: id as u32 };
        let name = usize::try_from(id).ok().and_then(|id| self.open.get(id)).ok_or(unknown)?;
        self.files.get_mut(name).ok_or(unknown)
    }

    fn read(&mut self, message: &[u8]) -> Result<Answer> {
        let length = u32_at(message, HEADER + 4)?.min(MAX_READ_WRITE);
        let at = u64::from_le_bytes(bytes(message, HEADER + 8)?);
        let (channel, info) = (u32_at(message, HEADER + 36)?, u16_at(message, HEADER + 44)?);
        let file = self.file(message)?;
        let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).unwrap_or_default();
        let data = rest[..rest.len().min(length as usize)].to_vec();
        if data.is_empty() {
            return Ok(Answer::error(END_OF_FILE));
        }
        let mut body = smb2::Out::default();
        if channel == 0 {
            body.u16(17).u16(80).u32(data.len() as u32).u32(0).u32(0).raw(&data);
            return Ok(Answer::ok(body.0));
        }
        let buffer = Buffer::parse(message, info.into())?;
        if (buffer.length as usize) < data.len() {
            return Ok(Answer::error(INVALID_PARAMETER));
        }
        self.memory.write_at(0, &data)?;
        self.rdma(SendWr::write(buffer.offset, RKey(buffer.token)), data.len() as u32)?;
        body.u16(17).u16(80).u32(0).u32(data.len() as u32).u32(0);
        let invalidates = (channel == smb2::RDMA_INVALIDATE).then_some(buffer);
        Ok(Answer { invalidates, ..Answer::ok(body.0) })
    }

    fn write(&mut self, message: &[u8]) -> Result<Answer> {
        let at = u64::from_le_bytes(bytes(message, HEADER + 8)?);
        let (channel, moved) = (u32_at(message, HEADER + 32)?, u32_at(message, HEADER + 36)?);
        let (data, buffer) = if channel == 0 {
            let (offset, length) = (u16_at(message, HEADER + 2)?, u32_at(message, HEADER + 4)?);
            (range(message, offset.into(), length as usize)?.to_vec(), None)
        } else {
            let buffer = Buffer::parse(message, u16_at(message, HEADER + 40)?.into())?;
            if moved > buffer.length || moved > MAX_READ_WRITE {
                return Ok(Answer::error(INVALID_PARAMETER));
            }
            self.rdma(SendWr::read(buffer.offset, RKey(buffer.token)), moved)?;
            (self.memory.to_vec(0, moved as usize)?, Some(buffer))
        };
        let end = at.saturating_add(data.len() as u64);
        if end > LONGEST {
            return Ok(Answer::error(INVALID_PARAMETER));
        }
        let file = self.file(message)?;
        file.resize(file.len().max(end as usize), 0);
        file[at as usize..end as usize].copy_from_slice(&data);
        let mut body = smb2::Out::default();
        body.u16(17).u16(0).u32(data.len() as u32).u32(0).u32(0);
        let invalidates = buffer.filter(|_| channel == smb2::RDMA_INVALIDATE);
        Ok(Answer { invalidates, ..Answer::ok(body.0) })
    }

    /// Moves bytes between this end's memory and the client's.
    fn rdma(&mut self, request: SendWr, length: u32) -> Result<()> {
        self.transport.qp().post_send(&request.signaled(), &[self.memory.sge(0, length)])?;
        self.transport.completion().map(drop)
    }
}
