//! Which commands are understood, without running them: the program is asked for help behind all its options, the
//! Makefile for its targets, cargo's folders for their tests.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::docs::page::Page;
use crate::docs::{read, root};
use crate::in_time::CommandInTime;
use crate::products;

/// Foreign programs that pages name. Their arguments are not checked.
const OTHERS: [&str; 13] = [
    "cp",
    "echo",
    "ip",
    "podman",
    "ibv_devinfo",
    "tar",
    "tcpdump",
    "editcap",
    "rdma",
    "wc",
    "parallel",
    "sbatch",
    "sed",
];

pub fn wrong(page: &Page) -> Vec<String> {
    let all = page.commands().into_iter();
    all.filter_map(|(line, text)| Some(format!("{}:{line}: {text}\n    {}", page.name, check(&text).err()?)))
        .collect()
}

/// Commands that prose mentions. A command may end in an option without its value, and `run` without a program.
pub fn wrong_mentions(page: &Page) -> Vec<String> {
    let check = |(line, code): (usize, &str)| {
        let why = check(code)
            .err()
            .filter(|why| !why.contains("a value is required") && !why.contains("write `--`"))?;
        Some(format!("{}:{line}: {code}\n    {why}", page.name))
    };
    page.mentions().into_iter().filter_map(check).collect()
}

/// The simple commands of a line, each as its words. A word in quotes is one; `$(…)` in it is a command of its own.
pub fn simple(text: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | ';' | '&') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, ' ') => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    let inner = |word: &String| {
        let inside = word.split("$(").nth(1).and_then(|rest| rest.split(')').next());
        inside.map(simple).unwrap_or_default()
    };
    let inside: Vec<_> = all.iter().flatten().flat_map(inner).collect();
    all.extend(inside);
    all.retain(|words: &Vec<String>| !words.is_empty());
    all
}

fn check(text: &str) -> Result<(), String> {
    simple(text).iter().try_for_each(|words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        understood(&words)
    })
}

fn understood(words: &[&str]) -> Result<(), String> {
    let is_setting = |word: &&&str| word.split_once('=').is_some_and(|(name, _)| is_variable(name));
    let words = &words[words.iter().take_while(is_setting).count()..];
    match words {
        [] | ["eval", ..] | ["cargo", "mutants", ..] => Ok(()),
        ["cargo", "publish", "--workspace", "--dry-run"] => Ok(()),
        ["roxie" | "target/release/roxie", rest @ ..] => roxie(rest),
        ["make", rest @ ..] => make(rest),
        ["cargo", "test", rest @ ..] => cargo_test(rest),
        ["cargo", "bench", rest @ ..] => cargo_bench(rest),
        ["cargo", "run", rest @ ..] => interop(rest),
        ["cargo", "build" | "fmt" | "clippy", rest @ ..] => packages(rest),
        ["ip", "netns", "exec", _, rest @ ..] | ["chrt", "-r", _, rest @ ..] => understood(rest),
        // As it lies in a tarball.
        [path, rest @ ..] if path.ends_with("/bin/roxie") => roxie(rest),
        [path, ..] if path.contains('/') => script(path),
        [name, ..] if OTHERS.contains(name) => Ok(()),
        [name, ..] => Err(format!(
            "`{name}` is none of the programs that pages may name: see tests/cli/docs/commands.rs"
        )),
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Options are read in order, and `--help` behind them ends that well: what it prints does not matter. `run` would take
/// an option that it does not know for the program; `env` has the same options and starts nothing.
fn roxie(words: &[&str]) -> Result<(), String> {
    if words.first() == Some(&"run") && !words.contains(&"--") {
        return Err("write `--` between roxie's options and the program".to_owned());
    }
    let mut own: Vec<&str> = words.iter().copied().take_while(|word| *word != "--").collect();
    if let Some(first) = own.first_mut().filter(|first| **first == "run") {
        *first = "env";
    }
    products::build();
    let help = Command::new(env!("CARGO_BIN_EXE_roxie")).args(own).arg("--help").output_in_time();
    let help = help.map_err(|e| format!("roxie: {e}"))?;
    if help.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&help.stderr).lines().next().unwrap_or("it fails").to_owned())
}

fn make(words: &[&str]) -> Result<(), String> {
    let makefile = read("Makefile");
    let has = |start: &str| makefile.lines().any(|line| line.starts_with(start));
    words.iter().try_for_each(|word| match word.split_once('=') {
        Some((name, _)) if has(&format!("{name} ?=")) => Ok(()),
        None if has(&format!("{word}:")) => Ok(()),
        _ => Err(format!("the Makefile has no `{word}`")),
    })
}

