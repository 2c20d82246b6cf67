//! Files that are updated while programs read them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// One line, without its newline.
    Line(String),
    /// Target of a symbolic link.
    Link(PathBuf),
}

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
    /// An existing line is rewritten in place, so that a descriptor that a program holds reads the new line, as with sysfs. No
    /// reader finds a file empty. A line is one write of a few nanoseconds; a concurrent read may get bytes of both lines,
    /// because in-memory file systems do not separate the two.
    ///
    /// # Errors
    ///
    /// If a file cannot be written. The next update tries again.
    pub(super) fn update(&mut self, wanted: &Entries) -> io::Result<()> {
        for (path, entry) in wanted {
            let before = self.written.get(path);
            if before == Some(entry) {
                continue;
            }
            let full = self.base.join(path);
            match (before, entry) {
                (Some(Entry::Line(before)), Entry::Line(line)) => rewrite(&full, before.len(), line)?,
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

/// Replaces a line of `before` bytes. A shorter line is followed by newlines until the file is truncated, never by the rest of
/// the old line.
fn rewrite(path: &Path, before: usize, line: &str) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let ends = (before + 1).saturating_sub(line.len()).max(1);
    let padded = format!("{line}{}", "\n".repeat(ends));
    file.write_all_at(padded.as_bytes(), 0)?;
    if before > line.len() { file.set_len(line.len() as u64 + 1) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

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
