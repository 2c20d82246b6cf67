//! Congestion control from a file, which may change while the device is open.
//!
//! The thread that follows the interface looks whether the file is another than it was. Text that is wrong is told once, and what was
//! before stays.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::congestion::Settings;

/// A file of the text that `--cc` takes. Lines count as if commas stood between them; what follows a `#` does not.
#[derive(Debug)]
pub struct KnobFile {
    path: PathBuf,
    /// What the file was when it was last read.
    seen: Option<Identity>,
    /// That there is none has been told.
    is_missed: bool,
}

/// Changes whenever a file is written or another put in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    modified: (i64, i64),
    length: u64,
}

impl KnobFile {
    /// One that has not been read.
    pub fn new(path: &Path) -> KnobFile {
        KnobFile { path: path.to_owned(), seen: None, is_missed: false }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says, if it has changed since the last call. An empty one is being written, and says nothing.
    ///
    /// # Errors
    /// Why it says nothing that can be, with its name; once for each change.
    pub fn read(&mut self) -> Result<Option<Settings>, String> {
        let told = |why: String| format!("{}: {why}", self.path.display());
        let identity = match fs::metadata(&self.path) {
            Ok(found) => Some(Identity {
                inode: found.ino(),
                modified: (found.mtime(), found.mtime_nsec()),
                length: found.len(),
            }),
            Err(error) if self.seen.is_none() && !self.is_missed => {
                let why = told(error.to_string());
                self.is_missed = true;
                return Err(why);
            }
            // It was there: another is about to be put in its place.
            Err(_) => None,
        };
        if identity.is_none() || identity == self.seen {
            return Ok(None);
        }
        self.seen = identity;
        let told = |why: String| format!("{}: {why}", self.path.display());
        let text = fs::read_to_string(&self.path).map_err(|error| told(error.to_string()))?;
        let parts: Vec<&str> =
            text.lines().filter_map(|line| line.split('#').next()).map(str::trim).collect();
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let settings = parts.join(",").parse::<Settings>();
        settings.map(Some).map_err(|error| told(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_when_it_has_changed_and_wrong_text_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("knobs");
        let mut file = KnobFile::new(&path);
        assert!(file.read().unwrap_err().contains("knobs: No such file"));
        assert_eq!(file.read(), Ok(None), "it is told once");

        fs::write(&path, "dcqcn # as the paper has it\npreset=paper\n\nrpg_ai_rate=40\n").unwrap();
        assert_eq!(file.read(), Ok(Some("dcqcn,preset=paper,rpg_ai_rate=40".parse().unwrap())));
        assert_eq!(file.read(), Ok(None));

        fs::write(&path, "dcqcn,rpg_ai_rat=40").unwrap();
        let why = file.read().unwrap_err();
        assert!(why.contains("knobs: ") && why.contains("rpg_ai_rate"), "{why}");
        assert_eq!(file.read(), Ok(None), "it is told once");

        // Written anew in two steps, removed, and put in its place: what cannot be read yet says nothing.
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
