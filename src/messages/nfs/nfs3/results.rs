//! Results of calls. Each begins with a status; what a failed call says beside it has no use here.

use super::arguments::Stable;
use super::{Attributes, FileHandle, LONGEST_NAME, Status, procedure};
use crate::nfs::xdr::{Malformed, Reader, Writer};

/// Results that parse to a value or to the status of a failed call.
pub(super) type Parsed<T> = Result<Result<T, Status>, Malformed>;

/// Writes the results of a failed call of any procedure, without attributes.
pub fn failed(number: u32, status: Status) -> Vec<u8> {
    // Attributes that are missing, each of them one word.
    let missing = match number {
        procedure::NULL | procedure::GETATTR => 0,
        procedure::LOOKUP
        | procedure::ACCESS
        | procedure::READLINK
        | procedure::READ
        | procedure::READDIR
        | procedure::READDIRPLUS
        | procedure::FSSTAT
        | procedure::FSINFO
        | procedure::PATHCONF => 1,
        procedure::RENAME => 4,
        procedure::LINK => 3,
        _ => 2,
    };
    let mut out = Writer::new();
    out.u32(status.0);
    (0..missing).for_each(|_| {
        out.bool(false);
    });
    out.finish()
}

fn parsed<'a, T>(
    reader: &mut Reader<'a>,
    rest: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Parsed<T> {
    match Status(reader.u32()?) {
        Status::OK => rest(reader).map(Ok),
        status => Ok(Err(status)),
    }
}

/// Reads the results of GETATTR.
///
/// # Errors
/// If they are malformed, as for all functions below.
pub fn file(reader: &mut Reader<'_>) -> Parsed<Attributes> {
    parsed(reader, Attributes::parse)
}

/// Reads the results of LOOKUP.
pub fn found(reader: &mut Reader<'_>) -> Parsed<(FileHandle, Option<Attributes>)> {
    parsed(reader, |reader| Ok((FileHandle::parse(reader)?, Attributes::parse_optional(reader)?)))
}

/// Reads the results of CREATE. The server need not tell the handle.
pub fn created(reader: &mut Reader<'_>) -> Parsed<(Option<FileHandle>, Option<Attributes>)> {
    parsed(reader, |reader| {
        let handle = if reader.bool()? { Some(FileHandle::parse(reader)?) } else { None };
        Ok((handle, Attributes::parse_optional(reader)?))
    })
}

/// Results of READ, up to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHead {
    /// Attributes of the file.
    pub attributes: Option<Attributes>,
    /// Number of bytes.
    pub count: u32,
    /// The data reaches the end of the file.
    pub is_end: bool,
    /// Number of bytes of the data item: the same.
    pub length: u32,
}

/// Reads the results of READ up to its data.
pub fn read_head(reader: &mut Reader<'_>) -> Parsed<ReadHead> {
    parsed(reader, |reader| {
        let attributes = Attributes::parse_optional(reader)?;
        let (count, is_end, length) = (reader.u32()?, reader.bool()?, reader.u32()?);
        if count != length {
            return Err(reader.wrong("count and length of the data differ"));
        }
        Ok(ReadHead { attributes, count, is_end, length })
    })
}

impl ReadHead {
    /// Writes the results with which the data follow.
    pub fn write(&self, out: &mut Writer) {
        out.u32(Status::OK.0);
        Attributes::write_optional(self.attributes.as_ref(), out);
        out.u32(self.count).bool(self.is_end).u32(self.length);
    }
}

/// Results of WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Number of written bytes.
    pub count: u32,
    /// How durable they are.
    pub stable: Stable,
    /// Changes when the server may have lost data that was not durable.
    pub verifier: u64,
}

impl Written {
    /// Reads the results of WRITE.
    pub fn parse(reader: &mut Reader<'_>) -> Parsed<Written> {
        parsed(reader, |reader| {
            Attributes::parse_change(reader)?;
            Ok(Written { count: reader.u32()?, stable: Stable::parse(reader)?, verifier: reader.u64()? })
        })
    }
}

/// Results of COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// As that of a WRITE, unless data may be lost.
    pub verifier: u64,
}

