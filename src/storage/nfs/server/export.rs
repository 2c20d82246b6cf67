//! The exported folder: attributes, names and bytes of files below it, and of no file elsewhere.
//!
//! Each path is opened from the folder's descriptor, by openat2 with RESOLVE_BENEATH, without symbolic links, and
//! without leaving the file system. A file is what its handle says only while device, inode number, type and time of
//! birth are the same.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat, StatxFlags};
use rustix::io::Errno;

use super::handles::{Handles, Identity, MOST_HANDLES};
use crate::nfs3::{Attributes, Entry, FileHandle, FsStat, Kind, LONGEST_NAME, Listing, Status, Time};

/// Bytes of a path below the folder at most, as of Linux.
const LONGEST_PATH: usize = 4095;
/// Identifier of the file system, for clients.
const FILE_SYSTEM: u64 = 0x726f_7869_6500_0001;
/// Bytes of a listing that is read from the system at a time.
const LISTED: usize = 8192;

/// An exported folder.
#[derive(Debug)]
pub struct Export {
    folder: OwnedFd,
    handles: Mutex<Handles>,
}

/// An open file.
struct Opened {
    file: OwnedFd,
    stat: Stat,
}

/// Room of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of the results.
    pub(super) bytes: usize,
    /// Bytes of names, numbers and cookies.
    pub(super) names: usize,
    /// Attributes and handles belong to the entries.
    pub(super) is_plus: bool,
}

