//! Runs the commands of a page that need neither a network nor root, in a folder of their own from which the repository
//! can be seen.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::docs::commands::simple;
use crate::docs::page::{Block, Page};
use crate::docs::root;

/// No command takes so long, on the slowest machine.
const LONGEST: Duration = Duration::from_secs(120);
/// The mark for omitted lines, or an omitted rest of a line.
const LEFT_OUT: &str = "...";

#[derive(Default)]
pub struct Done {
    pub wrong: Vec<String>,
    pub ran: usize,
    pub compared: usize,
}

/// The commands in their order: later ones may read what earlier ones wrote.
pub fn run(page: &Page) -> Done {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["tests", "docs", "interop", "src"] {
        symlink(root().join(name), folder.path().join(name)).expect("a link");
    }
    let mut done = Done::default();
    for (line, text) in page.commands() {
        let name = format!("{}:{line}: {text}", page.name);
        match kind(&text) {
            Kind::Elsewhere => continue,
            Kind::Reads(file) if !folder.path().join(&file).exists() => {
                // Captures of what cannot be run here are missing, others may not be.
                let captured = format!("--capture {file} ");
                let made = page.commands().iter().any(|(at, other)| *at < line && other.contains(&captured));
                if !made {
                    done.wrong.push(format!("{name}\n    nothing on the page makes {file}"));
                }
                continue;
            }
            Kind::Reads(_) | Kind::Alone => {}
        }
        done.ran += 1;
        match output(&text, folder.path()) {
            Err(why) => done.wrong.push(format!("{name}\n    {why}")),
            Ok(said) => {
                if let Some(shown) = shown(page, line) {
                    done.compared += 1;
                    done.wrong.extend(differs(&shown.lines, &said).map(|why| format!("{name}\n    {why}")));
                }
            }
        }
    }
    done
}

enum Kind {
    /// The command needs a network, root, a peer, or minutes.
    Elsewhere,
    /// The command needs this file.
    Reads(String),
    Alone,
}

fn kind(text: &str) -> Kind {
    let all = simple(text);
    let mut reads = None;
    for words in &all {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let has = |pair: [&str; 2]| words.windows(2).any(|two| two == pair);
        match &words[..] {
            ["echo", ..] | ["roxie", "cc", ..] => {}
            ["roxie", "lab", what, ..] if *what != "serve" => {}
            ["roxie", "decode", .., file] if *file != "-" => reads = Some((*file).to_owned()),
            ["roxie", "perf" | "pingpong" | "nvme", ..] if has(["--port", "memory"]) => {}
            ["roxie", "demo", "congestion", ..] if words.contains(&"--no-programs") => {}
            _ => return Kind::Elsewhere,
        }
    }
    reads.map_or(Kind::Alone, Kind::Reads)
}

/// The block of text right behind the block that is this one command.
fn shown(page: &Page, line: usize) -> Option<&Block> {
    let at = page.blocks.iter().position(|block| block.line + 1 == line && block.lines.len() == 1)?;
    page.blocks.get(at + 1).filter(|next| next.follows && next.language == "text")
}

fn output(text: &str, folder: &Path) -> Result<String, String> {
    crate::products::build();
    let program = Path::new(env!("CARGO_BIN_EXE_roxie")).parent().expect("a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(program.to_owned()).chain(std::env::split_paths(&path)));
    // Into files: a pipe would have to be emptied while the deadline is watched.
    let (stdout, complained) = (folder.join(".said"), folder.join(".complained"));
    let to = |name: &Path| Stdio::from(File::create(name).expect("a file"));
    let mut command = Command::new("sh");
    command.args(["-c", text]).current_dir(folder).env("PATH", path.expect("a path")).env("COLUMNS", "120");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(to(&stdout))
        .stderr(to(&complained))
        .spawn()
        .map_err(|e| e.to_string())?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if began.elapsed() > LONGEST => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it runs for more than {} s", LONGEST.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let read = |name: &Path| std::fs::read_to_string(name).unwrap_or_default();
    if status.success() {
        return Ok(read(&stdout));
    }
    Err(format!("{status}: {}", read(&complained).trim()))
}

/// Returns the lines of the page that the command did not print. A line of `...` stands for any number of lines, `...`
/// at a line's end for its rest.
fn differs(shown: &[String], stdout: &str) -> Option<String> {
    let stdout: Vec<&str> = stdout.lines().map(str::trim_end).collect();
    let mut at = 0;
    let mut free = false;
    for line in shown.iter().map(|line| line.trim_end()) {
        if line == LEFT_OUT {
            free = true;
            continue;
        }
        let same = |candidate: &&str| match line.strip_suffix(LEFT_OUT) {
            Some(start) => candidate.starts_with(start),
            None => *candidate == line,
        };
        let rest = &stdout[at..];
        let matching =
            if free { rest.iter().position(same) } else { rest.first().filter(|c| same(c)).map(|_| 0) };
        let Some(skipped) = matching else {
            return Some(format!(
                "the page shows: {line}\n    it prints:      {}",
                rest.first().unwrap_or(&"nothing")
            ));
        };
        at += skipped + 1;
        free = false;
    }
    (!free && at < stdout.len()).then(|| format!("it prints more than the page shows: {}", stdout[at]))
}
