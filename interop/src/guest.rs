//! The rdma_rxe guest: builds it, starts it, waits for its peer program, ends it.

use std::fmt;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::unistd::Uid;

use crate::error::Error;
use crate::network::{LIMIT, LINK_MTU, Namespace, address, command_line, within};
use crate::peer::Peer;
use crate::rows::Family;

/// TCP port of the peer program in the guest.
const CONTROL_PORT: u16 = 7471;
/// Exit code of `build-guest.sh` if the mirror cannot supply the packages. The script has printed the reason.
const NO_PACKAGES: i32 = 4;
/// Timeout of an emulated boot, which takes 5 s on an idle machine, and has taken 20 s on a busy one.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

/// Kernel of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Debian 12's.
    V6_1,
    /// Debian 13's.
    V6_12,
    /// The newest of Debian's in any suite, with that suite's rdma-core.
    Newest,
}

impl fmt::Display for Kernel {
    /// The value of the runner's option `--kernel`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kernel::V6_1 => "6.1",
            Kernel::V6_12 => "6.12",
            Kernel::Newest => "newest",
        })
    }
}

/// Files that a guest has beside its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Nothing.
    Own,
    /// The host's root below `/host`, read-only; changes stay in the guest's memory.
    Host,
}

/// A guest's network adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adapter {
    /// Link MTU for a path MTU of 4096.
    #[default]
    Plain,
    /// Zero-copy AF_XDP: the adapter writes into a program's memory (virtio-net of Linux 6.14 and later, with
    /// `iommu_platform=on`). Zero-copy needs frames of one buffer, so the MTU is 1500.
    ZeroCopy,
}

impl Adapter {
    fn mtu(self) -> usize {
        match self {
            Adapter::Plain => LINK_MTU,
            Adapter::ZeroCopy => 1500,
        }
    }

    /// Returns QEMU's options for the adapter, with a leading comma.
    fn options(self) -> &'static str {
        match self {
            Adapter::Plain => "",
            Adapter::ZeroCopy => {
                ",iommu_platform=on,disable-legacy=on,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_csum=off"
            }
        }
    }
}

/// A built guest: kernel, initramfs, peer program.
#[derive(Clone, Debug)]
pub struct Image {
    folder: PathBuf,
    processors: u8,
}

/// Returns the folder of the runner's sources, with the guest's scripts.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder for logs, captures, disks and the report: `$ROXIE_OUTPUT`, by default `target/interop` of the
/// workspace. Two runs at a time need two.
pub fn output_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("ROXIE_OUTPUT") {
        return folder.into();
    }
    let workspace = sources().parent().unwrap_or(sources());
    workspace.join("target/interop")
}

/// Returns the folder of the peer program's sources, for a peer that builds its own.
pub fn peer_sources() -> PathBuf {
    sources().join("guest/peer")
}

/// Returns what this host lacks to make network namespaces, or `None`.
pub fn host_lacks_root() -> Option<String> {
    let root = Uid::effective().is_root();
    (!root).then(|| "not root: network namespaces and taps need it (sudo -E …)".into())
}

/// Returns what this host lacks to run a guest, or `None`.
pub fn host_lacks() -> Option<String> {
    if let Some(lack) = host_lacks_root() {
        return Some(lack);
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("no /dev/net/tun: load the tun module".into());
    }
    let check = within(LIMIT, Command::new(sources().join("guest/build-guest.sh")).arg("--check")).output();
    match check {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().replace("build-guest: ", "")),
        Err(error) => Some(format!("build-guest.sh cannot run: {error}")),
    }
}

impl Image {
    /// Builds the guest of a kernel, or finds it in the cache. `refresh` downloads the packages again.
    ///
    /// # Errors
    /// [`Error::Packages`] if the packages are not available.
    pub fn build(kernel: Kernel, refresh: bool) -> Result<Image, Error> {
        let mut command = Command::new(sources().join("guest/build-guest.sh"));
        command.args(["--kernel", &kernel.to_string()]);
        Image::built_by(command, kernel, refresh)
    }

    /// Builds the guest of kernel 6.1 with ksmbd, its SMB server over RDMA, or finds it in the cache.
    ///
    /// # Errors
    /// [`Error::Packages`] if the packages are not available.
    pub fn build_with_smb_server() -> Result<Image, Error> {
        let command = Command::new(sources().join("guest/build-ksmbd.sh"));
        Image::built_by(command, Kernel::V6_1, false)
    }