impl Committed {
    /// Reads the results of COMMIT.
    pub fn parse(reader: &mut Reader<'_>) -> Parsed<Committed> {
        parsed(reader, |reader| {
            Attributes::parse_change(reader)?;
            Ok(Committed { verifier: reader.u64()? })
        })
    }
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the file in its file system.
    pub id: u64,
    /// Name; not all servers use UTF-8.
    pub name: Vec<u8>,
    /// Where a listing continues behind the entry.
    pub cookie: u64,
    /// Attributes, of READDIRPLUS only.
    pub attributes: Option<Attributes>,
    /// Handle, of READDIRPLUS only.
    pub handle: Option<FileHandle>,
}

impl Entry {
    /// Bytes of the entry in a listing.
    pub fn length(&self, is_plus: bool) -> usize {
        let base = 4 + 8 + 4 + self.name.len().next_multiple_of(4) + 8;
        let attributes = if self.attributes.is_some() { 84 } else { 0 };
        let handle = self.handle.as_ref().map_or(0, |handle| 4 + handle.bytes().len().next_multiple_of(4));
        base + if is_plus { 8 + attributes + handle } else { 0 }
    }

    fn write(&self, is_plus: bool, out: &mut Writer) {
        out.bool(true).u64(self.id).opaque(&self.name).u64(self.cookie);
        if is_plus {
            Attributes::write_optional(self.attributes.as_ref(), out);
            out.bool(self.handle.is_some());
            if let Some(handle) = &self.handle {
                handle.write(out);
            }
        }
    }

    fn parse(is_plus: bool, reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
        let (id, name) = (reader.u64()?, reader.opaque(16 * LONGEST_NAME)?.to_vec());
        let cookie = reader.u64()?;
        let (mut attributes, mut handle) = (None, None);
        if is_plus {
            attributes = Attributes::parse_optional(reader)?;
            handle = if reader.bool()? { Some(FileHandle::parse(reader)?) } else { None };
        }
        Ok(Entry { id, name, cookie, attributes, handle })
    }
}

/// Results of READDIR and READDIRPLUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Verifier of the cookies.
    pub verifier: u64,
    /// Entries, in the server's order.
    pub entries: Vec<Entry>,
    /// No more entries follow.
    pub is_end: bool,
}

/// Bytes of a listing without entries.
pub const EMPTY_LISTING: usize = 4 + 4 + 84 + 8 + 4 + 4;

/// Reads the results of READDIR, or of READDIRPLUS if `is_plus`.
pub fn listed(is_plus: bool, reader: &mut Reader<'_>) -> Parsed<Listing> {
    parsed(reader, |reader| {
        Attributes::parse_optional(reader)?;
        let verifier = reader.u64()?;
        let mut entries = Vec::new();
        while reader.bool()? {
            entries.push(Entry::parse(is_plus, reader)?);
        }
        Ok(Listing { verifier, entries, is_end: reader.bool()? })
    })
}

/// Writes the results of READDIR or READDIRPLUS, with the folder's attributes.
pub fn write_listing(listing: &Listing, is_plus: bool, folder: &Attributes, out: &mut Writer) {
    out.u32(Status::OK.0);
    Attributes::write_optional(Some(folder), out);
    out.u64(listing.verifier);
    listing.entries.iter().for_each(|entry| entry.write(is_plus, out));
    out.bool(false).bool(listing.is_end);
}

/// Results of FSINFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Bytes of a READ at most.
    pub read_most: u32,
    /// Bytes of a READ that the server prefers.
    pub read_preferred: u32,
    /// Bytes of a WRITE at most.
    pub write_most: u32,
    /// Bytes of a WRITE that the server prefers.
    pub write_preferred: u32,
    /// Bytes of a listing that the server prefers.
    pub listing_preferred: u32,
    /// Length of a file at most.
    pub longest_file: u64,
    /// Properties: 1 hard links, 2 symbolic links, 8 alike for all files, 16 times can be set.
    pub properties: u32,
}

/// Reads the results of FSINFO.
pub fn fs_info(reader: &mut Reader<'_>) -> Parsed<FsInfo> {
    parsed(reader, |reader| {
        Attributes::parse_optional(reader)?;
        let (read_most, read_preferred) = (reader.u32()?, reader.u32()?);
        reader.u32()?;
        let (write_most, write_preferred) = (reader.u32()?, reader.u32()?);
        reader.u32()?;
        let (listing_preferred, longest_file) = (reader.u32()?, reader.u64()?);
        reader.u64()?;
        let properties = reader.u32()?;
        Ok(FsInfo {
            read_most,
            read_preferred,
            write_most,
            write_preferred,
            listing_preferred,
            longest_file,
            properties,
        })
    })
}

