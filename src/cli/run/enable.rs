//! `roxie enable` gives the device to all programs of a machine, and `roxie disable` takes it away.
//!
//! The loader reads [`PRELOADS`] for each program, also behind `sudo`, in services, and without an environment. A
//! search path in `/etc/ld.so.conf.d` would not do: where a program has librdmacm through another library (libfabric,
//! UCX), symbols of the C library come before those of libibverbs, and librdmacm would open the kernel's
//! `/dev/infiniband/rdma_cm`. The verbs library reads its settings from [`SETTINGS_FILE`].
//!
//! The files in `/sys` and `/dev` are those of `roxie run`, mounted for all. A process keeps them up to date until they
//! are unmounted ([`keep`]). Unlike the watcher of `roxie run` it ends no connections of killed programs: a watcher
//! serves programs of its own user alone.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use roxie::host::SETTINGS_FILE;
use roxie::host::inspect::CounterReader;
use roxie::netdev::Vlans;
use roxie::remote::{TRUSTED_NIC, nic_of};
use roxie_report::failure::Failure;
use roxie_report::output;

use super::{Library, Options, Port, Prepared, View, child, live, overlay, prepare};

/// Libraries that the loader puts in front of those of each program, one a line.
const PRELOADS: &str = "/etc/ld.so.preload";
/// Folder of a copy of the library, which outlives a build or a package. AppArmor's profiles let programs load
/// libraries from `/usr/lib`.
const FOLDER: &str = "/usr/lib/roxie-enabled";
/// The copy, and the one that is to replace it.
const COPY: &str = "/usr/lib/roxie-enabled/libibverbs.so.1";
const DRAFT: &str = "/usr/lib/roxie-enabled/new";
/// The process that keeps the view up to date has a lock on this file, which root alone may open.
const LOCK: &str = "/usr/lib/roxie-enabled/lock";
/// The folder by which the process sees that the view was unmounted.
const SHOWN: &str = "/sys/class/infiniband";
/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long `roxie disable` waits for the process.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a part of the view takes that could not be mounted.
const MOUNTS: &str = "for those, call `roxie enable` again with CAP_SYS_ADMIN: in a container, `--cap-add SYS_ADMIN \
    --security-opt apparmor=unconfined`";

/// First line of [`SETTINGS_FILE`].
const TITLE: &str =
    "# Written by `roxie enable`, removed by `roxie disable`. Variables of a program take precedence.\n";

/// Give the device to every program of this machine, as root
#[derive(Debug, Args)]
#[command(
    long_about = "Gives an RDMA device on an ordinary interface to every program of this machine, without `roxie run` and without \
        variables: for continuous integration, for containers and for virtual machines of your own. Run it as root; `roxie disable` takes \
        the device away again.\n\nThe loader puts a copy of Roxie's libibverbs.so.1 in front of the libraries of each program \
        (/etc/ld.so.preload), the library reads the device's options from /etc/roxie.conf, and /sys/class/infiniband and /dev/infiniband \
        show the device alone: RDMA devices of the kernel are hidden. A second call replaces the options. /sys and /dev are as before \
        after a restart of the machine, and the rest stays until `roxie disable`.\n\nThe device uses UDP sockets, unless `roxie nic` \
        serves the interface. Programs of one user at a time exchange data over sockets; programs that only query work beside them. \
        Variables that `roxie run` and `roxie env` set take precedence.",
    after_help = "Examples:\n  \
        sudo roxie enable --dev eth0 && ibv_devices\n  \
        sudo roxie enable --name mlx5_0\n  \
        sudo roxie disable\n\n\
        Programs that are linked statically do not load the library. Programs for 32 bits report that they cannot, and run without \
        it.\n\nExit codes: 0 done (what could not be mounted is printed), 1 something could not be written, 2 wrong usage, 3 the device is not available."
)]
pub(crate) struct EnableArguments {
    #[command(flatten)]
    options: Options,
}

/// Take away the device that `roxie enable` gave, as root
#[derive(Debug, Args)]
pub(crate) struct DisableArguments {}

/// Gives the device to all programs.
pub(crate) fn enable(arguments: &EnableArguments) -> ExitCode {
    let done = as_root("enable").and_then(|()| give(&arguments.options));
    done.map_or_else(|failure| failure.report("enable"), |()| ExitCode::SUCCESS)
}

