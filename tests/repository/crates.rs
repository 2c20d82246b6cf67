//! What the crates are published with.

use std::fs;

use crate::tree::{files_below, root};

/// The licences ask for their texts with each copy, and a crate is one. `cargo package` takes a file that a link names.
#[test]
fn published_crates_have_page_repository_and_licences() {
    let mut manifests = files_below(&root().join("src"), |path| path.ends_with("Cargo.toml"));
    manifests.push(root().join("Cargo.toml"));
    let mut published = 0;
    for path in manifests {
        let (manifest, folder) = (fs::read_to_string(&path).unwrap(), path.parent().unwrap());
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
            assert_eq!(own, fs::read(root().join(text)).unwrap(), "{name}/{text}");
        }
    }
    assert!(published >= 20, "{published} crates");
}

/// AF_XDP takes clang and the headers of libbpf to build. A feature has it, tests may have it.
#[test]
fn programs_build_without_clang() {
    let mut programs = 0;
    for path in files_below(&root().join("src"), |path| path.ends_with("Cargo.toml")) {
        let manifest = fs::read_to_string(&path).unwrap();
        let dependencies = manifest.split("\n[").find(|part| part.starts_with("dependencies]\n"));
        let Some(dependencies) = dependencies.filter(|_| manifest.contains("[[bin]]")) else { continue };
        programs += 1;
        assert!(!dependencies.contains("\"xdp\""), "{}: not without clang", path.display());
    }
    assert_eq!(programs, 4);
}
