//! A session of SMB2 as guest, over SMB Direct: files are written and read whole, one request at a time.

use std::net::SocketAddr;

use roxie::host::{Device, LentRegion};
use roxie::verbs::{Access, Wc, WcOpcode};

use super::Result;
use super::smb2::{self, Buffer, FileId, Header, Negotiated, Place};
use super::transport::Transport;

/// Bytes of a request that moves its data by RDMA.
const BY_RDMA: u32 = 1 << 20;
/// Bytes of a request with its data in the message: it costs one credit.
const BY_MESSAGE: u32 = 64 << 10;

/// How the data of a file moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By RDMA of the server's, to and from a registered buffer.
    Rdma,
    /// In messages, which SMB Direct splits into fragments.
    Messages,
}

/// A connected client with a share.
pub(crate) struct Client {
    transport: Transport,
    lent: LentRegion,
    limits: Negotiated,
    session: u64,
    tree: u32,
    next_message: u64,
    /// Credits of SMB2, which are not those of SMB Direct.
    credits: u64,
    /// Responses that have invalidated the buffer's key.
    pub(crate) invalidated: u64,
}

impl Client {
    /// Connects, and opens a session as guest and a share.
    pub(crate) fn connect(device: &Device, server: SocketAddr, share: &str) -> Result<Client> {
        let transport = Transport::connect(device, server)?;
        let lent = LentRegion::new(transport.pd(), BY_RDMA as usize)?;
        let limits = Negotiated { dialect: 0, max_read: 0, max_write: 0, requires_signing: false };
        let (session, tree, next_message) = (0, 0, 0);
        let mut client =
            Client { transport, lent, limits, session, tree, next_message, credits: 1, invalidated: 0 };
        client.open_session()?;
        let path = format!("\\\\{}\\{share}", server.ip());
        let response = client.request(smb2::TREE_CONNECT, &smb2::tree_connect(&path), 0)?;
        client.tree = Header::parse(&response)?.tree;
        Ok(client)
    }

    fn open_session(&mut self) -> Result<()> {
        let random = || roxie::random::unguessable().to_le_bytes();
        let salt: Vec<u8> = (0..4).flat_map(|_| random()).collect();
        let guid: Vec<u8> = (0..2).flat_map(|_| random()).collect();
        let (guid, salt) = (guid.first_chunk().expect("16"), salt.first_chunk().expect("32"));
        let response = self.request(smb2::NEGOTIATE, &smb2::negotiate(guid, salt), 0)?;
        self.limits = Negotiated::parse(&response)?;
        if self.limits.requires_signing {
            return Err("the server requires signatures, which a guest cannot make".into());
        }
        let token = smb2::session_setup(&smb2::ntlm_negotiate());
        let challenge = self.exchange(smb2::SESSION_SETUP, &token, 0)?.0;
        let header = Header::parse(&challenge)?;
        if header.status != smb2::MORE_PROCESSING {
            return Err(failed("SESSION_SETUP", header.status));
        }
        self.session = header.session;
        let token = smb2::session_setup(&smb2::ntlm_authenticate("guest of roxie"));
        self.request(smb2::SESSION_SETUP, &token, 0).map(drop)
    }

    /// Returns the server's limits.
    pub(crate) fn limits(&self) -> &Negotiated {
        &self.limits
    }

    /// Writes a file, made or emptied first.
    pub(crate) fn put(&mut self, name: &str, data: &[u8], way: Way) -> Result<()> {
        let (file, _) = self.create(name, true)?;
        let mut at = 0;
        while at < data.len() {
            let most = self.most(way, self.limits.max_write);
            let part = &data[at..data.len().min(at + most)];
            let written = match way {
                Way::Messages => {
                    let body = smb2::write(file, at as u64, Place::Message(part));
                    smb2::written(&self.request(smb2::WRITE, &body, part.len() as u32)?)?
                }
                Way::Rdma => {
                    self.lent.memory().write(0, part)?;
                    let (channel, buffer) = self.lend(part.len(), Access::REMOTE_READ)?;
                    let body = smb2::write(file, at as u64, Place::Rdma(channel, buffer));
                    smb2::written(&self.request_lent(smb2::WRITE, &body, part.len() as u32)?)?
                }
            };
            if written as usize != part.len() {
                return Err(format!("{written} bytes of {} were written", part.len()).into());
            }
            at += part.len();
        }
        self.close(file)
    }

