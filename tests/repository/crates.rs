//! What the crates are published with.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Adds the folders of crates below a folder.
fn add_crates(folder: &Path, to: &mut Vec<PathBuf>) {
    if folder.join("Cargo.toml").is_file() {
        to.push(folder.to_owned());
    }
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_crates(&path, to);
        }
    }
}

/// The licences ask for their texts with each copy, and a crate is one. `cargo package` takes a file that a link names.
#[test]
fn published_crates_have_page_repository_and_licences() {
    let mut crates = vec![PathBuf::from(ROOT)];
    add_crates(&Path::new(ROOT).join("src"), &mut crates);
    let mut published = 0;
    for folder in crates {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if manifest.contains("publish = false") {
            continue;
        }
        published += 1;
        let name = folder.display();
        for key in ["description = ", "license.workspace = true", "readme", "repository.workspace = true"] {
            assert!(manifest.lines().any(|line| line.starts_with(key)), "{name}: its Cargo.toml lacks {key}");
        }
        for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = fs::read(folder.join(text)).unwrap_or_else(|error| panic!("{name}/{text}: {error}"));
            assert_eq!(own, fs::read(Path::new(ROOT).join(text)).unwrap(), "{name}/{text}");
        }
    }
    assert!(published >= 20, "{published} crates");
}
