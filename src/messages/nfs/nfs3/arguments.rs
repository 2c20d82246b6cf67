//! Arguments of calls.

use super::{FileHandle, LONGEST_NAME, procedure};
use crate::nfs::xdr::{Malformed, Reader, Writer};

/// How durable written data must be before the server replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stable {
    /// Not at all: a COMMIT follows.
    Unstable = 0,
    /// The data.
    Data = 1,
    /// The data and the file's attributes.
    File = 2,
}

impl Stable {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Stable, Malformed> {
        Ok(match reader.u32()? {
            0 => Stable::Unstable,
            1 => Stable::Data,
            2 => Stable::File,
            _ => return Err(reader.wrong("unknown durability")),
        })
    }
}

/// Arguments of a call, up to the data of a WRITE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments<'a> {
    /// NULL.
    Null,
    /// GETATTR.
    GetAttr {
        /// The file.
        file: FileHandle,
    },
    /// LOOKUP.
    Lookup {
        /// The folder.
        folder: FileHandle,
        /// The name in it.
        name: &'a [u8],
    },
    /// ACCESS.
    Access {
        /// The file.
        file: FileHandle,
        /// Kinds of access, of [`super::procedure::ACCESS`].
        access: u32,
    },
    /// READLINK.
    ReadLink {
        /// The link.
        file: FileHandle,
    },
    /// READ.
    Read {
        /// The file.
        file: FileHandle,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        count: u32,
    },
    /// WRITE. The data follows: in the message, or in a read chunk.
    Write {
        /// The file.
        file: FileHandle,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        count: u32,
        /// How durable the data must be.
        stable: Stable,
    },
    /// CREATE.
    Create {
        /// The folder.
        folder: FileHandle,
        /// The name in it.
        name: &'a [u8],
        /// How the file is made; `None`: exclusively, with a verifier that is not kept here.
        change: Option<Change>,
    },
    /// READDIR.
    ReadDir {
        /// The folder.
        folder: FileHandle,
        /// Where to continue; 0: at the begin.
        cookie: u64,
        /// Verifier of the cookie.
        verifier: u64,
        /// Bytes of the results at most.
        count: u32,
    },
    /// READDIRPLUS.
    ReadDirPlus {
        /// The folder.
        folder: FileHandle,
        /// Where to continue; 0: at the begin.
        cookie: u64,
        /// Verifier of the cookie.
        verifier: u64,
        /// Bytes of names at most.
        names: u32,
        /// Bytes of the results at most.
        count: u32,
    },
    /// FSSTAT.
    FsStat {
        /// The root.
        file: FileHandle,
    },
    /// FSINFO.
    FsInfo {
        /// The root.
        file: FileHandle,
    },
    /// PATHCONF.
    PathConf {
        /// Any file.
        file: FileHandle,
    },
    /// COMMIT.
    Commit {
        /// The file.
        file: FileHandle,
        /// First byte.
        offset: u64,
        /// Number of bytes; 0: all.
        count: u32,
    },
    /// A procedure that changes files, without its arguments.
    Changing(u32),
}

/// How CREATE makes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Fail if the name exists.
    pub is_guarded: bool,
    /// Permission bits of a new file.
    pub mode: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
}

impl Change {
    fn parse(reader: &mut Reader<'_>) -> Result<Option<Change>, Malformed> {
        let is_guarded = match reader.u32()? {
            0 => false,
            1 => true,
            2 => return reader.u64().map(|_| None),
            _ => return Err(reader.wrong("unknown way to make a file")),
        };
        let mode = if reader.bool()? { Some(reader.u32()?) } else { None };
        for _owner in 0..2 {
            if reader.bool()? {
                reader.u32()?;
            }
        }
        let size = if reader.bool()? { Some(reader.u64()?) } else { None };
        for _time in 0..2 {
            match reader.u32()? {
                0 | 1 => {}
                2 => drop(reader.u64()?),
                _ => return Err(reader.wrong("unknown way to set a time")),
            }
        }
        Ok(Some(Change { is_guarded, mode, size }))
    }

