//! A client: calls a server over a device, and reads and writes its files.
//!
//! One thread uses it. Single calls wait for their replies; [`Client::read_file`] and [`Client::write_file`] have many
//! outstanding.

mod error;
mod files;
mod mounting;
mod transport;

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{ConnectionManager, Device};

use crate::nfs3::{
    self, Arguments, Attributes, Change, Committed, FileHandle, FsInfo, Listing, PROGRAM, Stable, Status,
    Written, procedure,
};
use crate::rpc::{Call, Credential, Outcome, Reply};
use crate::xdr::{Malformed, Reader, Writer};

pub use error::ClientError;
pub use mounting::mount;
pub use roxie_ulp::Ended;
use transport::{Data, Finished, LONGEST_TRANSFER, Transport};

/// Bytes of a listing's results.
const LISTING: usize = 32 << 10;
/// Entries of a folder that are listed at most.
const MOST_ENTRIES: usize = 1 << 20;
/// Bytes of a reply in front of its results, at most, with the status and attributes that a READ has before its data.
const AROUND: usize = 24 + 4 + 88 + 12;
/// Bytes of a short reply: CREATE's, with a handle and three times attributes.
const SHORT: usize = 24 + 4 + 72 + 88 + 120;

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// User and group number in the credential. What a server allows depends on them.
    pub user: (u32, u32),
    /// Longest time that a call may take.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    /// Returns the numbers of this process's user, and 30 s.
    fn default() -> ClientOptions {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        ClientOptions { user: (user, group), timeout: Duration::from_secs(30) }
    }
}

impl ClientOptions {
    /// Returns the credential of calls.
    pub fn credential(&self) -> Credential<'static> {
        Credential::Sys { machine: b"roxie", user: self.user.0, group: self.user.1 }
    }
}

/// A connected client.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    options: ClientOptions,
}

