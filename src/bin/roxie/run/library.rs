//! Where Roxie's `libibverbs.so.1` is.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::common::Failure;

const NAME: &str = "libibverbs.so.1";

/// The library.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
}

impl Library {
    /// Beside the executable, in `../lib/roxie` of it, or where `ROXIE_LIB` says (the file or its folder).
    ///
    /// # Errors
    /// If it is in none of them.
    pub(crate) fn find() -> Result<Library, Failure> {
        let here = env::current_exe().ok();
        let beside = here.as_deref().and_then(Path::parent).map(Path::to_owned);
        let named = env::var_os("ROXIE_LIB").map(PathBuf::from);
        let candidates = [
            beside.clone().map(|folder| folder.join(NAME)),
            beside.map(|folder| folder.join("../lib/roxie").join(NAME)),
            named.clone().filter(|path| path.is_file()),
            named.map(|folder| folder.join(NAME)),
        ];
        let looked: Vec<PathBuf> = candidates.into_iter().flatten().collect();
        let found = looked.iter().find(|path| path.is_file()).and_then(|path| path.canonicalize().ok());
        match found {
            Some(path) => Ok(Library { path }),
            None if here.is_none() => Err(Failure::Device(format!(
                "{NAME} of Roxie's is beside this executable, which cannot be found without /proc: `mount -t proc proc /proc`, or \
                 name the library's folder with ROXIE_LIB"
            ))),
            None => Err(Failure::Device(format!(
                "{NAME} of Roxie's is not there; looked at {}. `make build` makes it, or `cargo build --release -p uverbs-shim && \
                 uverbs-shim/link target/release`; ROXIE_LIB names another place",
                looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// What makes programs load it: by its path, and, for plug-ins that are opened by name, by its folder.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let before = |first: OsString, name: &str| {
            let mut all = first;
            if let Some(rest) = env::var_os(name).filter(|rest| !rest.is_empty()) {
                all.push(":");
                all.push(rest);
            }
            all
        };
        let folder = self.path.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
        vec![
            ("LD_PRELOAD", before(self.path.clone().into(), "LD_PRELOAD")),
            ("LD_LIBRARY_PATH", before(folder, "LD_LIBRARY_PATH")),
        ]
    }
}