    /// Reads a file.
    pub(crate) fn get(&mut self, name: &str, way: Way) -> Result<Vec<u8>> {
        let (file, length) = self.create(name, false)?;
        let mut data = Vec::new();
        while (data.len() as u64) < length {
            let most = self.most(way, self.limits.max_read) as u64;
            let part = most.min(length - data.len() as u64) as u32;
            let at = data.len() as u64;
            let before = data.len();
            match way {
                Way::Messages => {
                    let response = self.request(smb2::READ, &smb2::read(file, at, part, None), part)?;
                    let (read, _) = smb2::read_data(&response)?;
                    data.extend(&read[..read.len().min(part as usize)]);
                }
                Way::Rdma => {
                    let lent = self.lend(part as usize, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?;
                    let body = smb2::read(file, at, part, Some(lent));
                    let (_, moved) = smb2::read_data(&self.request_lent(smb2::READ, &body, part)?)?;
                    data.resize(before + moved.min(part) as usize, 0);
                    self.lent.memory().read(0, &mut data[before..])?;
                }
            }
            if data.len() == before {
                return Err(format!("{name} ends at byte {before}, before its length of {length}").into());
            }
        }
        self.close(file)?;
        Ok(data)
    }

    /// Ends the session and the connection.
    pub(crate) fn log_off(mut self) -> Result<()> {
        self.transport.keep_alive()?;
        self.request(smb2::LOGOFF, &[4, 0, 0, 0], 0)?;
        self.transport.disconnect()
    }

    fn most(&self, way: Way, server: u32) -> usize {
        let own = match way {
            Way::Rdma => BY_RDMA.min(self.transport.max_read_write()),
            Way::Messages => BY_MESSAGE,
        };
        own.min(server.max(1)) as usize
    }

    fn create(&mut self, name: &str, writes: bool) -> Result<(FileId, u64)> {
        Ok(smb2::created(&self.request(smb2::CREATE, &smb2::create(name, writes), 0)?)?)
    }

    fn close(&mut self, file: FileId) -> Result<()> {
        self.request(smb2::CLOSE, &smb2::close(file), 0).map(drop)
    }

    /// Registers the buffer for one request. Returns the channel, and the descriptor that goes into the request.
    fn lend(&mut self, length: usize, access: Access) -> Result<(u32, Buffer)> {
        self.lent.begin();
        let (offset, key) = self.lent.lend(self.transport.qp(), length, access)?;
        Ok((smb2::RDMA_INVALIDATE, Buffer { offset, token: key.0, length: length as u32 }))
    }

    /// Executes a request that lends the buffer. On return, the server cannot reach it any more, whatever the response
    /// is.
    fn request_lent(&mut self, command: u16, body: &[u8], length: u32) -> Result<Vec<u8>> {
        let (response, wc) = self.exchange(command, body, length)?;
        self.transport.flush()?;
        self.lent.completed(WcOpcode::Send);
        self.lent.answered(self.transport.qp(), &wc, 0)?;
        if self.lent.is_over() {
            self.invalidated += 1;
        }
        while !self.lent.is_over() {
            let opcode = self.transport.completion()?.opcode;
            self.lent.completed(opcode);
        }
        succeeded(command, response)
    }

    /// Executes a request. Any status but success is an error.
    fn request(&mut self, command: u16, body: &[u8], length: u32) -> Result<Vec<u8>> {
        let response = self.exchange(command, body, length)?.0;
        succeeded(command, response)
    }

    /// Executes a request, and returns its response, whatever the status.
    fn exchange(&mut self, command: u16, body: &[u8], length: u32) -> Result<(Vec<u8>, Wc)> {
        let header = Header::request(command, length);
        let header =
            Header { message_id: self.next_message, tree: self.tree, session: self.session, ..header };
        let charge = u64::from(header.charge);
        let have = self.credits;
        let too_few = || format!("a request of {charge} credits, and the server grants {have}");
        self.credits = have.checked_sub(charge).ok_or_else(too_few)?;
        self.next_message += charge;
        self.transport.send(header.with(body))?;
        loop {
            let (response, wc) = self.transport.receive()?;
            let answer = Header::parse(&response)?;
            if !answer.is_response || answer.message_id != header.message_id || answer.command != command {
                return Err(format!("no response to request {}: {answer:?}", header.message_id).into());
            }
            self.credits += u64::from(answer.credits);
            if answer.status != smb2::PENDING {
                return Ok((response, wc));
            }
        }
    }
}

fn succeeded(command: u16, response: Vec<u8>) -> Result<Vec<u8>> {
    match Header::parse(&response)?.status {
        smb2::SUCCESS => Ok(response),
        status => Err(failed(name(command), status)),
    }
}

fn failed(command: &str, status: u32) -> Box<dyn std::error::Error + Send + Sync> {
    // MS-ERREF 2.3.1.
    let text = match status {
        0xc000_0022 => "access denied",
        0xc000_0034 => "no such file",
        0xc000_006d => "logon failure: the server takes no guests",
        0xc000_00cc => "no such share",
        _ => "see MS-ERREF 2.3.1",
    };
    format!("{command} failed with {status:#010x} ({text})").into()
}

fn name(command: u16) -> &'static str {
    match command {
        smb2::NEGOTIATE => "NEGOTIATE",
        smb2::SESSION_SETUP => "SESSION_SETUP",
        smb2::LOGOFF => "LOGOFF",
        smb2::TREE_CONNECT => "TREE_CONNECT",
        smb2::CREATE => "CREATE",
        smb2::CLOSE => "CLOSE",
        smb2::READ => "READ",
        smb2::WRITE => "WRITE",
        _ => "a request",
    }
}