/// Takes it away.
pub(crate) fn disable(_: &DisableArguments) -> ExitCode {
    let done = as_root("disable").and_then(|()| take_away());
    done.map_or_else(|failure| failure.report("disable"), |()| ExitCode::SUCCESS)
}

fn as_root(command: &str) -> Result<(), Failure> {
    if geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::Device(format!(
        "programs of all users change, which takes root: `sudo roxie {command}`. Without root, `roxie run` starts single programs with \
         the device, and `roxie env` prints variables for others"
    )))
}

fn give(options: &Options) -> Result<(), Failure> {
    if let Some(file) = &options.capture {
        // Programs of all users would write it, also setuid ones, one after the other.
        return Err(Failure::Usage(format!(
            "--capture {}: a capture is one program's. `roxie run --capture` makes it, or `roxie capture` of a running one",
            file.display()
        )));
    }
    // Programs of users without privilege have UDP sockets, or the NIC.
    let prepared = prepare(options, |interface| match nic_of(&interface.name) {
        Ok(Some(_)) => None,
        Ok(None) | Err(_) => Some(Port::Udp),
    })?;
    let settings = settings(&prepared, options)?;
    // A library that cannot be installed leaves what is there.
    install(&prepared.library)?;
    unmount()?;
    replace(SETTINGS_FILE, &settings)?;
    let (view, vlans) = prepared.view(options);
    let missing = overlay::cover(&view);
    for part in &missing {
        output::note(format_args!("{part}; {MOUNTS}"));
    }
    if !missing.iter().any(overlay::NoView::is_of_sysfs)
        && let Err(error) = keep(view, vlans)
    {
        output::note(format_args!("{SHOWN} stays as it is now, without counters: {error}"));
    }
    preload(true)?;
    if !options.quiet {
        let Prepared { name, interface, port, .. } = &prepared;
        output::note(format_args!(
            "every program of this machine has {name} on {} ({}); `roxie disable` takes it away",
            interface.name,
            port.name()
        ));
    }
    Ok(())
}

/// Takes the library away first, which matters to every program.
fn take_away() -> Result<(), Failure> {
    preload(false)?;
    remove(SETTINGS_FILE, fs::remove_file(SETTINGS_FILE))?;
    unmount()?;
    remove(FOLDER, fs::remove_dir_all(FOLDER))
}

/// Returns the text of [`SETTINGS_FILE`].
fn settings(prepared: &Prepared, options: &Options) -> Result<String, Failure> {
    let mut text = TITLE.to_owned();
    let all = prepared.environment(options).into_iter();
    for (name, value) in all.filter(|(name, _)| name.starts_with("ROXIE_") && *name != TRUSTED_NIC) {
        let value = value.to_str().filter(|value| !value.contains('\n')).ok_or_else(|| {
            Failure::Usage(format!(
                "{name} is {value:?}, and a line of {SETTINGS_FILE} is UTF-8 without a line break"
            ))
        })?;
        text += &format!("{name}={value}\n");
    }
    Ok(text)
}

/// Copies the library, and tries it before every program loads it.
fn install(library: &Library) -> Result<(), Failure> {
    let copied = fs::create_dir_all(FOLDER)
        .and_then(|()| fs::set_permissions(FOLDER, Permissions::from_mode(0o755)))
        .and_then(|()| fs::copy(library.path(), DRAFT))
        .and_then(|_| fs::set_permissions(DRAFT, Permissions::from_mode(0o644)))
        // After a loss of power, no program may find half a library.
        .and_then(|()| File::open(DRAFT)?.sync_all())
        .and_then(|()| std::env::current_exe())
        .and_then(|program| Command::new(program).arg("--version").env("LD_PRELOAD", DRAFT).output());
    let tried = copied.map_err(refused(FOLDER))?;
    // The loader names a library that it does not take, and goes on without it.
    let complaint = String::from_utf8_lossy(&tried.stderr);
    if !tried.status.success() || complaint.contains(DRAFT) {
        let why = format!("programs would not load {DRAFT}: {} ({})", complaint.trim_end(), tried.status);
        return Err(Failure::Device(why));
    }
    fs::rename(DRAFT, COPY).and_then(|()| File::open(FOLDER)?.sync_all()).map_err(refused(COPY))
}