    fn write(self, out: &mut Writer) {
        out.u32(u32::from(self.is_guarded));
        out.bool(self.mode.is_some());
        if let Some(mode) = self.mode {
            out.u32(mode);
        }
        out.bool(false).bool(false).bool(self.size.is_some());
        if let Some(size) = self.size {
            out.u64(size);
        }
        out.u32(0).u32(0);
    }
}

impl<'a> Arguments<'a> {
    /// Reads the arguments of a procedure. `None`: there is no such procedure.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn parse(number: u32, reader: &mut Reader<'a>) -> Result<Option<Arguments<'a>>, Malformed> {
        let handle = FileHandle::parse;
        Ok(Some(match number {
            procedure::NULL => Arguments::Null,
            procedure::GETATTR => Arguments::GetAttr { file: handle(reader)? },
            procedure::LOOKUP => Arguments::Lookup { folder: handle(reader)?, name: name(reader)? },
            procedure::ACCESS => Arguments::Access { file: handle(reader)?, access: reader.u32()? },
            procedure::READLINK => Arguments::ReadLink { file: handle(reader)? },
            procedure::READ => {
                Arguments::Read { file: handle(reader)?, offset: reader.u64()?, count: reader.u32()? }
            }
            procedure::WRITE => Arguments::Write {
                file: handle(reader)?,
                offset: reader.u64()?,
                count: reader.u32()?,
                stable: Stable::parse(reader)?,
            },
            procedure::CREATE => Arguments::Create {
                folder: handle(reader)?,
                name: name(reader)?,
                change: Change::parse(reader)?,
            },
            procedure::READDIR => Arguments::ReadDir {
                folder: handle(reader)?,
                cookie: reader.u64()?,
                verifier: reader.u64()?,
                count: reader.u32()?,
            },
            procedure::READDIRPLUS => Arguments::ReadDirPlus {
                folder: handle(reader)?,
                cookie: reader.u64()?,
                verifier: reader.u64()?,
                names: reader.u32()?,
                count: reader.u32()?,
            },
            procedure::FSSTAT => Arguments::FsStat { file: handle(reader)? },
            procedure::FSINFO => Arguments::FsInfo { file: handle(reader)? },
            procedure::PATHCONF => Arguments::PathConf { file: handle(reader)? },
            procedure::COMMIT => {
                Arguments::Commit { file: handle(reader)?, offset: reader.u64()?, count: reader.u32()? }
            }
            other if procedure::name(other).is_some() => Arguments::Changing(other),
            _ => return Ok(None),
        }))
    }

    /// The procedure number.
    pub fn procedure(&self) -> u32 {
        match self {
            Arguments::Null => procedure::NULL,
            Arguments::GetAttr { .. } => procedure::GETATTR,
            Arguments::Lookup { .. } => procedure::LOOKUP,
            Arguments::Access { .. } => procedure::ACCESS,
            Arguments::ReadLink { .. } => procedure::READLINK,
            Arguments::Read { .. } => procedure::READ,
            Arguments::Write { .. } => procedure::WRITE,
            Arguments::Create { .. } => procedure::CREATE,
            Arguments::ReadDir { .. } => procedure::READDIR,
            Arguments::ReadDirPlus { .. } => procedure::READDIRPLUS,
            Arguments::FsStat { .. } => procedure::FSSTAT,
            Arguments::FsInfo { .. } => procedure::FSINFO,
            Arguments::PathConf { .. } => procedure::PATHCONF,
            Arguments::Commit { .. } => procedure::COMMIT,
            Arguments::Changing(number) => *number,
        }
    }

    /// Writes the arguments. Behind those of WRITE goes the length of the data, and the data or a read chunk with it.
    pub fn write(&self, out: &mut Writer) {
        match self {
            Arguments::Null | Arguments::Changing(_) => return,
            Arguments::GetAttr { file: handle }
            | Arguments::Access { file: handle, .. }
            | Arguments::ReadLink { file: handle }
            | Arguments::Read { file: handle, .. }
            | Arguments::Write { file: handle, .. }
            | Arguments::FsStat { file: handle }
            | Arguments::FsInfo { file: handle }
            | Arguments::PathConf { file: handle }
            | Arguments::Commit { file: handle, .. }
            | Arguments::Lookup { folder: handle, .. }
            | Arguments::Create { folder: handle, .. }
            | Arguments::ReadDir { folder: handle, .. }
            | Arguments::ReadDirPlus { folder: handle, .. } => handle.write(out),
        }
        match *self {
            Arguments::Lookup { name, .. } => drop(out.opaque(name)),
            Arguments::Access { access, .. } => drop(out.u32(access)),
            Arguments::Read { offset, count, .. } | Arguments::Commit { offset, count, .. } => {
                out.u64(offset).u32(count);
            }
            Arguments::Write { offset, count, stable, .. } => {
                out.u64(offset).u32(count).u32(stable as u32);
            }
            Arguments::Create { name, change, .. } => {
                out.opaque(name);
                match change {
                    Some(change) => change.write(out),
                    None => drop(out.u32(2).u64(0)),
                }
            }
            Arguments::ReadDir { cookie, verifier, count, .. } => {
                out.u64(cookie).u64(verifier).u32(count);
            }
            Arguments::ReadDirPlus { cookie, verifier, names, count, .. } => {
                out.u64(cookie).u64(verifier).u32(names).u32(count);
            }
            _ => {}
        }
    }
}

