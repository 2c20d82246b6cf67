//! Tests which trees `.ci/release` accepts as a version, in a repository made for the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::in_time::CommandInTime;
use crate::tree::root;
use tempfile::TempDir;

/// A repository at version 1.2.3.
struct Tree(TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(TempDir::new().unwrap());
        let script = tree.path().join(".ci/release");
        fs::create_dir(tree.path().join(".ci")).unwrap();
        fs::copy(root().join(".ci/release"), &script).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        tree.git(&["init", "-q"]);
        tree.write(
            "Cargo.toml",
            "[workspace.package]\nversion = \"1.2.3\"\nrepository = \"https://example.org/x\"\n\n[dependencies]\nversion = \"7\"\n",
        );
        tree.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-31\n");
        tree.write(".ci/address", "# Where\naddress=https://example.org/x/roxie\n");
        tree.commit();
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]);
        let done = git.args(arguments).current_dir(self.path()).output_in_time().expect("git");
        assert!(done.status.success(), "git {arguments:?}: {done:?}");
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "x"]);
    }

    fn check(&self, version: &str) -> Output {
        let mut script = Command::new(self.path().join(".ci/release"));
        script.args(["--check", version]).output_in_time().expect("bash")
    }

    #[track_caller]
    fn refuses(&self, version: &str, part: &str) {
        let done = self.check(version);
        let message = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{version}: {message}");
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

#[test]
fn tree_at_the_version_is_accepted() {
    let tree = Tree::new();
    let done = tree.check("1.2.3");
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn invalid_or_other_version_is_refused() {
    let tree = Tree::new();
    for version in ["", "1.2", "v1.2.3", "1.2.3 4"] {
        tree.refuses(version, "is no version");
    }
    tree.refuses("1.2.4", "Cargo.toml says 1.2.3");
}

#[test]
fn version_without_changelog_section_is_refused() {
    let tree = Tree::new();
    for heading in ["## Unreleased", "## 1.2.3", "## 1.2.30 - 2026-01-31", "## 1x2.3 - 2026-01-31"] {
        tree.write("CHANGELOG.md", &format!("# Changelog\n\n{heading}\n"));
        tree.commit();
        tree.refuses("1.2.3", "no section");
    }
    tree.write("CHANGELOG.md", "# Changelog\n\n## [1.2.3] - 2026-01-31\n");
    tree.commit();
    assert!(tree.check("1.2.3").status.success(), "with brackets, as others write it");
}

#[test]
fn release_without_address_is_refused() {
    let tree = Tree::new();
    for text in ["address=\n", "# address=https://example.org\n", "address=example.org\n"] {
        tree.write(".ci/address", text);
        tree.commit();
        tree.refuses("1.2.3", ".ci/address names no place");
    }
}

#[test]
fn release_without_repository_is_refused() {
    let tree = Tree::new();
    tree.write("Cargo.toml", "[workspace.package]\nversion = \"1.2.3\"\nrepository = \"\"\n");
    tree.commit();
    tree.refuses("1.2.3", "names no repository");
}

#[test]
fn dirty_or_tagged_tree_is_refused() {
    let tree = Tree::new();
    tree.write("new.rs", "");
    tree.refuses("1.2.3", "new.rs");
    tree.commit();
    tree.git(&["tag", "v1.2.3"]);
    tree.refuses("1.2.3", "the tag v1.2.3 is there already");
}