impl Export {
    /// Opens a folder.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Export> {
        Export::with_handles(path, MOST_HANDLES)
    }

    fn with_handles(path: &Path, most: usize) -> io::Result<Export> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let identity = identify(&folder, &rustix::fs::fstat(&folder)?);
        let export = Export { folder, handles: Mutex::new(Handles::new(identity, most)) };
        // A system without openat2 (before Linux 5.6, or forbidden) cannot serve.
        rustix::fs::openat2(&export.folder, ".", OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH)?;
        Ok(export)
    }

    /// Returns the handle of the folder.
    pub fn root(&self) -> FileHandle {
        let stat = rustix::fs::fstat(&self.folder);
        self.handle(b"", stat.map_or(Identity::default(), |stat| identify(&self.folder, &stat)))
    }

    /// Returns the handle of a folder below the exported one, by its path with or without a leading `/`.
    ///
    /// # Errors
    /// If there is none.
    pub fn mount(&self, path: &[u8]) -> Result<FileHandle, Status> {
        let mut handle = self.root();
        let mut attributes = self.attributes(&handle)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                return Err(Status::ACCES);
            }
            (handle, attributes) = self.lookup(&handle, name)?;
        }
        if attributes.kind == Kind::Folder { Ok(handle) } else { Err(Status::NOTDIR) }
    }

    /// Returns the attributes of a file.
    pub(super) fn attributes(&self, handle: &FileHandle) -> Result<Attributes, Status> {
        let (path, identity) = self.find(handle)?;
        Ok(attributes(&self.open_path(&path, identity, OFlags::PATH)?.stat))
    }

    /// Looks a name up in a folder.
    pub(super) fn lookup(
        &self,
        folder: &FileHandle,
        name: &[u8],
    ) -> Result<(FileHandle, Attributes), Status> {
        let (path, identity) = self.find(folder)?;
        let opened = self.open_path(&path, identity, OFlags::PATH)?;
        if attributes(&opened.stat).kind != Kind::Folder {
            return Err(Status::NOTDIR);
        }
        let path = below(&path, name)?;
        let found = self.open_any(&path, OFlags::PATH)?;
        Ok((self.handle(&path, identify(&found.file, &found.stat)), attributes(&found.stat)))
    }

    /// Reads bytes of a regular file, `count` at most. Returns them, whether they reach its end, and its attributes.
    pub(super) fn read(
        &self,
        handle: &FileHandle,
        offset: u64,
        count: usize,
    ) -> Result<(Vec<u8>, bool, Attributes), Status> {
        let (path, identity) = self.find(handle)?;
        match attributes(&self.open_path(&path, identity, OFlags::PATH)?.stat).kind {
            Kind::Regular => {}
            Kind::Folder => return Err(Status::ISDIR),
            _ => return Err(Status::INVAL),
        }
        // A pipe that has taken the file's place since must not block.
        let opened = self.open_path(&path, identity, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let mut bytes = vec![0; count];
        let mut length = 0;
        while length < count {
            let Some(at) = offset.checked_add(length as u64).filter(|at| *at <= i64::MAX as u64) else {
                break;
            };
            match rustix::io::pread(&opened.file, &mut bytes[length..], at) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(status(error)),
            }
        }
        bytes.truncate(length);
        let attributes = attributes(&rustix::fs::fstat(&opened.file).map_err(status)?);
        let is_end = offset.saturating_add(length as u64) >= attributes.size;
        Ok((bytes, is_end, attributes))
    }

    /// Returns the target of a symbolic link, which the server does not follow, and its attributes.
    pub(super) fn link(&self, handle: &FileHandle) -> Result<(Vec<u8>, Attributes), Status> {
        let (path, identity) = self.find(handle)?;
        let opened = self.open_path(&path, identity, OFlags::PATH)?;
        if attributes(&opened.stat).kind != Kind::Link {
            return Err(Status::INVAL);
        }
        let target = rustix::fs::readlinkat(&opened.file, c"", Vec::new()).map_err(status)?;
        Ok((target.into_bytes(), attributes(&opened.stat)))
    }

    /// Lists a folder from a cookie on. Returns the entries that there is room for, and the folder's attributes.
    pub(super) fn list(
        &self,
        folder: &FileHandle,
        cookie: u64,
        room: Room,
    ) -> Result<(Listing, Attributes), Status> {
        let (path, identity) = self.find(folder)?;
        let opened = self.open_path(&path, identity, OFlags::PATH)?;
        if attributes(&opened.stat).kind != Kind::Folder {
            return Err(Status::NOTDIR);
        }
        let Opened { file, stat } = self.open_path(&path, identity, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if cookie > i64::MAX as u64 {
            return Err(Status::BAD_COOKIE);
        }
        rustix::fs::seek(&file, SeekFrom::Start(cookie)).map_err(|_| Status::BAD_COOKIE)?;
        let (mut entries, mut bytes, mut names) = (Vec::new(), 0, 0);
        let mut buffer = [MaybeUninit::uninit(); LISTED];
        let mut listed = RawDir::new(&file, &mut buffer);
        let is_end = loop {
            let Some(next) = listed.next() else { break true };
            let next = next.map_err(status)?;
            let (name, cookie) = (next.file_name().to_bytes(), next.next_entry_cookie());
            let Some(entry) = self.entry(&path, &stat, (name, next.ino(), cookie), room.is_plus) else {
                continue;
            };
            let (length, name) = (entry.length(room.is_plus), entry.length(false));
            if bytes + length > room.bytes || names + name > room.names {
                if entries.is_empty() {
                    return Err(Status::TOOSMALL);
                }
                break false;
            }
            (bytes, names) = (bytes + length, names + name);
            entries.push(entry);
        };
        Ok((Listing { verifier: 0, entries, is_end }, attributes(&stat)))
    }

    /// Returns the entry of a name in a folder. `None`: the file is gone, or clients cannot have it.
    fn entry(
        &self,
        folder: &[u8],
        stat: &Stat,
        (name, id, cookie): (&[u8], u64, u64),
        is_plus: bool,
    ) -> Option<Entry> {
        let mut entry = Entry { id, name: name.to_vec(), cookie, attributes: None, handle: None };
        // Numbers of folders above the exported one are kept from clients.
        if name == b".." && folder.is_empty() {
            entry.id = stat.st_ino;
        }
        if is_plus && name != b"." && name != b".." {
            let path = below(folder, name).ok()?;
            let found = self.open_any(&path, OFlags::PATH).ok()?;
            entry.handle = Some(self.handle(&path, identify(&found.file, &found.stat)));
            entry.attributes = Some(attributes(&found.stat));
        }
        Some(entry)
    }

    /// Returns the space in the file system.
    pub(super) fn space(&self) -> Result<FsStat, Status> {
        let all = rustix::fs::fstatvfs(&self.folder).map_err(status)?;
        let bytes =
            [all.f_blocks, all.f_bfree, all.f_bavail].map(|blocks| blocks.saturating_mul(all.f_frsize));
        Ok(FsStat { bytes, files: [all.f_files, all.f_ffree, all.f_favail] })
    }

    fn handle(&self, path: &[u8], identity: Identity) -> FileHandle {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).handle(path, identity)
    }

    fn find(&self, handle: &FileHandle) -> Result<(Vec<u8>, Identity), Status> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).find(handle)
    }

    /// Opens the file of a handle. Another file at its path is `STALE`, as none is.
    fn open_path(&self, path: &[u8], expected: Identity, flags: OFlags) -> Result<Opened, Status> {
        let opened = self.open_any(path, flags).map_err(|status| match status {
            Status::NOENT | Status::NOTDIR => Status::STALE,
            other => other,
        })?;
        if identify(&opened.file, &opened.stat) == expected { Ok(opened) } else { Err(Status::STALE) }
    }

    fn open_any(&self, path: &[u8], flags: OFlags) -> Result<Opened, Status> {
        let path = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
        let within = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        // With O_PATH and O_NOFOLLOW, a symbolic link at the end opens as itself (openat2(2)).
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(&self.folder, path, flags, Mode::empty(), within).map_err(status)?;
        let stat = rustix::fs::fstat(&file).map_err(status)?;
        Ok(Opened { file, stat })
    }
}