/// The value behind an option, each time that it is given.
fn values<'a>(words: &[&'a str], options: &[&str]) -> Vec<&'a str> {
    words.windows(2).filter(|pair| options.contains(&pair[0])).map(|pair| pair[1]).collect()
}

fn packages(words: &[&str]) -> Result<(), String> {
    let own = &words[..words.iter().position(|word| *word == "--").unwrap_or(words.len())];
    for package in values(own, &["-p", "--package"]) {
        let folders = match package.strip_prefix("roxie-") {
            Some(name) => [format!("src/{}/", name.replace('-', "/")), format!("src/storage/{name}/")],
            None if package == "roxie" => [String::new(), String::new()],
            None => [format!("{package}/"), format!("tests/{package}/")],
        };
        if !folders.iter().any(|folder| root().join(format!("{folder}Cargo.toml")).exists()) {
            return Err(format!("there is no package `{package}`"));
        }
    }
    let manifest = read("Cargo.toml");
    for feature in values(own, &["--features"]).into_iter().flat_map(|list| list.split(',')) {
        let name = feature.strip_prefix("roxie/").unwrap_or(feature);
        if !manifest.lines().any(|line| line.starts_with(&format!("{name} = ["))) {
            return Err(format!("there is no feature `{feature}`"));
        }
    }
    Ok(())
}

/// Returns the functions of a test program with the paths of their modules. `None`: there is no such program.
fn functions(package: &str, test: &str) -> Option<Vec<String>> {
    // The tests of the crates in `src` are at the root, those of products in the folder of the product.
    let folders = if package.starts_with("roxie") { ["", "src/storage", "src/lab"] } else { [package; 3] };
    let tests = folders.map(|folder| root().join(folder).join("tests").join(test));
    let folder = tests.into_iter().find(|folder| folder.exists())?;
    let mut all = Vec::new();
    walk(&folder, "", &mut all).ok()?;
    Some(all)
}

fn walk(folder: &Path, module: &str, into: &mut Vec<String>) -> io::Result<()> {
    for path in fs::read_dir(folder)?.flatten().map(|entry| entry.path()) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner =
            if ["main", "mod"].contains(&&*stem) { module.to_owned() } else { format!("{module}{stem}::") };
        if path.is_dir() {
            walk(&path, &inner, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<', '\n']).next());
            into.extend(names.map(|name| format!("{inner}{name}")));
        }
    }
    Ok(())
}

fn cargo_test(words: &[&str]) -> Result<(), String> {
    packages(words)?;
    let package = values(words, &["-p", "--package"]).first().copied().unwrap_or("");
    let tests = values(words, &["--test"]);
    let own = &words[..words.iter().position(|word| *word == "--").unwrap_or(words.len())];
    for test in &tests {
        let names = functions(package, test).ok_or_else(|| format!("there is no test `{test}`"))?;
        let behind = own.windows(2).filter(|pair| !pair[0].starts_with('-') && !pair[1].starts_with('-'));
        for filter in behind.map(|pair| pair[1]) {
            if !names.iter().any(|name| name.contains(filter)) {
                return Err(format!("`{filter}` is in no name of a test of `{test}`"));
            }
        }
    }
    Ok(())
}

fn cargo_bench(words: &[&str]) -> Result<(), String> {
    let unknown = |name: &&&str| {
        !["benches/NAME.rs", "benches/NAME/main.rs"]
            .iter()
            .any(|path| root().join(path.replace("NAME", name)).exists())
    };
    match values(words, &["--bench"]).iter().find(unknown) {
        Some(name) => Err(format!("there is no benchmark `{name}`")),
        None => Ok(()),
    }
}

/// The runner is a package of its own, which need not have been built: its options are those of its sources.
fn interop(words: &[&str]) -> Result<(), String> {
    packages(words)?;
    let Some(at) = words.iter().position(|word| *word == "--") else { return Ok(()) };
    let text = read("interop/src/main.rs");
    let mut wants_command = true;
    for word in &words[at + 1..] {
        if let Some(option) = word.strip_prefix("--") {
            let field = format!("    {}: ", option.replace('-', "_"));
            if !text.contains(&field) {
                return Err(format!("interop has no `{word}`"));
            }
        } else if std::mem::take(&mut wants_command) {
            let name: String = word.split('-').map(capital).collect();
            let variants = [format!("    {name}("), format!("    {name} {{"), format!("    {name},")];
            if !variants.iter().any(|variant| text.contains(variant)) {
                return Err(format!("interop has no command `{word}`"));
            }
        }
    }
    Ok(())
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

fn script(path: &str) -> Result<(), String> {
    match fs::metadata(root().join(path)) {
        Ok(found) if found.permissions().mode() & 0o111 != 0 => Ok(()),
        Ok(_) => Err(format!("{path} cannot be executed")),
        Err(_) => Err(format!("there is no {path}")),
    }
}
