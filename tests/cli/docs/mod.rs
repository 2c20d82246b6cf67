//! The pages for people: links lead somewhere, commands work, messages are those of the sources.
//!
//! [`page`] reads a page, [`links`] follows its links, [`commands`] knows which command lines are understood, and
//! [`shell`] runs those that can be run here: in a folder of its own, without a network, for a bounded time.

#![allow(unreachable_pub)]

mod commands;
mod links;
mod page;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::in_time::CommandInTime;
use page::Page;

/// Bytes of README.md at most: what a stranger reads before an opinion is made.
const README: usize = 7000;
/// Words of a table's cell at most: a longer one is prose, and is read as none.
const CELL: usize = 40;

/// The repository.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A file of the repository.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns every page: those named here, and all in `docs/` and beside the code.
fn pages() -> Vec<Page> {
    let mut names: Vec<String> = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "tests/README.md",
        "tests/MUTANTS.md",
        "tests/data/README.md",
        "interop/README.md",
        "interop/wrong.md",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut folders = ["docs", "src", "uverbs-shim"].map(str::to_owned).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder with pages") {
            let entry = entry.expect("an entry");
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                folders.push(name);
            } else if name.ends_with(".md") {
                names.push(name);
            }
        }
    }
    names.sort();
    names.iter().map(|name| Page::parse(name, &read(name))).collect()
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn readme_is_short() {
    let length = read("README.md").len();
    assert!(length <= README, "README.md has {length} bytes: {README} at most, the rest belongs into docs/");
}

#[test]
fn cells_of_tables_are_short() {
    let long = |page: &Page| {
        let rows = page.prose.iter().filter(|(_, text)| text.starts_with('|'));
        rows.filter(|(_, text)| text.split('|').any(|cell| cell.split_whitespace().count() > CELL))
            .map(|(line, _)| format!("{}:{line}: a cell has more than {CELL} words", page.name))
            .collect::<Vec<_>>()
    };
    none(&pages().iter().flat_map(long).collect::<Vec<_>>());
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let pages = pages();
    none(&pages.iter().flat_map(links::broken).collect::<Vec<_>>());
    let links: usize = pages.iter().map(|page| links::of(page).len()).sum();
    assert!(links > 80, "{links} links found: are they still read?");
}

#[test]
fn files_that_are_named_exist() {
    none(&pages().iter().flat_map(links::missing_files).collect::<Vec<_>>());
}

#[test]
fn pages_are_reached_from_the_readme() {
    // A folder of docs/ has an index of its own, which is a page like the others.
    let index = |page: &Page| page.name.starts_with("docs/") && page.name.ends_with("/README.md");
    let pages = pages();
    let indices = pages.iter().filter(|page| page.name == "README.md" || index(page));
    let sibling = |page: &Page, target: String| match page.name.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{target}"),
        None => target,
    };
    let linked: Vec<String> =
        indices.flat_map(|page| links::of(page).into_iter().map(|link| sibling(page, link.target))).collect();
    let lost = pages.iter().map(|page| page.name.clone()).filter(|name| name.starts_with("docs/"));
    none(&lost.filter(|name| !linked.contains(name)).collect::<Vec<_>>());
}

#[test]
fn every_block_says_whether_it_is_a_command() {
    let unsaid = |page: &Page| {
        let unknown =
            page.blocks.iter().filter(|block| !["sh", "text", "mermaid"].contains(&&*block.language));
        unknown
            .map(|block| format!("{}:{}: fence it as sh, text or mermaid", page.name, block.line))
            .collect::<Vec<_>>()
    };
    none(&pages().iter().flat_map(unsaid).collect::<Vec<_>>());
}

#[test]
fn every_command_is_understood() {
    let pages = pages();
    none(&pages.iter().flat_map(commands::wrong).collect::<Vec<_>>());
    let commands: usize = pages.iter().map(|page| page.commands().len()).sum();
    assert!(commands > 60, "{commands} commands found: are they still read?");
}

#[test]
fn commands_in_prose_are_understood() {
    none(&pages().iter().flat_map(commands::wrong_mentions).collect::<Vec<_>>());
}

#[test]
fn runnable_commands_print_what_pages_show() {
    let (mut wrong, mut ran, mut compared) = (Vec::new(), 0, 0);
    for page in pages() {
        let done = shell::run(&page);
        wrong.extend(done.wrong);
        (ran, compared) = (ran + done.ran, compared + done.compared);
    }
    none(&wrong);
    assert!(ran >= 10 && compared >= 4, "{ran} commands run, {compared} compared: are they still found?");
}

#[test]
fn systemd_units_are_accepted_and_closed() {
    let name = "systemd_units_are_accepted_and_closed";
    let analyze = |arguments: &[&str]| Command::new("systemd-analyze").args(arguments).output_in_time();
    if analyze(&["--version"]).is_err() {
        println!("SKIP {name}: systemd-analyze not installed");
        return;
    }
    let units = [
        ("roxie-metrics.service", "roxie-metrics.service", "/usr/bin/roxie metrics --listen 127.0.0.1:"),
        ("roxie-nic@.service", "roxie-nic@eth0.service", "/usr/bin/roxie nic --dev %i --port xdp"),
    ];
    for (file, instance, starts) in units {
        // The program is not installed here.
        let unit = read(format!("docs/{file}"));
        assert!(unit.contains(starts), "{file}");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(instance);
        fs::write(&path, unit.replace("/usr/bin/roxie", env!("CARGO_BIN_EXE_roxie"))).unwrap();
        let path = path.to_str().unwrap();
        let verified = analyze(&["verify", "--man=no", path]).unwrap();
        assert!(verified.status.success() && verified.stderr.is_empty(), "{verified:?}");
        // Of 10, of which 10 shuts nothing out: in tenths.
        let judged = analyze(&["security", "--offline=true", "--threshold=40", path]).unwrap();
        assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
    }
}