/// Returns the path of a name in a folder.
fn below(folder: &[u8], name: &[u8]) -> Result<Vec<u8>, Status> {
    match name {
        b"" => return Err(Status::INVAL),
        b"." => return Ok(folder.to_vec()),
        // The exported folder is its own parent.
        b".." => {
            let end = folder.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            return Ok(folder[..end].to_vec());
        }
        name if name.len() > LONGEST_NAME => return Err(Status::NAMETOOLONG),
        name if name.contains(&b'/') || name.contains(&0) => return Err(Status::INVAL),
        _ => {}
    }
    let path = if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() };
    if path.len() > LONGEST_PATH { Err(Status::NAMETOOLONG) } else { Ok(path) }
}

/// Returns the identity of an open file.
fn identify(file: &OwnedFd, stat: &Stat) -> Identity {
    let about = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let birth = about.ok().filter(|about| about.stx_mask & StatxFlags::BTIME.bits() != 0);
    let birth = birth.map_or((0, 0), |about| (about.stx_btime.tv_sec, about.stx_btime.tv_nsec));
    Identity { device: stat.st_dev, inode: stat.st_ino, kind: stat.st_mode & 0o170_000, birth }
}

fn attributes(stat: &Stat) -> Attributes {
    use rustix::fs::FileType;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Link,
        FileType::BlockDevice => Kind::Block,
        FileType::CharacterDevice => Kind::Character,
        FileType::Socket => Kind::Socket,
        FileType::Fifo => Kind::Pipe,
        _ => Kind::Regular,
    };
    // Times before 1970 and after 2106 are cut: the protocol has 32 bits.
    let time = |seconds: i64, nanoseconds: u64| Time {
        seconds: seconds.clamp(0, u32::MAX.into()) as u32,
        nanoseconds: nanoseconds as u32,
    };
    Attributes {
        kind,
        mode: stat.st_mode & 0o7777,
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        user: stat.st_uid,
        group: stat.st_gid,
        size: stat.st_size.cast_unsigned(),
        used: stat.st_blocks.cast_unsigned().saturating_mul(512),
        device: (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
        file_system: FILE_SYSTEM,
        id: stat.st_ino,
        accessed: time(stat.st_atime, stat.st_atime_nsec),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// Returns the status of a system's error.
fn status(error: Errno) -> Status {
    match error {
        Errno::NOENT => Status::NOENT,
        Errno::PERM => Status::PERM,
        Errno::ACCESS => Status::ACCES,
        Errno::NOTDIR => Status::NOTDIR,
        Errno::ISDIR => Status::ISDIR,
        Errno::NAMETOOLONG => Status::NAMETOOLONG,
        Errno::STALE => Status::STALE,
        Errno::INVAL => Status::INVAL,
        // The path leaves the folder or its file system, or has a symbolic link.
        Errno::XDEV | Errno::LOOP => Status::ACCES,
        _ => Status::IO,
    }
}
