//! Files that are updated while programs read them.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// One line, without its newline.
    Line(String),
    /// Target of a symbolic link.
    Link(PathBuf),
}

/// How long an update waits, at most, for readers to close the files that it writes.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long it waits between two tries.
const A_MOMENT: Duration = Duration::from_micros(50);

/// Entries by path.
pub(super) type Entries = BTreeMap<String, Entry>;

/// Entries below a folder, as they were last written.
#[derive(Debug)]
pub(super) struct Tree {
    base: PathBuf,
    written: Entries,
}

impl Tree {
    /// Returns a tree below `base` that contains these entries already.
    pub(super) fn of(base: &Path, written: Entries) -> Tree {
        Tree { base: base.to_owned(), written }
    }

    /// Writes changed entries in the order of paths, then removes entries that are not in `wanted`.
    ///
    /// An existing line is rewritten in place, so that a descriptor that a program holds reads the new line, as with
    /// sysfs. A program that opens the file meanwhile waits until the line is whole. If another program keeps the file
    /// open, the line is written after 20 ms all the same: a read within the few nanoseconds of the write may then get
    /// bytes of both lines, because in-memory file systems do not separate the two.
    ///
    /// # Errors
    ///
    /// If a file cannot be written. The next update tries again.
    pub(super) fn update(&mut self, wanted: &Entries) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        for (path, entry) in wanted {
            let before = self.written.get(path);
            if before == Some(entry) {
                continue;
            }
            let full = self.base.join(path);
            match (before, entry) {
                (Some(Entry::Line(before)), Entry::Line(line)) => rewrite(&full, before.len(), line, until)?,
                (_, entry) => create(&full, entry)?,
            }
            self.written.insert(path.clone(), entry.clone());
        }
        let gone: Vec<String> =
            self.written.keys().filter(|path| !wanted.contains_key(*path)).cloned().collect();
        for path in gone {
            match fs::remove_file(self.base.join(&path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => drop(self.written.remove(&path)),
            }
        }
        Ok(())
    }
}

/// Creates an entry atomically, in place of an old one if there is any.
fn create(path: &Path, entry: &Entry) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let draft = folder.join(name);
    match entry {
        Entry::Line(line) => fs::write(&draft, format!("{line}\n"))?,
        Entry::Link(target) => symlink(target, &draft)?,
    }
    fs::rename(draft, path)
}

/// Replaces a line of `before` bytes. A shorter line is followed by newlines until the file is truncated, never by the
/// rest of the old line.
fn rewrite(path: &Path, before: usize, line: &str, until: Instant) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    while keep_others_out(&file) == Lease::Shared && Instant::now() < until {
        std::thread::sleep(A_MOMENT);
    }
    let ends = (before + 1).saturating_sub(line.len()).max(1);
    let padded = format!("{line}{}", "\n".repeat(ends));
    file.write_all_at(padded.as_bytes(), 0)?;
    if before > line.len() { file.set_len(line.len() as u64 + 1) } else { Ok(()) }
}

/// Result of asking for exclusive access to a file.
#[derive(Debug, PartialEq, Eq)]
enum Lease {
    /// A program that opens the file waits until it is closed here.
    Taken,
    /// Another has the file open.
    Shared,
    /// The file system has no leases.
    Refused,
}

/// Takes a write lease of a file (`fcntl(2)`). It ends when the file is closed.
fn keep_others_out(file: &File) -> Lease {
    /// `F_SETSIG`: the signal that tells of another that waits. Nothing listens for `SIGURG`, and it is ignored then.
    const F_SETSIG: libc::c_int = 10;
    // SAFETY: two calls about an open descriptor, without pointers.
    let taken = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
    };
    match (taken, io::Error::last_os_error().kind()) {
        (true, _) => Lease::Taken,
        (false, io::ErrorKind::WouldBlock) => Lease::Shared,
        (false, _) => Lease::Refused,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    fn entries(all: &[(&str, &str)]) -> Entries {
        all.iter().map(|(path, line)| ((*path).to_owned(), Entry::Line((*line).to_owned()))).collect()
    }

    #[test]
    fn open_descriptors_read_new_lines() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::of(folder.path(), Entries::new());
        tree.update(&entries(&[("port/state", "4: ACTIVE")])).unwrap();
        let mut open = File::open(folder.path().join("port/state")).unwrap();
        for line in ["4: ACTIVE", "1: DOWN", "4: ACTIVE", "9", "10"] {
            tree.update(&entries(&[("port/state", line)])).unwrap();
            let mut read = String::new();
            open.rewind().unwrap();
            open.read_to_string(&mut read).unwrap();
            assert_eq!(read, format!("{line}\n"));
        }
    }

    #[test]
    fn line_is_written_before_the_file_opens() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("state");
        fs::write(&path, "4: ACTIVE\n").unwrap();
        let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let reader = open().unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        assert_eq!(keep_others_out(&writer), Lease::Shared);
        drop(reader);
        assert_eq!(keep_others_out(&writer), Lease::Taken);
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(writer);
        open().unwrap();
    }

    /// Lines so long that a read often falls into a write.
    #[test]
    fn readers_never_find_bytes_of_two_lines() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("state");
        let lines = ["a", "b"].map(|letter| letter.repeat(4000));
        create(&path, &Entry::Line(lines[0].clone())).unwrap();
        let read_from = path.clone();
        let reader = std::thread::spawn(move || {
            for _ in 0..20_000 {
                let read = fs::read(&read_from).unwrap();
                assert_eq!(read.iter().position(|byte| *byte != read[0]), Some(4000));
            }
        });
        while !reader.is_finished() {
            for line in &lines {
                rewrite(&path, line.len(), line, Instant::now() + 1000 * PATIENCE).unwrap();
            }
        }
        reader.join().unwrap();
    }

    #[test]
    fn unwanted_entries_are_removed_and_no_drafts_remain() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::of(folder.path(), Entries::new());
        let mut both = entries(&[("types/0", "RoCE v2"), ("types/1", "RoCE v2")]);
        both.insert("types/link".into(), Entry::Link("0".into()));
        tree.update(&both).unwrap();
        let mut one = entries(&[("types/1", "RoCE v2")]);
        one.insert("types/link".into(), Entry::Link("1".into()));
        tree.update(&one).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path().join("types"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["1", "link"]);
        assert_eq!(fs::read_link(folder.path().join("types/link")).unwrap(), Path::new("1"));
    }

    #[test]
    fn readers_never_see_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::of(folder.path(), Entries::new());
        let lines = ["4: ACTIVE", "1: DOWN"];
        tree.update(&entries(&[("state", lines[0])])).unwrap();
        let path = folder.path().join("state");
        let reader = std::thread::spawn(move || {
            for _ in 0..2_000 {
                assert!(fs::read_to_string(&path).unwrap().len() > "1: DOWN".len());
            }
        });
        while !reader.is_finished() {
            for line in lines {
                tree.update(&entries(&[("state", line)])).unwrap();
            }
        }
        reader.join().unwrap();
    }
}
