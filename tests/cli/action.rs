//! Tests `action.yml` and its script, in network and mount namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::in_time::CommandInTime;
use tempfile::TempDir;

pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the lines indented below the line with this key.
fn below<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip_while(|line| line.trim() != key);
    let first = lines.next().unwrap_or_else(|| panic!("action.yml has no `{key}`"));
    lines.take_while(|line| line.trim().is_empty() || depth(line) > depth(first)).collect()
}

/// Returns the keys of the outermost level.
fn keys(lines: &[&str]) -> BTreeSet<String> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let least = lines.iter().map(|line| depth(line)).min().unwrap_or(0);
    let own = lines.iter().filter(|line| depth(line) == least);
    own.filter_map(|line| line.trim().split_once(':').map(|(key, _)| key.to_owned())).collect()
}

/// Returns the names between `${{ begin` and ` }}`.
fn named(text: &str, begin: &str) -> BTreeSet<String> {
    let parts = text.split("${{ ").skip(1).filter_map(|part| part.split_once(" }}"));
    parts.filter_map(|(inner, _)| inner.strip_prefix(begin)).map(str::to_owned).collect()
}

#[test]
fn action_passes_all_inputs_and_outputs() {
    let text = fs::read_to_string(root().join("action.yml")).expect("action.yml");
    let script = fs::read_to_string(root().join(".ci/action")).expect(".ci/action");
    assert!(!text.contains('\t'), "YAML has no tabs");
    assert_eq!(
        keys(&text.lines().collect::<Vec<_>>()),
        ["description", "inputs", "name", "outputs", "runs"].map(str::to_owned).into()
    );
    let inputs = below(&text, "inputs:");
    assert_eq!(keys(&inputs), named(&text, "inputs."), "declared and used");
    let of_each = inputs.iter().filter(|line| line.trim().starts_with("description: ")).count();
    assert_eq!(of_each, keys(&inputs).len(), "each is described");
    let passed = keys(&below(&text, "env:"));
    assert_eq!(passed.len(), keys(&inputs).len());
    for variable in &passed {
        assert!(
            script.contains(&format!("${{{variable}")) || script.contains(&format!(" {variable} ")),
            "{variable} is not read"
        );
    }
    for output in named(&text, "steps.roxie.outputs.") {
        assert!(
            script.contains(&format!("{output}=%s\\n")) || script.contains(&format!("'{output}=")),
            "{output}"
        );
    }
    assert!(below(&text, "runs:").iter().any(|line| line.trim() == "using: composite"), "no Node");
    let commands = text.lines().filter(|line| line.contains("run: ")).count();
    assert_eq!(
        commands,
        text.lines().filter(|line| line.trim() == "shell: bash").count(),
        "a composite step names its shell"
    );
}

