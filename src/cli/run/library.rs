//! Finds Roxie's `libibverbs.so.1`.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use roxie_report::failure::Failure;

const NAME: &str = "libibverbs.so.1";

/// The verbs library.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
}

impl Library {
    /// Looks at `ROXIE_LIB` (the file or its folder), beside the executable, and in `../lib/roxie` relative to it.
    ///
    /// # Errors
    ///
    /// If the library is in none of them.
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

    /// Returns the library's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the environment that makes programs load the library: by path, and by folder for plug-ins that load it
    /// by name. Other preloads stay in front: they interpose calls of the C library, too, and some must come first.
    /// Programs that were built with a sanitizer accept a library in front of its runtime, and learn that the library's
    /// own accesses to memory are not instrumented.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        vec![
            ("LD_PRELOAD", behind(set("LD_PRELOAD"), &self.path)),
            ("LD_LIBRARY_PATH", before(folder, set("LD_LIBRARY_PATH"))),
            ("ASAN_OPTIONS", before(Path::new("verify_asan_link_order=0"), set("ASAN_OPTIONS"))),
            ("TSAN_OPTIONS", before(Path::new("ignore_noninstrumented_modules=1"), set("TSAN_OPTIONS"))),
        ]
    }
}

/// Appends an entry to a list, unless the list has it.
fn behind(list: Option<OsString>, last: &Path) -> OsString {
    let Some(mut list) = list else { return last.into() };
    let mut words = list.as_bytes().split(|byte| b": ".contains(byte));
    if !words.any(|word| word == last.as_os_str().as_bytes()) {
        list.push(":");
        list.push(last);
    }
    list
}

/// Prepends an entry to a list.
fn before(first: &Path, list: Option<OsString>) -> OsString {
    let mut all = first.as_os_str().to_owned();
    if let Some(list) = list {
        all.push(":");
        all.push(list);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_follows_other_preloads_once() {
        let ours = Path::new("/opt/libibverbs.so.1");
        let with = |list: Option<&str>| behind(list.map(OsString::from), ours).into_string().unwrap();
        assert_eq!(with(None), "/opt/libibverbs.so.1");
        assert_eq!(with(Some("a.so b.so")), "a.so b.so:/opt/libibverbs.so.1");
        assert_eq!(with(Some("/opt/libibverbs.so.1:a.so")), "/opt/libibverbs.so.1:a.so");
        assert_eq!(with(Some("/opt/libibverbs.so.1.0")), "/opt/libibverbs.so.1.0:/opt/libibverbs.so.1");
        assert_eq!(before(Path::new("/opt"), Some("/a:/b".into())), "/opt:/a:/b");
    }
}
