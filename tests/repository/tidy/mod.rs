//! The rules of the house that a program can check: layers, sizes, where unsafe may be.

use std::fs;
use std::path::PathBuf;

use crate::tree::{files_below, is_rust, root};

mod functions;
mod names;
mod parts;
mod words;

/// A module, and the modules of its crate that it may name with `crate::`.
type Layer = (&'static str, &'static [&'static str]);

/// The layers of crates, by folder. Between crates, cargo permits only what a manifest lists.
const LAYERS: &[(&str, &[Layer])] = &[
    (
        "src/nic/",
        &[
            ("timer", &[]),
            ("verbs", &[]),
            ("shared", &["verbs"]),
            ("congestion", &[]),
            ("profile", &[]),
            ("transport", &["verbs", "profile", "shared", "congestion"]),
            ("nic", &["timer", "verbs", "profile", "shared", "congestion", "transport"]),
            ("cm", &["timer", "verbs", "transport"]),
        ],
    ),
    ("src/port/", &[("netdev", &[])]),
    ("src/roxie/", &[("remote", &[]), ("host", &["remote"])]),
];

/// Where `unsafe` may be, and why.
const UNSAFE: &[&str] = &[
    "src/base/allocator.rs",          // the allocator of a program is unsafe by its trait
    "src/nic/shared/",                // mapped queues, registered memory
    "src/wire/icrc/fold.rs",          // a call of what is compiled for processors with an instruction
    "src/port/xdp/",                  // rings and chunks shared with the kernel
    "src/port/packet/ring.rs",        // the ring that the kernel fills
    "src/port/udp/",                  // socket options and control messages that no crate wraps
    "src/base/descriptors/",          // descriptors that come with messages, and those of a forked child
    "src/base/threads.rs",            // a system call that no crate wraps
    "src/port/netdev/tap.rs",         // an ioctl that no crate wraps
    "src/port/netdev/ethtool.rs",     // likewise
    "src/roxie/host/memory.rs",       // unsafe functions that pass their obligation on
    "src/roxie/host/owned_region.rs", // a vector in parts while it is registered
    "src/cli/run/child.rs",           // the signal mask between fork and exec
    "src/cli/run/tree.rs",            // leases of files, which no crate wraps
    "uverbs-shim/src/",
    "tests/",
    "benches/",
];

/// Lines of a file that needs no reason, and of one that has one.
const LONG_FILE: usize = 500;
const LONGEST_FILE: usize = 600;
/// Files that are longer, and why they are one.
const LONG: &[(&str, &str)] = &[
    ("interop/src/end.rs", "one trait with all verbs of a row, and what they take"),
    ("src/cli/demo/mod.rs", "what the demo says and measures, in the order in which it is read"),
    ("src/nic/cm/incoming.rs", "a function for each message, each over all states"),
    ("src/roxie/host/connections/mod.rs", "three threads that hold one lock"),
    ("src/nic/shared/work_queue.rs", "both ends of one ring: what one writes the other reads"),
    ("src/roxie/host/orphan_table.rs", "a handover: how its records are written, read and settled"),
    ("src/wire/headers.rs", "one header after the other, each a few lines"),
    ("src/wire/parse/mod.rs", "one way through a frame, from the first byte to the last"),
];
/// Types whose methods are in several files: the most files, and the most calls between these. Parts with fields of
/// their own lower them.
const CALLS: [(&str, usize, usize); 5] =
    [("Nic", 35, 60), ("Qp", 4, 30), ("Requester", 8, 54), ("Responder", 11, 39), ("Scoreboard", 3, 28)];
/// Folders in which no file leads back to itself, and the type of the methods there.
const NO_CIRCLE: [(&str, &str); 3] = [("qp", "Qp"), ("requester", "Requester"), ("responder", "Responder")];
/// Columns of a comment.
const COLUMNS: usize = 120;
/// Lines of the function that a newcomer reads first.
const LONGEST_PASS: usize = 50;

fn files() -> Vec<(String, String)> {
    let paths = files_below(&root(), is_rust);
    let relative = |p: &PathBuf| p.strip_prefix(root()).expect("below the root").display().to_string();
    paths.iter().map(|p| (relative(p), fs::read_to_string(p).expect("readable"))).collect()
}

/// The code of a line, without comment or text in quotes.
fn code(line: &str) -> String {
    let before_comment = line.split("//").next().unwrap_or("");
    before_comment.split('"').step_by(2).collect()
}

#[test]
fn modules_use_those_below() {
    let mut wrong = Vec::new();
    let files = files();
    for (folder, layers) in LAYERS {
        for (path, text) in &files {
            let Some(rest) = path.strip_prefix(folder) else { continue };
            let module = rest.split(['/', '.']).next().unwrap_or("");
            let Some((_, allowed)) = layers.iter().find(|(name, _)| *name == module) else { continue };
            // A module's own tests may use what they like.
            let body = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
            for (number, line) in body.lines().enumerate().filter(|_| !path.contains("/tests")) {
                for used in code(line).split("crate::").skip(1) {
                    let name = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
                    if name != module && !allowed.contains(&name) {
                        wrong.push(format!("{path}:{}: {module} must not use {name}", number + 1));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// One convention: a module with others below it, tests included, is the `mod.rs` of its folder.
#[test]
fn a_module_with_a_folder_stands_in_it() {
    let has_folder = |path: &String| {
        let folder = root().join(path).with_extension("");
        folder.is_dir() && !files_below(&folder, is_rust).is_empty()
    };
    let files = files().into_iter().map(|(path, _)| path);
    let modules = files
        .filter(|path| ["src/", "interop/src/", "uverbs-shim/src/"].iter().any(|at| path.starts_with(at)));
    let wrong: Vec<_> = modules.filter(has_folder).collect();
    assert!(wrong.is_empty(), "each belongs into the folder of its name, as mod.rs: {wrong:?}");
}

#[test]
fn no_file_is_too_long() {
    // A test file is a list of cases that share a stage: it may be as long as the longest of the others.
    let is_test = |path: &str| path.starts_with("tests/") || path.contains("/tests");
    let may_be = |path: &str| LONG.iter().any(|(long, _)| *long == path) || is_test(path);
    let files: Vec<_> = files().into_iter().map(|(path, text)| (text.lines().count(), path)).collect();
    let limit = |path: &str| if may_be(path) { LONGEST_FILE } else { LONG_FILE };
    let long: Vec<_> = files.iter().filter(|(lines, path)| *lines > limit(path)).collect();
    assert!(
        long.is_empty(),
        "more than {LONG_FILE} lines without a reason, or {LONGEST_FILE} with one: {long:?}"
    );
    let is_long = |path: &str| files.iter().any(|(lines, file)| file == path && *lines > LONG_FILE);
    let short: Vec<_> = LONG.iter().filter(|(path, _)| !is_long(path)).collect();
    assert!(short.is_empty(), "they need no reason any more: {short:?}");
}

#[test]
fn no_function_is_too_long() {
    let long: Vec<_> = files()
        .iter()
        .flat_map(|(path, text)| functions::functions(text).into_iter().map(move |function| (path, function)))
        .filter(|(_, function)| function.length > functions::LONGEST)
        .map(|(path, function)| {
            format!("{path}:{}: {} has {} lines", function.line, function.name, function.length)
        })
        .collect();
    assert!(long.is_empty(), "more than {} lines:\n{}", functions::LONGEST, long.join("\n"));
}

#[test]
fn long_functions_are_reported_with_their_lines() {
    let body = |lines: usize| "    work(\"}\"); // }\n".repeat(lines);
    let limit = functions::LONGEST;
    let text = format!(
        "fn shown() {{\n{}}}\ntrait Port {{\n    fn poll(&mut self, work: fn(u32) -> u32);\n    \
         fn send(&mut self, to: [u8; 6])\n    where\n        Self: Sized,\n    {{\n{}    }}\n}}\n",
        body(limit - 2),
        body(limit - 4),
    );
    let expected = [("shown", 1, limit), ("send", limit + 3, limit + 1)];
    let all = functions::functions(&text);
    let lengths: Vec<_> = all.iter().map(|of| (&*of.name, of.line, of.length)).collect();
    assert_eq!(lengths, expected);
}

#[test]
fn few_calls_lead_between_files_of_a_type() {
    let files = files();
    let sources = || files.iter().filter(|(path, _)| path.starts_with("src/nic/"));
    let count = |name| parts::of_type(name, sources().map(|(path, text)| (&**path, &**text)));
    let counted = CALLS.map(|(name, files, calls)| (name, count(name), files, calls));
    counted.iter().for_each(|(name, found, files, calls)| {
        println!("{name}: {found:?}, at most {files} files and {calls} calls");
    });
    let is_within =
        |found: &parts::Calls, files, calls| found.between <= calls && (2..=files).contains(&found.files);
    assert!(counted.iter().all(|(_, found, files, calls)| is_within(found, *files, *calls)), "{counted:?}");
}

/// The parts of a QP are read one after the other, and no part changes the fields of another.
#[test]
fn parts_of_a_qp_form_no_circle() {
    let files = files();
    for (folder, name) in NO_CIRCLE {
        let at = format!("src/nic/transport/{folder}/");
        let within = |path: &str| path.strip_prefix(&at).is_some_and(|rest| !rest.contains('/'));
        let those: Vec<_> =
            files.iter().filter(|(path, _)| within(path)).map(|(path, text)| (&**path, &**text)).collect();
        assert!(those.len() > 1, "{at} has {those:?}");
        let circle = parts::circle(name, &those);
        assert!(circle.is_empty(), "these lead back to themselves: {circle:?}");
    }
    let of_the_qp = files.iter().filter(|(path, _)| path.starts_with("src/nic/transport/"));
    let shared: Vec<_> = of_the_qp
        .flat_map(|(path, text)| parts::shared_fields(text).map(move |field| format!("{path}:{field}")))
        .collect();
    assert!(shared.is_empty(), "fields of a part are its own: {shared:?}");
}

#[test]
fn the_pass_fits_on_a_screen() {
    let text = fs::read_to_string(root().join("src/engine/worker.rs")).expect("the worker");
    let body = text.split("pub fn poll(&mut self").nth(1).expect("the pass");
    let lines = body.lines().take_while(|l| *l != "    }").count();
    assert!(lines < LONGEST_PASS, "Worker::poll has {lines} lines");
}

#[test]
fn unsafe_code_is_where_it_belongs() {
    let mut wrong = Vec::new();
    for (path, text) in files() {
        if UNSAFE.iter().any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let line = code(line);
            if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe") {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Where a program writes to its standard output or standard error. Text of others does not act on a terminal there:
/// elsewhere it could.
const WRITES: &[&str] = &[
    "src/report/output.rs",                  // all text of commands, made plain
    "src/cli/capture/",                      // bytes of a capture
    "src/cli/decode/",                       // packets: own words, and comments that are escaped
    "src/cli/demo/mod.rs",                   // lines, made plain, of which errors are kept
    "src/cli/manual.rs",                     // completions
    "src/cli/top/mod.rs",                    // asks whether there is a terminal
    "src/storage/commands/nfs/transfer.rs",  // bytes of a file
    "src/storage/commands/nvme/transfer.rs", // bytes of a namespace
    "src/roxie/stderr_log.rs",               // lines of the library, made plain
    "uverbs-shim/src/base/report.rs",        // likewise
];

#[test]
fn text_is_printed_in_few_places() {
    const WAYS: [&str; 4] = ["stdout()", "stderr()", "print!(", "println!("];
    let mut wrong = Vec::new();
    for (path, text) in files() {
        let prints = path.starts_with("src/") || path.starts_with("uverbs-shim/src/");
        if !prints || path.ends_with("build.rs") || WRITES.iter().any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        let body = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        for (number, line) in body.lines().enumerate().filter(|_| !path.contains("/tests")) {
            if WAYS.iter().any(|way| code(line).contains(way)) && !line.contains("\"SKIP ") {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "output::line and output::note make text plain:\n{}", wrong.join("\n"));
}

/// `.ci/test` counts lines that begin with `SKIP`, and names the tests. A test that announces a skip in other words
/// counts as passed.
#[test]
fn skipped_tests_say_so_in_one_way() {
    let mut wrong = Vec::new();
    for (path, text) in files()
        .iter()
        .filter(|(path, _)| path.starts_with("tests/") || path.contains("/tests/"))
        .filter(|(path, _)| path != "tests/repository/tidy/mod.rs")
    {
        for (number, line) in text.lines().enumerate() {
            let prints = ["print!(", "println!("].iter().any(|print| line.contains(print));
            let announces =
                line.split('"').nth(1).is_some_and(|said| said.to_lowercase().trim().starts_with("skip"));
            if prints && announces && !line.contains(" println!(\"SKIP ") {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "println!(\"SKIP {{test}}: {{why}}\") is what is counted:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("#[ig", "nore]")];
    let mut marked = Vec::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                marked.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(marked.is_empty(), "\n{}", marked.join("\n"));
}

#[test]
fn comments_begin_with_a_noun() {
    let files = files();
    let folders = words::by_folder(files.iter());
    for (folder, counts) in &folders {
        println!("{folder}: {counts:?}");
    }
    let wrong: Vec<_> = folders.iter().filter(|(_, counts)| counts.are_too_high()).collect();
    assert!(wrong.is_empty(), "comments that begin with a pronoun, or name people: {wrong:?}");
}

#[test]
fn comments_fit_in_their_columns() {
    let is_wide = |line: &&str| line.trim_start().starts_with("//") && line.chars().count() > COLUMNS;
    let wide: Vec<String> = files()
        .iter()
        .flat_map(|(path, text)| text.lines().filter(is_wide).map(move |line| format!("{path}: {line}")))
        .collect();
    assert!(wide.is_empty(), "comments wider than {COLUMNS} columns:\n{}", wide.join("\n"));
}

#[test]
fn test_names_have_at_most_eight_words() {
    let files = files();
    let wrong: Vec<_> = files
        .iter()
        .flat_map(|(path, text)| {
            words::long_names(text).into_iter().map(move |name| format!("{path}: {name}"))
        })
        .collect();
    assert!(wrong.is_empty(), "more than eight words, or what_: {wrong:#?}");
}

#[test]
fn words_are_counted() {
    let text = "//! It is so.\n/// Returns it: nobody asks.\n//= IBTA 9.5: This\n// Soon.\nlet a = 1; // That\n    // The same.\n//\n";
    let expected = words::Counts { comment_lines: 4, pronouns: 2, people: 1 };
    assert_eq!(words::count(text), expected);
    let names = "#[test]\nfn late_ack_after_rnr_is_ignored() {}\n#[test]\n#[cfg(unix)]\nfn a_b_c_d_e_f_g_h_i() {}\n#[test]\nfn what_is() {}\n";
    assert_eq!(words::long_names(names), ["a_b_c_d_e_f_g_h_i", "what_is"]);
}

#[test]
fn names_are_words_of_the_field() {
    let files = files();
    let (mut wrong, mut used) = (Vec::new(), vec![false; names::EXCEPTIONS.len()]);
    for folder in names::COVERED {
        let (mut of_list, mut all) = (0, 0);
        for (path, text) in files.iter().filter(|(path, _)| path.starts_with(folder)) {
            let (unwanted, count) = names::unwanted(text);
            (of_list, all) = (of_list + unwanted.len(), all + count);
            for names::Unwanted { name, word, better } in unwanted {
                let exception = names::EXCEPTIONS
                    .iter()
                    .position(|(at, except, _)| path.starts_with(at) && *except == word);
                match exception {
                    Some(index) => used[index] = true,
                    None => wrong.push(format!(
                        "{path}:{}: `{}`: instead of `{word}`: {better}",
                        name.line, name.name
                    )),
                }
            }
        }
        println!("{folder}: {of_list} of {all} names have a word of the list");
        assert!(all > 0, "{folder} has no names");
    }
    assert!(wrong.is_empty(), "names say what a thing is, or does:\n{}", wrong.join("\n"));
    let unused: Vec<_> = names::EXCEPTIONS.iter().zip(&used).filter(|(_, used)| !**used).collect();
    assert!(unused.is_empty(), "these need no exception any more: {unused:?}");
    assert!(used.len() <= names::MOST_EXCEPTIONS, "{} exceptions", used.len());
}

#[test]
fn unwanted_names_are_reported_with_their_lines() {
    // Fields and calls of others, comments, text and the names of tests are not judged.
    let text = r#"
/// Says what was told.
fn ask_again(found: usize) -> usize {
    let (mut came, Some(Packet { left, kept: bytes, .. })) = (told(), self.found) else { return 1 };
    let text: Vec<&'a str> = "let told = 1;"; // let told = 2;
    if let Some(far_end) = house::look(b'"', '\'') {}
}
#[test]
fn nothing_is_left() {}
pub struct Window { pub(super) owed_at: u64, next: Option<Left> }
enum Outcome { Kept { has_heard: bool }, Lost(u8) }
"#;
    let (unwanted, count) = names::unwanted(text);
    let result: Vec<_> =
        unwanted.iter().map(|of| (of.name.line, &*of.name.name, of.word, of.name.kind)).collect();
    use names::NameKind::{Field, Function, Local};
    let expected = [
        (3, "ask_again", "ask", Function),
        (4, "came", "came", Local),
        (4, "left", "left", Local),
        (6, "far_end", "far", Local),
        (10, "owed_at", "owed", Field),
        (11, "has_heard", "heard", Field),
    ];
    assert_eq!((result, count), (expected.to_vec(), 9));
    let sides = "let [left, right] = sides; let left_over = 1;";
    assert_eq!(names::unwanted(sides), (Vec::new(), 3), "`left` and `right` are sides");
}
