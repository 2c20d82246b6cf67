//! Runs scripts, returns an oracle's objection as a value, and explains a failure by a shrunk script and captures.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::script::{Rule, Script};
use crate::shrink::Shrinker;
use crate::world::{self, Outcome};

/// Maximum number of runs while shrinking.
const RUNS: u32 = 1_500;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What an oracle or an assertion objects to in a run.
#[derive(Clone, Debug)]
pub struct Objection {
    text: String,
    /// Source file and line of the assertion, which tell one rule from another.
    rule: String,
}

impl Objection {
    /// True if both are of one rule.
    pub fn is_like(&self, other: &Objection) -> bool {
        self.rule == other.rule
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Runs `work` without printing this thread's panics.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PLACE.set(info.location().map(ToString::to_string).unwrap_or_default());
            if !QUIET.get() {
                default_hook(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = work();
    QUIET.set(before);
    result
}

/// Runs a script. Returns the first objection, if there is one.
pub fn run(script: &Script, capture: Option<&Path>) -> Result<Outcome, Objection> {
    judge(|| world::run(script, capture))
}

/// Calls `run`, and returns the first objection, if there is one.
pub fn judge(run: impl FnOnce() -> Outcome) -> Result<Outcome, Objection> {
    quietly(|| catch_unwind(AssertUnwindSafe(run))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
        Objection { text, rule: PLACE.take() }
    })
}

/// Runs a script and returns what its weather did to each frame, as rules for single frames.
pub fn strikes(script: &Script) -> Vec<Rule> {
    let strikes = quietly(|| world::strikes_of(script));
    strikes.into_iter().map(|(frame, trouble)| Rule::Strike { frame, trouble }).collect()
}

/// Shrinks a failing script. `fails` decides whether a candidate fails, `strikes` are the rules from [`strikes`].
pub fn shrink(script: &Script, strikes: &[Rule], mut fails: impl FnMut(&Script) -> bool) -> Script {
    Shrinker::new(RUNS, &mut fails).shrink(script, strikes)
}

/// Folder for the scripts and captures of failures.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation")
}

/// Shrinks a failing script to one that fails by the same rule.
pub fn shrink_by_rule(script: &Script, why: &Objection) -> Script {
    shrink(script, &strikes(script), |script| run(script, None).is_err_and(|other| other.is_like(why)))
}

/// Shrinks a failing script, stores it with its captures, and returns a report.
pub fn explain(name: &str, script: &Script, why: &Objection) -> String {
    let folder = folder().join(name);
    std::fs::create_dir_all(&folder).expect("a folder for scripts and captures");
    let write = |file: &str, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).expect("a script");
        path
    };
    write("whole.txt", script.to_string());
    let short = shrink_by_rule(script, why);
    let why_short = run(&short, Some(&folder)).err().map_or_else(String::new, |why| why.to_string());
    let text = format!("# {}\n{short}", why_short.replace('\n', "\n# "));
    let path = write("script.txt", text.clone());
    format!(
        "{name}: {why}\n{text}again: SCRIPT={} cargo test --features planted-bugs --test simulation one_script -- --nocapture\ncaptures: {}",
        path.display(),
        folder.display()
    )
}
