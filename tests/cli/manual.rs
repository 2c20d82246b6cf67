//! `roxie completions` and `roxie man` include every command, and shells and `man` accept them.

use std::fs;
use std::process::{Command, Stdio};

use crate::in_time::CommandInTime;
use crate::{products, run};

const COMMANDS: [&str; 15] = [
    "capture", "cc", "decode", "demo", "disable", "doctor", "enable", "env", "extcap", "nfs", "nvme", "perf",
    "pingpong", "run", "show",
];

/// True if the program accepts its input. A missing program skips the check with a message.
fn takes(test: &str, program: &str, arguments: &[&str]) -> bool {
    let tried = Command::new(program).args(arguments).stdin(Stdio::null()).output_in_time();
    match tried {
        Ok(output) => {
            assert!(output.stderr.is_empty(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            output.status.success()
        }
        Err(_) => {
            println!("SKIP {test}: there is no {program}");
            true
        }
    }
}

#[test]
fn completions_cover_every_command() {
    products::build();
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&format!("completions {shell}")).succeeded().stdout;
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        for option in ["gid-index", "block-size"] {
            assert!(script.contains(option), "{shell}: options of commands, of products too");
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), run("completions bash").stdout).unwrap();
    // `compgen -F` needs an interactive line: call the function as the shell does.
    let script = ". $0; COMP_WORDS=(roxie deco); COMP_CWORD=1; _roxie roxie deco roxie; echo ${COMPREPLY[*]}";
    let completed =
        Command::new("bash").args(["-c", script]).arg(file.path()).output_in_time().expect("bash");
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "decode", "{completed:?}");
    run("completions tcsh").failed(2, &["tcsh", "bash"]);
}

#[test]
fn every_command_has_a_manual_page() {
    products::build();
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    run(&format!("man {}", pages.display())).succeeded();
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(page("roxie.1").contains(".TH roxie 1") && page("roxie.1").contains("roxie\\-decode(1)"));
    for command in COMMANDS {
        let name = format!("roxie-{command}.1");
        assert!(page(&name).contains("SYNOPSIS"), "{name}");
        let path = pages.join(&name);
        assert!(
            takes("the_manual", "man", &["--warnings", "-l", "-Tutf8", path.to_str().unwrap()]),
            "{name}"
        );
    }
    assert!(page("roxie-doctor.1").contains("Exit codes"));
    assert!(!pages.join("roxie-man.1").exists(), "what is hidden has no page");
    run("man /proc/no-such").failed(1, &["roxie man: cannot write into /proc/no-such"]);
}