/// Fragments of a message between what varies.
fn fragments(message: &str) -> impl Iterator<Item = &str> {
    message
        .split('…')
        .map(|part| part.trim_matches([' ', '.', ':', ',', '(', ')']))
        .filter(|part| part.len() > 3)
}

#[test]
fn messages_in_troubleshooting_are_those_of_the_sources() {
    let sources = links::sources();
    let page = Page::parse("docs/troubleshooting.md", &read("docs/troubleshooting.md"));
    let messages: Vec<&str> =
        page.headings.iter().filter_map(|h| h.strip_prefix('`')?.strip_suffix('`')).collect();
    assert!(messages.len() >= 20, "{} messages", messages.len());
    let unknown = |message: &&&str| fragments(message).any(|part| !sources.contains(part));
    none(&messages.iter().filter(unknown).map(|m| format!("no source says: {m}")).collect::<Vec<_>>());
}

/// Three pages once said how many rows there are, and gave three numbers.
#[test]
fn counts_of_rows_stand_in_one_place() {
    let other_pages = pages().into_iter().filter(|p| !["docs/status.md", "CHANGELOG.md"].contains(&&*p.name));
    let counted = |page: &Page| {
        let counts = page.prose.iter().filter(|(_, text)| {
            let words: Vec<&str> = text.split_whitespace().collect();
            words.windows(2).any(|pair| {
                pair[0].len() > 1
                    && pair[0].chars().all(|c| c.is_ascii_digit() || c == ',')
                    && pair[1].starts_with("rows")
            })
        });
        counts.map(|(line, text)| format!("{}:{line}: {text}", page.name)).collect::<Vec<_>>()
    };
    none(&other_pages.flat_map(|page| counted(&page)).collect::<Vec<_>>());
}

mod what_is_wrong_is_seen {
    use super::*;

    fn page(text: &str) -> Page {
        Page::parse("docs/made-up.md", text)
    }

    #[test]
    fn a_link_to_nothing() {
        let broken = links::broken(&page(
            "# A\n[one](no-such.md) [two](status.md#no-such) [three](#a) [four](../README.md)\n`[five](not-a-link.md)`\n",
        ));
        assert_eq!(broken.len(), 2, "{broken:?}");
        assert!(broken[0].contains("no-such.md") && broken[1].contains("no-such"), "{broken:?}");
    }

    #[test]
    fn a_file_that_is_not_there() {
        let missing = links::missing_files(&page(
            "see `tests/simulated/transport/nobody.rs`, `tests/repository/tidy/mod.rs` and `tests/verbs`",
        ));
        assert_eq!(missing.len(), 1, "{missing:?}");
    }

    #[test]
    fn a_command_that_nobody_understands() {
        let text = |command: &str| format!("```sh\n{command}\n```\n");
        for command in [
            "roxie decode --no-such x.pcap",
            "roxie perf write bw --mtu 1500",
            "roxie no-such",
            "roxie run --cc dqcn -- ib_write_bw --anything",
            "echo x | roxie cc replya -",
            "eval \"$(roxie env --no-such)\"",
            "make no-such",
            "make soak HOURS=1",
            "cargo test --test no-such",
            "cargo test --test simulation no_such_test",
            "cargo bench --bench no-such",
            "cargo test --features no-such",
            "cargo run -p interop -- no-such",
            "cargo run -p interop -- run --no-such",
            ".ci/no-such",
            "no-such-program",
        ] {
            assert_eq!(commands::wrong(&page(&text(command))).len(), 1, "{command}");
        }
        for command in ["roxie run --cc dcqcn -- ib_write_bw --anything", "make soak MINUTES=1", ".ci/run"] {
            assert!(commands::wrong(&page(&text(command))).is_empty(), "{command}");
        }
    }

    #[test]
    fn a_command_in_prose_that_nobody_understands() {
        let text = "`make no-such`, `roxie decode --no-such FILE`, `roxie run --tos`, `roxie run`, `roxie decode …`, `make test`";
        let wrong = commands::wrong_mentions(&page(text));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    #[test]
    fn a_command_that_fails_or_prints_something_else() {
        let shown = |output: &str| {
            shell::run(&page(&format!("```sh\nroxie cc knobs\n```\n\n```text\n{output}\n```\n"))).wrong
        };
        assert!(shown("...").is_empty());
        assert!(shown("...\nrpg_gd...\n...").is_empty());
        assert!(shown("...\nno such knob\n...")[0].contains("no such knob"));
        assert!(shown("rpg_gd")[0].contains("rpg_gd"));
        let failed = shell::run(&page("```sh\nroxie decode tests/data/README.md\n```\n")).wrong;
        assert!(failed[0].contains("neither pcap nor pcapng"), "{failed:?}");
        let lost = shell::run(&page("```sh\nroxie decode nobody-made-it.pcapng\n```\n")).wrong;
        assert_eq!(lost.len(), 1, "{lost:?}");
    }

    #[test]
    fn a_message_that_no_source_has() {
        let sources = links::sources();
        assert!(fragments("UDP port … of … is taken: …").all(|part| sources.contains(part)));
        assert!(!fragments("UDP port … of … is stolen: …").all(|part| sources.contains(part)));
    }
}
