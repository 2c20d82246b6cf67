//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the files below a folder for which `is_wanted` is true, by name. Hidden folders and those of builds are
/// skipped.
pub(crate) fn files_below(folder: &Path, is_wanted: fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        let is_skipped =
            entry.file_name().to_string_lossy().starts_with('.') || entry.file_name() == "target";
        if path.is_dir() && !is_skipped {
            files.extend(files_below(&path, is_wanted));
        } else if is_wanted(&path) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// True for a file of Rust.
pub(crate) fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}