fn name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    // A longer name is answered with a status, so that it is read.
    reader.opaque(16 * LONGEST_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_parse_to_what_was_written() {
        let file = FileHandle::new(&[7; 17]).expect("short enough");
        let folder = file.clone();
        let change = Some(Change { is_guarded: true, mode: Some(0o644), size: Some(0) });
        let cases = [
            Arguments::Null,
            Arguments::GetAttr { file: file.clone() },
            Arguments::Lookup { folder: folder.clone(), name: b"name" },
            Arguments::Access { file: file.clone(), access: 0x3f },
            Arguments::ReadLink { file: file.clone() },
            Arguments::Read { file: file.clone(), offset: 1 << 40, count: 65536 },
            Arguments::Write { file: file.clone(), offset: 3, count: 5, stable: Stable::Data },
            Arguments::Create { folder: folder.clone(), name: b"new", change },
            Arguments::Create { folder: folder.clone(), name: b"new", change: None },
            Arguments::ReadDir { folder: folder.clone(), cookie: 9, verifier: 8, count: 4096 },
            Arguments::ReadDirPlus { folder, cookie: 9, verifier: 8, names: 512, count: 4096 },
            Arguments::FsStat { file: file.clone() },
            Arguments::FsInfo { file: file.clone() },
            Arguments::PathConf { file: file.clone() },
            Arguments::Commit { file, offset: 0, count: 0 },
            Arguments::Changing(procedure::RENAME),
        ];
        for arguments in cases {
            let mut out = Writer::new();
            arguments.write(&mut out);
            let bytes = out.finish();
            let mut reader = Reader::new(&bytes);
            let parsed = Arguments::parse(arguments.procedure(), &mut reader);
            assert_eq!((parsed, reader.rest().len()), (Ok(Some(arguments)), 0));
        }
        assert_eq!(Arguments::parse(22, &mut Reader::new(&[])), Ok(None));
    }

    #[test]
    fn handles_are_64_bytes_at_most() {
        assert!(FileHandle::new(&[0; 64]).is_some() && FileHandle::new(&[0; 65]).is_none());
        let mut out = Writer::new();
        out.opaque(&[0; 65]);
        assert!(Arguments::parse(procedure::GETATTR, &mut Reader::new(&out.finish())).is_err());
    }
}
