//! MOUNT version 3 (RFC 1813 I), record marking of RPC over TCP (RFC 5531 11), and the port mapper's query (RFC 1833
//! 3).

use std::fmt;
use std::io::{self, Read, Write};

use crate::nfs::nfs3::FileHandle;
use crate::nfs::rpc::flavor;
use crate::nfs::xdr::{Malformed, Reader, Writer};

/// The program and its version.
pub const PROGRAM: (u32, u32) = (100_005, 3);
/// Bytes of a path at most.
pub const LONGEST_PATH: usize = 1024;

/// Procedure numbers.
pub mod procedure {
    /// Nothing.
    pub const NULL: u32 = 0;
    /// Returns the handle of an exported folder.
    pub const MNT: u32 = 1;
    /// Lists clients.
    pub const DUMP: u32 = 2;
    /// The client no longer uses a folder.
    pub const UMNT: u32 = 3;
    /// The client no longer uses any folder.
    pub const UMNTALL: u32 = 4;
    /// Lists exported folders.
    pub const EXPORT: u32 = 5;
}

/// Port of the port mapper.
pub const MAPPER_PORT: u16 = 111;
/// The port mapper's program and version.
pub const MAPPER: (u32, u32) = (100_000, 2);
/// Its procedure that returns a program's port.
pub const GETPORT: u32 = 3;

/// Writes the arguments of GETPORT for a program over TCP. The result is one word, 0 for none.
pub fn port_query((program, version): (u32, u32)) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(program).u32(version).u32(6).u32(0);
    out.finish()
}

/// The status of a MNT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Success.
    pub const OK: Status = Status(0);
    /// There is no such folder.
    pub const NOENT: Status = Status(2);
    /// The client may not use the folder.
    pub const ACCES: Status = Status(13);
    /// The path is no folder.
    pub const NOTDIR: Status = Status(20);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "success",
            1 => "MNT3ERR_PERM (not the owner)",
            2 => "MNT3ERR_NOENT (no such folder)",
            5 => "MNT3ERR_IO (input or output has failed)",
            13 => "MNT3ERR_ACCES (permission denied)",
            20 => "MNT3ERR_NOTDIR (not a folder)",
            22 => "MNT3ERR_INVAL (invalid argument)",
            63 => "MNT3ERR_NAMETOOLONG (path too long)",
            10004 => "MNT3ERR_NOTSUPP (operation not supported)",
            10006 => "MNT3ERR_SERVERFAULT (the server has failed)",
            other => return write!(f, "status {other}"),
        })
    }
}

/// Reads the results of MNT: the handle of the folder, if the server takes AUTH_SYS or no authentication.
///
/// # Errors
/// If they are malformed.
pub fn parse_mounted(reader: &mut Reader<'_>) -> Result<Result<FileHandle, Status>, Malformed> {
    match Status(reader.u32()?) {
        Status::OK => {}
        status => return Ok(Err(status)),
    }
    let handle = FileHandle::parse(reader)?;
    let flavors = reader.u32()?;
    // A server without a list takes what it took for this call.
    let mut is_taken = flavors == 0;
    for _ in 0..flavors {
        is_taken |= matches!(reader.u32()?, flavor::NONE | flavor::SYS);
    }
    Ok(if is_taken { Ok(handle) } else { Err(Status::ACCES) })
}

/// Writes the results of MNT.
pub fn write_mounted(result: Result<&FileHandle, Status>, out: &mut Writer) {
    match result {
        Ok(handle) => {
            out.u32(Status::OK.0);
            handle.write(out);
            out.u32(2).u32(flavor::SYS).u32(flavor::NONE);
        }
        Err(status) => drop(out.u32(status.0)),
    }
}

/// Writes the results of EXPORT: one folder, for all.
pub fn write_exports(path: &[u8], out: &mut Writer) {
    out.bool(true).opaque(path).bool(false).bool(false);
}

/// The bit of a record mark that says that no other fragment follows.
const LAST: u32 = 1 << 31;

/// Writes a message as a record.
///
/// # Errors
/// The stream's.
pub fn send_record(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let mark = LAST | u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&mark.to_be_bytes()[..], message].concat())
}

/// Reads a record of any number of fragments, with `most` bytes in all at most. `None`: the stream has ended.
///
/// # Errors
/// The stream's, or `InvalidData` if the record is longer, or has an empty fragment that is not the last.
pub fn receive_record(stream: &mut impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut record = Vec::new();
    loop {
        let mut mark = [0; 4];
        match stream.read_exact(&mut mark) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && record.is_empty() => {
                return Ok(None);
            }
            done => done?,
        }
        let mark = u32::from_be_bytes(mark);
        let length = (mark & !LAST) as usize;
        if length > most - record.len() || (length == 0 && mark & LAST == 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a record that is too long"));
        }
        let begin = record.len();
        record.resize(begin + length, 0);
        stream.read_exact(&mut record[begin..])?;
        if mark & LAST != 0 {
            return Ok(Some(record));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_any_fragments() {
        let mut bytes = Vec::new();
        send_record(&mut bytes, b"whole").expect("a vector takes all");
        bytes.extend([0, 0, 0, 2, b'i', b'n', 0x80, 0, 0, 1, b'2']);
        let mut stream = &bytes[..];
        assert_eq!(receive_record(&mut stream, 5).expect("a record").as_deref(), Some(&b"whole"[..]));
        assert_eq!(receive_record(&mut stream, 5).expect("a record").as_deref(), Some(&b"in2"[..]));
        assert!(receive_record(&mut stream, 5).expect("the end").is_none());
    }

    #[test]
    fn records_that_are_too_long_are_errors() {
        let refused = |bytes: &[u8]| receive_record(&mut &bytes[..], 5).expect_err("refused").kind();
        assert_eq!(refused(&[0xff; 8]), io::ErrorKind::InvalidData);
        assert_eq!(refused(&[0, 0, 0, 0, 0, 0, 0, 0]), io::ErrorKind::InvalidData);
        assert_eq!(refused(&[0x80, 0, 0, 4, 1]), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn mounted_folders_parse_to_what_was_written() {
        let handle = FileHandle::new(&[5; 32]).expect("short enough");
        for result in [Ok(&handle), Err(Status::NOENT)] {
            let mut out = Writer::new();
            write_mounted(result, &mut out);
            assert_eq!(parse_mounted(&mut Reader::new(&out.finish())), Ok(result.cloned()));
        }
    }
}
