//! Congestion control from a file, which may change while the device is open.
//!
//! The thread that follows the interface checks whether the file has changed. An invalid file is reported once, and the
//! previous settings stay.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use roxie_nic::congestion::Settings;

/// A file with the syntax of `--cc`. Line breaks count as commas, and `#` begins a comment.
#[derive(Debug)]
pub struct KnobFile {
    path: PathBuf,
    /// Identity of the file when it was last read.
    seen: Option<Identity>,
    /// True if its absence has been reported.
    is_missed: bool,
}

/// Changes whenever the file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    modified: (i64, i64),
    length: u64,
}

impl KnobFile {
    /// Makes a reader for the file at `path`.
    pub fn new(path: &Path) -> KnobFile {
        KnobFile { path: path.to_owned(), seen: None, is_missed: false }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the settings, if the file has changed since the last call. An empty file is still being written, and is
    /// ignored.
    ///
    /// # Errors
    /// Why the file is invalid, with its name; once for each change.
    pub fn read(&mut self) -> Result<Option<Settings>, String> {
        let with_path = |why: String| format!("{}: {why}", self.path.display());
        let identity = match fs::metadata(&self.path) {
            Ok(found) => Some(Identity {
                inode: found.ino(),
                modified: (found.mtime(), found.mtime_nsec()),
                length: found.len(),
            }),
            Err(error) if self.seen.is_none() && !self.is_missed => {
                let why = with_path(error.to_string());
                self.is_missed = true;
                return Err(why);
            }
            // The file existed before: it is about to be replaced.
            Err(_) => None,
        };
        if identity.is_none() || identity == self.seen {
            return Ok(None);
        }
        self.seen = identity;
        let with_path = |why: String| format!("{}: {why}", self.path.display());
        let text = fs::read_to_string(&self.path).map_err(|error| with_path(error.to_string()))?;
        let parts: Vec<&str> =
            text.lines().filter_map(|line| line.split('#').next()).map(str::trim).collect();
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let settings = parts.join(",").parse::<Settings>();
        settings.map(Some).map_err(|error| with_path(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_read_and_errors_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("knobs");
        let mut file = KnobFile::new(&path);
        assert!(file.read().unwrap_err().contains("knobs: No such file"));
        assert_eq!(file.read(), Ok(None), "the error is reported once");

        fs::write(&path, "dcqcn # as the paper has it\npreset=paper\n\nrpg_ai_rate=40\n").unwrap();
        assert_eq!(file.read(), Ok(Some("dcqcn,preset=paper,rpg_ai_rate=40".parse().unwrap())));
        assert_eq!(file.read(), Ok(None));

        fs::write(&path, "dcqcn,rpg_ai_rat=40").unwrap();
        let why = file.read().unwrap_err();
        assert!(why.contains("knobs: ") && why.contains("rpg_ai_rate"), "{why}");
        assert_eq!(file.read(), Ok(None), "the error is reported once");

        // An empty and a missing file are ignored, until the file is complete.
        fs::write(&path, "").unwrap();
        assert_eq!(file.read(), Ok(None));
        fs::remove_file(&path).unwrap();
        assert_eq!(file.read(), Ok(None));
        let other = folder.path().join("other");
        fs::write(&other, "fixed,rate=20M").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(file.read(), Ok(Some("fixed,rate=20M".parse().unwrap())));
    }
}