impl Client {
    /// Connects, and calls NULL: its reply grants credits.
    ///
    /// # Errors
    /// If there is no path, or the server has no NFS version 3 over RDMA at the port.
    pub fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        let mut client = Client { transport: Transport::connect(device, manager, to)?, options };
        let reply = client.call(&Arguments::Null, Data::Reply(SHORT))?;
        results("NULL", &reply.message)?;
        Ok(client)
    }

    /// Returns the attributes of a file. `path` names it in errors.
    ///
    /// # Errors
    /// If the status is not success, or the connection fails, as for all calls below.
    pub fn attributes(&mut self, file: &FileHandle, path: &str) -> Result<Attributes, ClientError> {
        self.short(&Arguments::GetAttr { file: file.clone() }, path, nfs3::file)
    }

    /// Looks a name up in a folder. Returns handle and attributes.
    ///
    /// # Errors
    /// As those of [`Client::attributes`].
    pub fn lookup(
        &mut self,
        folder: &FileHandle,
        name: impl AsRef<[u8]>,
        path: &str,
    ) -> Result<(FileHandle, Attributes), ClientError> {
        let arguments = Arguments::Lookup { folder: folder.clone(), name: name.as_ref() };
        let (handle, attributes) = self.short(&arguments, path, nfs3::found)?;
        match attributes {
            Some(attributes) => Ok((handle, attributes)),
            None => self.attributes(&handle, path).map(|attributes| (handle, attributes)),
        }
    }

    /// Returns the sizes that the server prefers.
    ///
    /// # Errors
    /// As those of [`Client::attributes`].
    pub fn info(&mut self, file: &FileHandle, path: &str) -> Result<FsInfo, ClientError> {
        self.short(&Arguments::FsInfo { file: file.clone() }, path, nfs3::fs_info)
    }

    /// Makes an empty file, or empties one. Returns its handle.
    ///
    /// # Errors
    /// As those of [`Client::attributes`].
    pub fn create(
        &mut self,
        folder: &FileHandle,
        name: impl AsRef<[u8]>,
        mode: u32,
        path: &str,
    ) -> Result<FileHandle, ClientError> {
        let change = Some(Change { is_guarded: false, mode: Some(mode), size: Some(0) });
        let arguments = Arguments::Create { folder: folder.clone(), name: name.as_ref(), change };
        match self.short(&arguments, path, nfs3::created)? {
            (Some(handle), _) => Ok(handle),
            (None, _) => self.lookup(folder, name, path).map(|(handle, _)| handle),
        }
    }

    /// Makes written data durable. Returns the verifier, which is that of the WRITEs unless the server may have lost
    /// data.
    ///
    /// # Errors
    /// As those of [`Client::attributes`].
    pub fn commit(&mut self, file: &FileHandle, path: &str) -> Result<Committed, ClientError> {
        let arguments = Arguments::Commit { file: file.clone(), offset: 0, count: 0 };
        self.short(&arguments, path, Committed::parse)
    }

    /// Lists a folder to its end, with attributes if the server has READDIRPLUS.
    ///
    /// # Errors
    /// As those of [`Client::attributes`]; also if the listing does not advance, or has more than 1,048,576 entries.
    pub fn list(&mut self, folder: &FileHandle, path: &str) -> Result<Vec<nfs3::Entry>, ClientError> {
        let (mut all, mut cookie, mut verifier, mut is_plus) = (Vec::new(), 0, 0, true);
        loop {
            let (folder, count) = (folder.clone(), LISTING as u32);
            let arguments = if is_plus {
                Arguments::ReadDirPlus { folder, cookie, verifier, names: count, count }
            } else {
                Arguments::ReadDir { folder, cookie, verifier, count }
            };
            let reply = self.call(&arguments, Data::Reply(LISTING + SHORT))?;
            let name = name(&arguments);
            let listing: Listing = match nfs3::listed(is_plus, &mut results(name, &reply.message)?)? {
                Ok(listing) => listing,
                Err(Status::NOTSUPP) if is_plus && all.is_empty() => {
                    is_plus = false;
                    continue;
                }
                Err(status) => return Err(failed(&arguments, path, status)),
            };
            match listing.entries.last() {
                Some(last) if last.cookie != cookie => cookie = last.cookie,
                _ if listing.is_end => {}
                _ => return Err(ClientError::Protocol(format!("{path}: a listing that does not advance"))),
            }
            verifier = listing.verifier;
            all.extend(listing.entries);
            if all.len() > MOST_ENTRIES {
                return Err(ClientError::Protocol(format!("{path}: more than {MOST_ENTRIES} entries")));
            }
            if listing.is_end {
                return Ok(all);
            }
        }
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn close(self) -> Result<(), ClientError> {
        self.transport.disconnect()
    }

    /// Executes a call with a short reply.
    fn short<T>(
        &mut self,
        arguments: &Arguments<'_>,
        path: &str,
        parse: impl FnOnce(&mut Reader<'_>) -> Result<Result<T, Status>, Malformed>,
    ) -> Result<T, ClientError> {
        let reply = self.call(arguments, Data::Reply(SHORT))?;
        let parsed = parse(&mut results(name(arguments), &reply.message)?)?;
        parsed.map_err(|status| failed(arguments, path, status))
    }

    /// Executes a call while no other is outstanding.
    fn call(&mut self, arguments: &Arguments<'_>, data: Data<'_>) -> Result<Finished, ClientError> {
        let full = || ClientError::Protocol("calls are outstanding".into());
        self.submit(arguments, data)?.ok_or_else(full)?;
        self.transport.wait(self.options.timeout)
    }

    /// Sends a call. Returns its slot; `None`: as many calls are outstanding as the server grants.
    fn submit(&mut self, arguments: &Arguments<'_>, data: Data<'_>) -> Result<Option<usize>, ClientError> {
        let xid = self.transport.next_xid();
        let mut out = Writer::new();
        Call::new(xid, PROGRAM, arguments.procedure(), self.options.credential()).write(&mut out);
        arguments.write(&mut out);
        if let (Arguments::Write { .. }, Data::Out(bytes)) = (arguments, data) {
            out.u32(bytes.len() as u32);
        }
        self.transport.submit(xid, &out.finish(), data)
    }
}

fn name(arguments: &Arguments<'_>) -> &'static str {
    procedure::name(arguments.procedure()).unwrap_or("a call")
}

fn failed(arguments: &Arguments<'_>, path: &str, status: Status) -> ClientError {
    ClientError::Status { path: path.to_owned(), call: name(arguments), status }
}

/// Returns the results of an executed call.
fn results<'a>(call: &'static str, message: &'a [u8]) -> Result<Reader<'a>, ClientError> {
    let (reply, results) = Reply::parse(message)?;
    match reply.outcome {
        Outcome::Success => Ok(results),
        outcome => Err(ClientError::Call { call, outcome }),
    }
}