/// Adds the library to [`PRELOADS`], or removes it. Other lines stay.
fn preload(wanted: bool) -> Result<(), Failure> {
    let before = match fs::read_to_string(PRELOADS) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(refused(PRELOADS))?,
    };
    let after = preloads(&before, wanted);
    match after.is_empty() {
        _ if before == after => Ok(()),
        true => remove(PRELOADS, fs::remove_file(PRELOADS)),
        false => replace(PRELOADS, &after),
    }
}

/// Returns the file with the library as its last line, or without it. A line may name several libraries (ld.so(8)).
fn preloads(before: &str, wanted: bool) -> String {
    let is_separator = |c: char| c.is_whitespace() || c == ':';
    let without = |line: &str| {
        if !line.split(is_separator).any(|library| library == COPY) {
            return Some(line.to_owned());
        }
        let others: Vec<&str> =
            line.split(is_separator).filter(|library| !library.is_empty() && *library != COPY).collect();
        (!others.is_empty()).then(|| others.join(" "))
    };
    let others = before.lines().filter_map(without);
    others.chain(wanted.then(|| COPY.to_owned())).map(|line| format!("{line}\n")).collect()
}

/// Unmounts the view, and waits for the end of the process that kept it up to date.
fn unmount() -> Result<(), Failure> {
    overlay::uncover().map_err(|error| Failure::Run(error.to_string()))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match lock() {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(refused(FOLDER)(error)),
            Err(_) if Instant::now() > until => {
                return Err(Failure::Run(format!(
                    "the process that keeps {SHOWN} up to date has not ended in {} s: the view is mounted in another mount namespace, \
                     for example of `ip netns exec` or of a container. Run `roxie disable` where `roxie enable` was run",
                    PATIENCE.as_secs()
                )));
            }
            Err(_) => sleep(LOOK),
        }
    }
}

/// Takes the lock of the process that keeps the view up to date.
fn lock() -> io::Result<Flock<File>> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(LOCK)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Starts the process that keeps the view up to date until it is unmounted.
///
/// # Errors
/// If the system is out of memory, descriptors or processes.
fn keep(view: View, vlans: Option<Vlans>) -> io::Result<()> {
    let (mut said, mut says) = io::pipe()?;
    child::detach(move || {
        let started = lock().and_then(|lock| {
            // An open folder keeps its number: a view that is mounted later has another one.
            let shown = File::open(SHOWN)?;
            live::keep(view, vlans, Path::new(overlay::CLASS), CounterReader::of_all_users())?;
            Ok((lock, shown))
        });
        match started {
            Ok((_lock, shown)) => {
                drop(says);
                while is_shown(&shown) {
                    sleep(LOOK);
                }
            }
            Err(error) => drop(write!(says, "{error}")),
        }
    })?;
    let mut why = String::new();
    said.read_to_string(&mut why)?;
    if why.is_empty() { Ok(()) } else { Err(io::Error::other(why)) }
}

fn is_shown(folder: &File) -> bool {
    let number = |metadata: io::Result<Metadata>| metadata.ok().map(|found| (found.dev(), found.ino()));
    number(folder.metadata()) == number(fs::metadata(SHOWN))
}

/// Replaces a file whole: programs never read half of one. All users may read it.
fn replace(path: &str, text: &str) -> Result<(), Failure> {
    let draft = format!("{path}.new");
    let replaced = fs::write(&draft, text)
        .and_then(|()| fs::set_permissions(&draft, Permissions::from_mode(0o644)))
        .and_then(|()| File::open(&draft)?.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&draft);
    }
    replaced.map_err(refused(path))
}

/// Accepts that nothing was there to be removed.
fn remove(path: &str, result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refused(path)(error)),
        _ => Ok(()),
    }
}

fn refused(path: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Run(format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloads_stay() {
        let line = format!("{COPY}\n");
        assert_eq!(preloads("", true), line);
        assert_eq!(preloads("/lib/a.so", true), format!("/lib/a.so\n{line}"));
        assert_eq!(preloads(&format!("{line}/lib/a.so\n"), true), format!("/lib/a.so\n{line}"), "once");
        assert_eq!(preloads(&format!("# one\n{line}/lib/a.so\n"), false), "# one\n/lib/a.so\n");
        assert_eq!(preloads(&line, false), "");
        assert_eq!(preloads(&format!("{COPY} /lib/a.so:/lib/b.so\n"), false), "/lib/a.so /lib/b.so\n");
    }
}
