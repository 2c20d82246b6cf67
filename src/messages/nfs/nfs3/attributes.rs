//! Attributes of files (RFC 1813 2.6, fattr3).

use crate::nfs::xdr::{Malformed, Reader, Writer};

/// Type of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Regular file.
    #[default]
    Regular = 1,
    /// Folder.
    Folder = 2,
    /// Block device.
    Block = 3,
    /// Character device.
    Character = 4,
    /// Symbolic link.
    Link = 5,
    /// Socket.
    Socket = 6,
    /// Named pipe.
    Pipe = 7,
}

impl Kind {
    /// Returns the letter that `ls -l` shows.
    pub fn letter(self) -> char {
        match self {
            Kind::Regular => '-',
            Kind::Folder => 'd',
            Kind::Block => 'b',
            Kind::Character => 'c',
            Kind::Link => 'l',
            Kind::Socket => 's',
            Kind::Pipe => 'p',
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Kind, Malformed> {
        Ok(match reader.u32()? {
            1 => Kind::Regular,
            2 => Kind::Folder,
            3 => Kind::Block,
            4 => Kind::Character,
            5 => Kind::Link,
            6 => Kind::Socket,
            7 => Kind::Pipe,
            _ => return Err(reader.wrong("unknown type of a file")),
        })
    }
}

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub seconds: u32,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

impl Time {
    fn parse(reader: &mut Reader<'_>) -> Result<Time, Malformed> {
        Ok(Time { seconds: reader.u32()?, nanoseconds: reader.u32()? })
    }

    fn write(self, out: &mut Writer) {
        out.u32(self.seconds).u32(self.nanoseconds);
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// User number of the owner.
    pub user: u32,
    /// Group number of the owner.
    pub group: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes of the disk.
    pub used: u64,
    /// Numbers of a device.
    pub device: (u32, u32),
    /// Identifier of the file system.
    pub file_system: u64,
    /// Number of the file in its file system.
    pub id: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the contents.
    pub modified: Time,
    /// Last change of the attributes.
    pub changed: Time,
}

impl Attributes {
    /// Reads attributes.
    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Attributes, Malformed> {
        Ok(Attributes {
            kind: Kind::parse(reader)?,
            mode: reader.u32()?,
            links: reader.u32()?,
            user: reader.u32()?,
            group: reader.u32()?,
            size: reader.u64()?,
            used: reader.u64()?,
            device: (reader.u32()?, reader.u32()?),
            file_system: reader.u64()?,
            id: reader.u64()?,
            accessed: Time::parse(reader)?,
            modified: Time::parse(reader)?,
            changed: Time::parse(reader)?,
        })
    }

    /// Writes the attributes.
    pub fn write(&self, out: &mut Writer) {
        out.u32(self.kind as u32).u32(self.mode).u32(self.links).u32(self.user).u32(self.group);
        out.u64(self.size).u64(self.used).u32(self.device.0).u32(self.device.1);
        out.u64(self.file_system).u64(self.id);
        for time in [self.accessed, self.modified, self.changed] {
            time.write(out);
        }
    }

    /// Reads attributes that may be missing (post_op_attr).
    pub(crate) fn parse_optional(reader: &mut Reader<'_>) -> Result<Option<Attributes>, Malformed> {
        if reader.bool()? { Attributes::parse(reader).map(Some) } else { Ok(None) }
    }

    /// Writes attributes that may be missing.
    pub fn write_optional(attributes: Option<&Attributes>, out: &mut Writer) {
        out.bool(attributes.is_some());
        if let Some(attributes) = attributes {
            attributes.write(out);
        }
    }

    /// Reads attributes before and after a change (wcc_data). Returns those after it.
    pub(crate) fn parse_change(reader: &mut Reader<'_>) -> Result<Option<Attributes>, Malformed> {
        if reader.bool()? {
            reader.u64()?;
            Time::parse(reader)?;
            Time::parse(reader)?;
        }
        Attributes::parse_optional(reader)
    }
}