    /// Returns the guest for a test. `None`, after printing SKIP and the reason, if this host lacks something or the
    /// mirror does not answer.
    ///
    /// # Panics
    /// If the guest cannot be built from the packages.
    pub fn for_test(name: &str) -> Option<Image> {
        let built = match host_lacks() {
            Some(lack) => Err(lack),
            None => match Image::build(Kernel::V6_1, false) {
                Err(error @ Error::Packages(_)) => Err(error.to_string()),
                built => Ok(built.expect("the guest builds")),
            },
        };
        built.map_err(|why| println!("SKIP {name}: {why}")).ok()
    }

    fn built_by(mut command: Command, kernel: Kernel, refresh: bool) -> Result<Image, Error> {
        if refresh {
            command.arg("--refresh");
        }
        let line = command_line(&command);
        // The script downloads packages and packs a kernel's modules.
        let output = within(2 * LIMIT, &command)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| Error::Command { command: line.clone(), output: e.to_string() })?;
        if output.status.code() == Some(NO_PACKAGES) {
            return Err(Error::Packages(kernel.to_string()));
        }
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || folder.is_empty() {
            return Err(Error::Command { command: line, output: format!("{}", output.status) });
        }
        Ok(Image { folder: folder.into(), processors: 1 })
    }

    /// Returns the image for a guest of so many processors, 1 at least, instead of one.
    #[must_use]
    pub fn with_processors(self, processors: u8) -> Image {
        Image { processors, ..self }
    }

    /// Returns the folder with `vmlinuz`, `initramfs.gz`, `outside`, `peer` and `kernel`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the QEMU command of guest `host` of the site.
    ///
    /// Uses tcg, not kvm: `/dev/kvm` may exist and still not run a stock kernel. `setpriv` ends the guest with the
    /// thread that starts it, so that it does not survive a killed runner.
    fn command(&self, namespace: &Namespace, host: u8, adapter: Adapter, append: &str) -> Command {
        let tap = format!("tap{host}");
        // `no_timer_check`: the kernel waits for ten ticks of an emulated timer, and panics if a busy host delays them.
        let kernel_line = format!(
            "console=ttyS0 panic=-1 quiet no_timer_check roxie.v4={}/24 roxie.v6={}/64 roxie.mtu={} roxie.port={CONTROL_PORT}{append}",
            address(host, Family::V4),
            address(host, Family::V6),
            adapter.mtu(),
        );
        let mut command = namespace.command("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max"]);
        // Of one processor, a maximum of two. If the maximum is one, QEMU 7.2 omits memory barriers (tcg-op.c,
        // tcg_gen_mb), and its own thread may miss a packet in an empty queue: eth0 then never sends again.
        let processors = format!("{},maxcpus={}", self.processors, self.processors.max(2));
        command.args(["-m", "1024", "-smp", &processors, "-nographic", "-no-reboot"]);
        command.arg("-kernel").arg(self.folder.join("vmlinuz"));
        command.arg("-initrd").arg(self.folder.join("initramfs.gz"));
        command.args(["-append", &kernel_line]);
        command.args(["-netdev", &format!("tap,id=n0,ifname={tap},script=no,downscript=no")]);
        command.args([
            "-device",
            &format!(
                "virtio-net-pci,netdev=n0,mac=52:54:00:71:00:{host:02x},host_mtu={}{}",
                adapter.mtu(),
                adapter.options()
            ),
        ]);
        command.args(["-virtfs", &shared(&self.folder.join("outside"), "outside")]);
        command
    }

    /// Starts a guest with these files and a shell on this terminal, and waits for its end.
    pub fn shell(&self, namespace: &Namespace, host: u8, files: Files) -> Result<(), Error> {
        namespace.add_tap(&format!("tap{host}"))?;
        let append = if files == Files::Host { " roxie.shell roxie.host" } else { " roxie.shell" };
        let mut command = self.command(namespace, host, Adapter::Plain, append);
        if files == Files::Host {
            command.args(["-virtfs", &shared(Path::new("/"), "host")]);
        }
        let line = command_line(&command);
        let failed = |output: String| Error::Command { command: line, output };
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(status.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Returns the QEMU option that lets the guest read a folder over 9p, as `tag`.
fn shared(folder: &Path, tag: &str) -> String {
    // A comma in a name must be doubled.
    let path = folder.display().to_string().replace(',', ",,");
    format!("local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap")
}

/// A running guest. Dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
    number: u8,
    control: SocketAddr,
    log: PathBuf,
    booted_in: Duration,
}

impl Guest {
    /// Starts guest `host` (2 and up) of the site and waits until its peer program answers. The console output goes to
    /// `log`.
    ///
    /// The guest ends with the calling thread.
    pub fn start(image: &Image, namespace: &Namespace, host: u8, log: &Path) -> Result<Guest, Error> {
        Guest::start_with(image, namespace, host, log, Files::Own, Adapter::Plain)
    }

    /// Starts a guest as [`Guest::start`], with these files and this adapter.
    pub fn start_with(
        image: &Image,
        namespace: &Namespace,
        host: u8,
        log: &Path,
        files: Files,
        adapter: Adapter,
    ) -> Result<Guest, Error> {
        namespace.add_tap(&format!("tap{host}"))?;
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder).map_err(Error::file(folder))?;
        }
        let console = File::create(log).map_err(Error::file(log))?;
        let also = console.try_clone().map_err(Error::file(log))?;
        let append = if files == Files::Host { " roxie.host" } else { "" };
        let mut command = image.command(namespace, host, adapter, append);
        if files == Files::Host {
            command.args(["-virtfs", &shared(Path::new("/"), "host")]);
        }
        let line = command_line(&command);
        let qemu = command
            .stdin(Stdio::null())
            .stdout(console)
            .stderr(also)
            .spawn()
            .map_err(|e| Error::Command { command: line, output: e.to_string() })?;
        let mut guest = Guest {
            qemu,
            number: host,
            control: SocketAddr::new(address(host, Family::V4), CONTROL_PORT),
            log: log.to_owned(),
            booted_in: Duration::ZERO,
        };
        guest.wait_for_peer(namespace)?;
        Ok(guest)
    }

    fn wait_for_peer(&mut self, namespace: &Namespace) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.qemu.try_wait() {
                return Err(Error::Guest(format!("QEMU ended ({status}). {}", self.last_words())));
            }
            // Wait for the console's message: an earlier connection would wait for an ARP timeout.
            let console = fs::read(&self.log).unwrap_or_default();
            if String::from_utf8_lossy(&console).contains("roxie-peer: listening") {
                self.peer(namespace)?;
                self.booted_in = start.elapsed();
                self.meet_over_v6(namespace)?;
                return Ok(());
            }
            if start.elapsed() > BOOT_TIMEOUT {
                let seconds = BOOT_TIMEOUT.as_secs();
                return Err(Error::Guest(format!("no answer for {seconds} s. {}", self.last_words())));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Makes both sides resolve each other's IPv6 address, as the control connection did for IPv4. rxe waits one second
    /// for a neighbour (`addr.c`, `rdma_addr_find_l2_eth_by_grh`), and the first IPv6 resolution takes that long.
    fn meet_over_v6(&self, namespace: &Namespace) -> Result<(), Error> {
        let there = SocketAddr::new(address(self.number, Family::V6), CONTROL_PORT);
        let met = namespace.within(|| TcpStream::connect_timeout(&there, Duration::from_secs(5)))?;
        met.map(drop).map_err(|source| Error::Connection { command: format!("connect {there}"), source })
    }

    /// Returns the last lines of the console log, for messages.
    fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("The console log {} ends with:\n{}", self.log.display(), lines.join("\n"))
    }

    /// Opens a new session with the guest's peer program, with verbs objects of its own.
    pub fn peer(&self, namespace: &Namespace) -> Result<Peer, Error> {
        let control = self.control;
        let stream = namespace.within(|| TcpStream::connect_timeout(&control, Duration::from_secs(5)))?;
        let stream =
            stream.map_err(|source| Error::Connection { command: format!("connect {control}"), source })?;
        Peer::over_tcp(stream)
    }

    /// Returns the time from the start of QEMU to the first answer of the peer program.
    pub fn booted_in(&self) -> Duration {
        self.booted_in
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The guest has no disk, so nothing is lost. Either call fails only if the guest has ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
