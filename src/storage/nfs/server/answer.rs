//! Answers to calls: the read-only half of NFS version 3. No call changes a file.

use super::export::{Export, Room};
use crate::nfs3::{
    Arguments, Attributes, FsInfo, PROGRAM, PathConf, ReadHead, Status, failed, procedure, write_listing,
};
use crate::rpc::{Call, Credential, Outcome, Reply, VERSION};
use crate::xdr::{Malformed, Writer};

/// Bytes of a READ or of a listing at most.
pub const LONGEST_TRANSFER: usize = 128 << 10;
/// AUTH_TOOWEAK (RFC 5531 9): the server takes no such credential.
const TOO_WEAK: u32 = 5;
/// Kinds of access that a client may have (RFC 1813 3.3.4).
const ACCESS_READ: u32 = 0x01;
const ACCESS_LOOKUP: u32 = 0x02;
const ACCESS_EXECUTE: u32 = 0x20;
/// Properties of the file system: symbolic links, and the same for all files.
const PROPERTIES: u32 = 0x02 | 0x08;

/// A reply, in two parts: the data item of the results, which may move by RDMA, and all before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The message up to the data item.
    pub head: Vec<u8>,
    /// The data item, without its length, which is in the head, and its padding. `None`: the results have none.
    pub data: Option<Vec<u8>>,
    /// Procedure number, if NFS was called.
    pub procedure: Option<u32>,
    /// Status of the call, if it was executed.
    pub status: Status,
}

/// Executes a call.
///
/// # Errors
/// If the message is no call.
pub fn answer(export: &Export, message: &[u8]) -> Result<Answer, Malformed> {
    let (call, mut reader) = Call::parse(message)?;
    let plain = |outcome| {
        let mut out = Writer::new();
        Reply { xid: call.xid, outcome }.write(&mut out);
        Ok(Answer { head: out.finish(), data: None, procedure: None, status: Status::OK })
    };
    if let Some(outcome) = refusal(&call, PROGRAM) {
        return plain(outcome);
    }
    let arguments = match Arguments::parse(call.procedure, &mut reader) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => return plain(Outcome::NoProcedure),
        Err(_) => return plain(Outcome::Garbage),
    };
    let mut out = Writer::new();
    Reply { xid: call.xid, outcome: Outcome::Success }.write(&mut out);
    let head = out.len();
    let (data, status) = match execute(export, &arguments, &mut out) {
        Ok(data) => (data, Status::OK),
        Err(status) => {
            // Nothing of a call that has failed half-way.
            let mut message = out.finish();
            message.truncate(head);
            message.extend(failed(call.procedure, status));
            return Ok(Answer { head: message, data: None, procedure: Some(call.procedure), status });
        }
    };
    Ok(Answer { head: out.finish(), data, procedure: Some(call.procedure), status })
}

/// Returns why a call to a program is not executed.
pub(super) fn refusal(call: &Call<'_>, (program, version): (u32, u32)) -> Option<Outcome> {
    if call.rpc_version != VERSION {
        return Some(Outcome::WrongRpcVersion { low: VERSION, high: VERSION });
    }
    if call.program != program {
        return Some(Outcome::NoProgram);
    }
    if call.version != version {
        return Some(Outcome::WrongVersion { low: version, high: version });
    }
    matches!(call.credential, Credential::Other(_)).then_some(Outcome::Denied(TOO_WEAK))
}

/// Writes the results of a call that succeeds. Returns the data item.
fn execute(export: &Export, arguments: &Arguments<'_>, out: &mut Writer) -> Result<Option<Vec<u8>>, Status> {
    match arguments {
        Arguments::Null => {}
        Arguments::GetAttr { file } => {
            let attributes = export.attributes(file)?;
            out.u32(Status::OK.0);
            attributes.write(out);
        }
        Arguments::Lookup { folder, name } => {
            let (handle, attributes) = export.lookup(folder, name)?;
            out.u32(Status::OK.0);
            handle.write(out);
            Attributes::write_optional(Some(&attributes), out);
            Attributes::write_optional(None, out);
        }
        Arguments::Access { file, access } => {
            let attributes = export.attributes(file)?;
            let is_executable = attributes.mode & 0o111 != 0;
            let granted = match attributes.kind {
                crate::nfs3::Kind::Folder => ACCESS_READ | ACCESS_LOOKUP,
                _ if is_executable => ACCESS_READ | ACCESS_EXECUTE,
                _ => ACCESS_READ,
            };
            out.u32(Status::OK.0);
            Attributes::write_optional(Some(&attributes), out);
            out.u32(access & granted);
        }
        Arguments::ReadLink { file } => {
            let (target, attributes) = export.link(file)?;
            out.u32(Status::OK.0);
            Attributes::write_optional(Some(&attributes), out);
            out.u32(target.len() as u32);
            return Ok(Some(target));
        }
        Arguments::Read { file, offset, count } => {
            let (data, is_end, attributes) =
                export.read(file, *offset, (*count as usize).min(LONGEST_TRANSFER))?;
            let count = data.len() as u32;
            ReadHead { attributes: Some(attributes), count, is_end, length: count }.write(out);
            return Ok(Some(data));
        }
        Arguments::ReadDir { folder, cookie, count, .. } => {
            let room = room(*count, *count, false)?;
            let (listing, attributes) = export.list(folder, *cookie, room)?;
            write_listing(&listing, false, &attributes, out);
        }
        Arguments::ReadDirPlus { folder, cookie, names, count, .. } => {
            let room = room(*count, *names, true)?;
            let (listing, attributes) = export.list(folder, *cookie, room)?;
            write_listing(&listing, true, &attributes, out);
        }
        Arguments::FsStat { file } => export.space()?.write(&export.attributes(file)?, out),
        Arguments::FsInfo { file } => sizes().write(&export.attributes(file)?, out),
        Arguments::PathConf { file } => {
            PathConf { most_links: 32_000, longest_name: 255 }.write(&export.attributes(file)?, out);
        }
        Arguments::Write { .. } | Arguments::Create { .. } | Arguments::Changing(_) => {
            return Err(Status::ROFS);
        }
        // A client that was refused all WRITEs has nothing to commit.
        Arguments::Commit { .. } => return Err(Status::ROFS),
    }
    Ok(None)
}

fn sizes() -> FsInfo {
    let most = LONGEST_TRANSFER as u32;
    FsInfo {
        read_most: most,
        read_preferred: most,
        // Of a size that no call has: all are refused.
        write_most: most,
        write_preferred: most,
        listing_preferred: 32 << 10,
        longest_file: i64::MAX as u64,
        properties: PROPERTIES,
    }
}

/// Returns the room for entries in results of `count` bytes.
fn room(count: u32, names: u32, is_plus: bool) -> Result<Room, Status> {
    let bytes = (count as usize).min(LONGEST_TRANSFER).checked_sub(crate::nfs3::EMPTY_LISTING);
    let bytes = bytes.ok_or(Status::TOOSMALL)?;
    Ok(Room { bytes, names: (names as usize).min(LONGEST_TRANSFER), is_plus })
}

/// Returns the name of a procedure that is refused because it changes files.
pub fn refused_change(answer: &Answer) -> Option<&'static str> {
    answer.procedure.filter(|_| answer.status == Status::ROFS).and_then(procedure::name)
}