impl FsInfo {
    /// Writes the results.
    pub fn write(&self, attributes: &Attributes, out: &mut Writer) {
        out.u32(Status::OK.0);
        Attributes::write_optional(Some(attributes), out);
        out.u32(self.read_most).u32(self.read_preferred).u32(1);
        out.u32(self.write_most).u32(self.write_preferred).u32(1);
        out.u32(self.listing_preferred).u64(self.longest_file);
        // The resolution of times: 1 ns.
        out.u32(0).u32(1).u32(self.properties);
    }
}

/// Results of FSSTAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Bytes of the file system: all, free, and free for users.
    pub bytes: [u64; 3],
    /// Numbers of files: all, free, and free for users.
    pub files: [u64; 3],
}

impl FsStat {
    /// Writes the results.
    pub fn write(&self, attributes: &Attributes, out: &mut Writer) {
        out.u32(Status::OK.0);
        Attributes::write_optional(Some(attributes), out);
        for value in self.bytes.into_iter().chain(self.files) {
            out.u64(value);
        }
        // How long the values hold: unknown.
        out.u32(0);
    }
}

/// Results of PATHCONF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConf {
    /// Hard links of a file at most.
    pub most_links: u32,
    /// Bytes of a name at most.
    pub longest_name: u32,
}

impl PathConf {
    /// Writes the results: longer names are refused, owners cannot be changed, case counts and is kept.
    pub fn write(&self, attributes: &Attributes, out: &mut Writer) {
        out.u32(Status::OK.0);
        Attributes::write_optional(Some(attributes), out);
        out.u32(self.most_links).u32(self.longest_name);
        out.bool(true).bool(true).bool(false).bool(true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn listings_have_the_announced_length() {
        for is_plus in [false, true] {
            let attributes = Some(Attributes { kind: Kind::Folder, size: 7, ..Attributes::default() });
            let (attributes, handle) =
                if is_plus { (attributes, FileHandle::new(b"12345")) } else { (None, None) };
            let entry = Entry { id: 3, name: b"abcde".to_vec(), cookie: 9, attributes, handle };
            let listing = Listing { verifier: 1, entries: vec![entry.clone(), entry.clone()], is_end: true };
            let mut out = Writer::new();
            write_listing(&listing, is_plus, &Attributes::default(), &mut out);
            let bytes = out.finish();
            assert_eq!(bytes.len(), EMPTY_LISTING + 2 * entry.length(is_plus));
            assert_eq!(listed(is_plus, &mut Reader::new(&bytes)), Ok(Ok(listing)));
        }
    }

    #[test]
    fn failures_of_all_procedures_parse_to_their_status() {
        let bytes = |number| failed(number, Status::STALE);
        assert_eq!(file(&mut Reader::new(&bytes(procedure::GETATTR))), Ok(Err(Status::STALE)));
        assert_eq!(bytes(procedure::WRITE).len(), 12);
        assert_eq!(bytes(procedure::RENAME).len(), 20);
        assert_eq!(Written::parse(&mut Reader::new(&bytes(procedure::WRITE))), Ok(Err(Status::STALE)));
    }

    #[test]
    fn read_head_parses_to_what_was_written() {
        let head = ReadHead { attributes: Some(Attributes::default()), count: 5, is_end: true, length: 5 };
        let mut out = Writer::new();
        head.write(&mut out);
        assert_eq!(read_head(&mut Reader::new(&out.finish())), Ok(Ok(head)));
        let mut out = Writer::new();
        ReadHead { length: 6, ..head }.write(&mut out);
        assert!(read_head(&mut Reader::new(&out.finish())).is_err());
    }

    #[test]
    fn sizes_of_servers_parse_to_what_was_written() {
        let info = FsInfo {
            read_most: 1,
            read_preferred: 2,
            write_most: 3,
            write_preferred: 4,
            listing_preferred: 5,
            longest_file: 6,
            properties: 7,
        };
        let mut out = Writer::new();
        info.write(&Attributes::default(), &mut out);
        assert_eq!(fs_info(&mut Reader::new(&out.finish())), Ok(Ok(info)));
    }
}
