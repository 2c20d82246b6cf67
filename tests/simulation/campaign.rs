//! Runs scripts, turns failed assertions into values, and explains failures by a short script and captures.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::script::{Rule, Script};
use crate::shrink::Shrinker;
use crate::world::{self, Outcome};

/// Maximum number of runs for shrinking.
const RUNS: u32 = 1_500;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with panics of this thread silenced, and returns these as values.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = work();
    QUIET.set(before);
    result
}

/// Runs a script; a failed check becomes an `Err` with its message.
pub fn run(script: &Script, capture: Option<&Path>) -> Result<Outcome, String> {
    judge(|| world::run(script, capture))
}

/// Runs `run`; a failed check becomes an `Err` with its message.
pub fn judge(run: impl FnOnce() -> Outcome) -> Result<Outcome, String> {
    quietly(|| catch_unwind(AssertUnwindSafe(run))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
    })
}

/// Returns the effects of the weather, as rules for single frames.
pub fn strikes(script: &Script) -> Vec<Rule> {
    let strikes = quietly(|| world::strikes_of(script));
    strikes.into_iter().map(|(frame, trouble)| Rule::Strike { frame, trouble }).collect()
}

/// Shrinks a failing script; `fails` is the criterion, and `strikes` are the effects of its weather.
pub fn shrink(script: &Script, strikes: &[Rule], mut fails: impl FnMut(&Script) -> bool) -> Script {
    Shrinker::new(RUNS, &mut fails).shrink(script, strikes)
}

/// Folder for files of failures.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation")
}

/// Shrinks a failed script, and saves it with captures. Returns a report.
pub fn explain(name: &str, script: &Script, why: &str) -> String {
    let folder = folder().join(name);
    std::fs::create_dir_all(&folder).expect("a folder for scripts and captures");
    let write = |file: &str, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).expect("a script");
        path
    };
    write("whole.txt", script.to_string());
    let short = shrink(script, &strikes(script), |script| run(script, None).is_err());
    let why_short = run(&short, Some(&folder)).err().unwrap_or_default();
    let text = format!("# {}\n{short}", why_short.replace('\n', "\n# "));
    let path = write("script.txt", text.clone());
    format!(
        "{name}: {why}\n{text}again: SCRIPT={} cargo test --features planted-bugs --test simulation given_script -- --nocapture\ncaptures: {}",
        path.display(),
        folder.display()
    )
}
