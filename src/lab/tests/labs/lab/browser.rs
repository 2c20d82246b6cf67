//! Opens pages in a headless browser, if the system has one.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::in_time::CommandInTime;

/// Candidates, in order of preference.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A page as the browser sees it.
pub(crate) struct Seen {
    /// The document after its scripts have run.
    pub(crate) document: String,
    /// Console messages of the scripts, and errors.
    pub(crate) console: Vec<String>,
}

/// Returns the name of an installed browser.
pub(crate) fn find() -> Option<&'static str> {
    let runs = |name: &&&str| {
        let answered =
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status_in_time();
        answered.is_ok_and(|status| status.success())
    };
    NAMES.iter().find(runs).copied()
}

/// Opens a file. Kills a browser that does not end within a minute, and tries again, three times in all.
pub(crate) fn open(browser: &str, file: &Path) -> Seen {
    (0..3).find_map(|_| try_open(browser, file)).expect("a browser that ends within a minute, of three")
}

/// Exit code of `timeout` if it killed the program.
const ENDED: i32 = 124;

fn try_open(browser: &str, file: &Path) -> Option<Seen> {
    let profile = tempfile::tempdir().expect("a folder");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "60", browser])
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"])
        .args(["--virtual-time-budget=2000", "--window-size=1280,900"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .output_in_time()
        .expect("the browser runs");
    if output.status.code() == Some(ENDED) {
        return None;
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let console = log.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    Some(Seen { document: String::from_utf8_lossy(&output.stdout).into_owned(), console })
}