/// A real YAML parser accepts the file, not only this test's.
#[test]
fn action_yml_is_yaml() {
    let parse = "import yaml, sys; all = yaml.safe_load(open(sys.argv[1])); assert all['runs']['steps'][0]['run'], all";
    let reads = Command::new("python3").args(["-c", "import yaml"]).output_in_time();
    if !reads.is_ok_and(|done| done.status.success()) {
        println!("SKIP action_yml_is_yaml: python3 has no yaml (python3-yaml)");
        return;
    }
    let done = Command::new("python3")
        .args(["-c", parse])
        .arg(root().join("action.yml"))
        .output_in_time()
        .expect("python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A job's folder, with a tarball of the test build.
pub(crate) struct Job(TempDir);

impl Job {
    /// `None`, with a message, if a requirement is missing.
    pub(crate) fn new(test: &str) -> Option<Job> {
        let roxie = Path::new(env!("CARGO_BIN_EXE_roxie"));
        let library = roxie.with_file_name("libibverbs.so.1");
        // SAFETY: no arguments, no memory.
        let is_root = unsafe { libc::geteuid() } == 0;
        if !is_root || !library.exists() {
            let why = if is_root { "no library: uverbs-shim/link target/debug" } else { "needs root" };
            println!("SKIP {test}: {why}");
            return None;
        }
        let job = Job(TempDir::new().expect("a folder"));
        let tree = job.path("roxie-x");
        fs::create_dir_all(tree.join("bin")).expect("a folder");
        fs::create_dir_all(tree.join("lib/roxie")).expect("a folder");
        symlink(roxie, tree.join("bin/roxie")).expect("a link");
        symlink(library, tree.join("lib/roxie/libibverbs.so.1")).expect("a link");
        let tar = Command::new("tar")
            .args(["-ch", "--use-compress-program=gzip -1", "-f", "roxie.tar.gz", "roxie-x"])
            .current_dir(job.0.path())
            .status_in_time();
        assert!(tar.expect("tar").success());
        Some(job)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs the script, then `after`, in a network namespace with one address and its own /run/netns.
    fn run(&self, settings: &[(&str, &str)], after: &str) -> Output {
        self.run_of(&root(), settings, after)
    }

    /// As [`Self::run`], with the script of another tree.
    fn run_of(&self, tree: &Path, settings: &[(&str, &str)], after: &str) -> Output {
        let text = format!(
            "mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns
             ip link add job0 type veth peer name job1; ip link set job1 addrgenmode none up; ip addr add 198.51.100.1/24 dev job0; ip link set job0 up; ip link set lo up
             {}/.ci/action && {{ {after}
             }}",
            tree.display()
        );
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "--propagation", "private", "bash", "-euc", &text])
            .current_dir(self.0.path());
        for (name, file) in [("GITHUB_PATH", "path"), ("GITHUB_ENV", "env"), ("GITHUB_OUTPUT", "output")] {
            command.env(name, self.path(file));
        }
        command.env("ROXIE_PREFIX", self.path("prefix")).env("ROXIE_PACKAGE", "roxie.tar.gz");
        command.env_remove("LD_PRELOAD").env_remove("ROXIE_LIB").envs(settings.iter().copied());
        command.output_in_time().expect("unshare")
    }
}

#[track_caller]
fn succeeds(done: &Output) -> String {
    let (stdout, complained) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{}: {stdout}{complained}", done.status);
    format!("{stdout}{complained}")
}

#[test]
fn job_gets_a_device() {
    let Some(job) = Job::new("job_gets_a_device") else { return };
    let stdout = succeeds(&job.run(&[], "PATH=$(cat path):$PATH; roxie --version"));
    assert!(stdout.contains("198.51.100.1") && stdout.contains("roxie0 is there"), "{stdout}");
    assert_eq!(job.read("path").trim(), job.path("prefix/bin").display().to_string());
    assert!(job.read("output").contains("device=roxie0\nversion="), "{}", job.read("output"));
    assert_eq!(job.read("env"), "", "no later step changes");
}

#[test]
fn job_gets_a_preloaded_device_on_request() {
    let Some(job) = Job::new("job_gets_a_preloaded_device_on_request") else { return };
    let settings = [("ROXIE_ENABLE", "variables"), ("ROXIE_INTERFACE", "job0"), ("ROXIE_NAME", "mlx5_0")];
    succeeds(&job.run(&settings, "true"));
    assert!(job.read("output").contains("device=mlx5_0\n"), "{}", job.read("output"));
    let variables = job.read("env");
    let library = job.path("prefix/lib/roxie/libibverbs.so.1").display().to_string();
    let mut lines = variables.lines();
    assert!(lines.any(|line| line == "LD_PRELOAD<<roxie-LD_PRELOAD"), "{variables}");
    assert!(lines.next().is_some_and(|line| line.contains(&library)), "{variables}");
    assert_eq!(lines.next(), Some("roxie-LD_PRELOAD"), "{variables}");
    assert!(variables.contains("\nmlx5_0\nroxie-ROXIE_NAME\n"), "{variables}");
}

#[test]
fn release_is_fetched_from_the_address() {
    let Some(job) = Job::new("release_is_fetched_from_the_address") else { return };
    let (tree, releases) = (job.path("tree"), job.path("releases/download/v1.2.3"));
    fs::create_dir_all(tree.join(".ci")).expect("a folder");
    fs::create_dir_all(&releases).expect("a folder");
    let package = format!("roxie-1.2.3-{}-linux-gnu.tar.gz", std::env::consts::ARCH);
    fs::rename(job.path("roxie.tar.gz"), releases.join(package)).expect("a package");
    fs::copy(root().join(".ci/action"), tree.join(".ci/action")).expect("a copy");
    let address = format!("# Where\naddress=file://{}\n", job.0.path().display());
    fs::write(tree.join(".ci/address"), address).expect("a file");
    let of_version = |version: &str| {
        let manifest = format!("[workspace.package]\nversion = \"{version}\"\n");
        fs::write(tree.join("Cargo.toml"), manifest).expect("a file");
        job.run_of(&tree, &[("ROXIE_PACKAGE", "")], "true")
    };
    let lost = of_version("1.2.4");
    let message = String::from_utf8_lossy(&lost.stderr);
    assert_eq!(lost.status.code(), Some(1), "{message}");
    assert!(
        message.contains("v1.2.4/roxie-1.2.4-") && message.contains("cannot be fetched: building"),
        "{message}"
    );
    assert!(message.contains("the build failed"), "the tree has no Makefile: {message}");
    assert!(succeeds(&of_version("1.2.3")).contains("roxie0 is there"));
}

#[test]
fn pair_of_ends_can_communicate() {
    let Some(job) = Job::new("pair_of_ends_can_communicate") else { return };
    let after = "PATH=$(cat path):$PATH
        ip netns exec roxie-a roxie perf write bw >server 2>&1 & server=$!
        for try in $(seq 50); do
            # The server may not be there yet.
            if ip netns exec roxie-b roxie perf write bw -n 100 192.0.2.1 >client 2>&1; then break; fi
            sleep 0.2
        done
        cat client
        wait $server";
    let stdout = succeeds(&job.run(&[("ROXIE_PAIR", "true")], after));
    assert!(stdout.contains("192.0.2.1") && stdout.contains("two ends"), "{stdout}");
}

#[test]
fn invalid_settings_are_refused_without_exports() {
    let Some(job) = Job::new("invalid_settings_are_refused_without_exports") else { return };
    for (setting, part) in [
        (("ROXIE_PACKAGE", "roxie.rpm"), "neither a .deb nor a .tar.gz"),
        (("ROXIE_PACKAGE", "gone.tar.gz"), "there is no gone.tar.gz"),
        (("ROXIE_PAIR", "maybe"), "true or false"),
        (("ROXIE_ENABLE", "true"), "auto, machine, variables or none"),
    ] {
        let done = job.run(&[setting], "true");
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{setting:?}: {stderr}");
        assert!(stderr.contains(part), "{setting:?}: {stderr}");
    }
    assert_eq!(job.read("path") + &job.read("output") + &job.read("env"), "");
    let done = job.run(&[("ROXIE_INTERFACE", "nobody0")], "true");
    assert_eq!(done.status.code(), Some(1), "no such interface");
    assert_eq!(job.read("output"), "", "no device");
}
