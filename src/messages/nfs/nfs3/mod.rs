//! NFS version 3 (RFC 1813): procedures, handles, statuses, attributes, arguments and results.

mod arguments;
mod attributes;
mod results;
mod status;

pub use arguments::{Arguments, Change, Stable};
pub use attributes::{Attributes, Kind, Time};
pub use results::{
    Committed, EMPTY_LISTING, Entry, FsInfo, FsStat, Listing, PathConf, ReadHead, Written, created, failed,
    file, found, fs_info, listed, read_head, write_listing,
};
pub use status::Status;

use crate::nfs::xdr::{Malformed, Reader, Writer};

/// The program and its version.
pub const PROGRAM: (u32, u32) = (100_003, 3);
/// Bytes of a file handle at most.
pub const LONGEST_HANDLE: usize = 64;
/// Bytes of a name in a folder at most: the longest that Linux has.
pub const LONGEST_NAME: usize = 255;
/// Bytes of a symbolic link at most.
pub const LONGEST_PATH: usize = 4096;

/// A file, as the server names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle(Vec<u8>);

impl FileHandle {
    /// Returns a handle of these bytes. `None`: there are more than 64.
    pub fn new(bytes: &[u8]) -> Option<FileHandle> {
        (bytes.len() <= LONGEST_HANDLE).then(|| FileHandle(bytes.to_vec()))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<FileHandle, Malformed> {
        Ok(FileHandle(reader.opaque(LONGEST_HANDLE)?.to_vec()))
    }

    /// Writes the handle.
    pub fn write(&self, out: &mut Writer) {
        out.opaque(&self.0);
    }
}

/// Procedure numbers.
pub mod procedure {
    /// Nothing.
    pub const NULL: u32 = 0;
    /// Attributes of a file.
    pub const GETATTR: u32 = 1;
    /// Changes attributes.
    pub const SETATTR: u32 = 2;
    /// Looks a name up in a folder.
    pub const LOOKUP: u32 = 3;
    /// Kinds of access that a user has.
    pub const ACCESS: u32 = 4;
    /// The target of a symbolic link.
    pub const READLINK: u32 = 5;
    /// Bytes of a file.
    pub const READ: u32 = 6;
    /// Overwrites bytes of a file.
    pub const WRITE: u32 = 7;
    /// Makes a file.
    pub const CREATE: u32 = 8;
    /// Makes a folder.
    pub const MKDIR: u32 = 9;
    /// Makes a symbolic link.
    pub const SYMLINK: u32 = 10;
    /// Makes a special file.
    pub const MKNOD: u32 = 11;
    /// Removes a file.
    pub const REMOVE: u32 = 12;
    /// Removes a folder.
    pub const RMDIR: u32 = 13;
    /// Renames a file.
    pub const RENAME: u32 = 14;
    /// Makes a hard link.
    pub const LINK: u32 = 15;
    /// Names in a folder.
    pub const READDIR: u32 = 16;
    /// Names in a folder with attributes and handles.
    pub const READDIRPLUS: u32 = 17;
    /// Space in the file system.
    pub const FSSTAT: u32 = 18;
    /// Sizes that the server prefers.
    pub const FSINFO: u32 = 19;
    /// Limits of names.
    pub const PATHCONF: u32 = 20;
    /// Makes written data durable.
    pub const COMMIT: u32 = 21;

    /// Returns the name of a procedure. `None`: there is none with this number.
    pub fn name(procedure: u32) -> Option<&'static str> {
        const NAMES: [&str; 22] = [
            "NULL",
            "GETATTR",
            "SETATTR",
            "LOOKUP",
            "ACCESS",
            "READLINK",
            "READ",
            "WRITE",
            "CREATE",
            "MKDIR",
            "SYMLINK",
            "MKNOD",
            "REMOVE",
            "RMDIR",
            "RENAME",
            "LINK",
            "READDIR",
            "READDIRPLUS",
            "FSSTAT",
            "FSINFO",
            "PATHCONF",
            "COMMIT",
        ];
        NAMES.get(procedure as usize).copied()
    }
}
