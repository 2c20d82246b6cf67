//! Clients of verbs and rdma_cm that Debian packages: librpma, uDAPL, QEMU's migration.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::rdmacm::meet;
use super::{NEAR, Running, Site, compiled, ports, skip};

/// TCP port by which uDAPL's programs exchange addresses.
const DAPL_PORT: u16 = 15828;
/// Memory of the machine that migrates.
const MEMORY: usize = 64 << 20;
/// Offset of the pattern in that memory, and its length.
const PATTERN_AT: usize = 16 << 20;
const PATTERN: usize = 20 << 20;

#[test]
fn librpma_moves_right_data() {
    let name = "librpma_moves_right_data";
    if skip(name, &["cc"]) {
        return;
    }
    if !Path::new("/usr/include/librpma.h").exists() {
        println!("SKIP {name}: librpma-dev not installed (.ci/setup test)");
        return;
    }
    let (_place, program) = compiled("rpma_remote", &["-lrpma", "-libverbs"]);
    let site = Site::new("rpma");
    for port in ports() {
        let [server, client] =
            ["server", "client"].map(|end| format!("{} {end} {NEAR} 7204", program.display()));
        let (client_end, served) = meet(&site, port, &server, &client);
        assert!(client_end.contains("all so") && served.contains("all so"), "{port}: {client_end}{served}");
    }
}

/// Writes a uDAPL registry with the interface's rdma_cm provider; returns its path.
fn registry(folder: &Path, dev: &str) -> PathBuf {
    let path = folder.join(format!("{dev}.conf"));
    let line = format!("cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{dev} 0\" \"\"\n");
    fs::write(&path, line).unwrap();
    path
}

/// Uses the rdma_cm provider. dtest prints PASSED or FAILED, and exits with 0 in either case.
#[test]
fn dapl_programs_pass() {
    if skip("dapl_programs_pass", &["dtest", "dtestx", "dtestcm", "dtestsrq"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [local, remote] = ["left", "right"].map(|dev| registry(folder.path(), dev));
    let start = |registry: &Path, name: &str, options: &str| {
        format!("env DAT_OVERRIDE={} stdbuf -oL {name} -P cma {options}", registry.display())
    };
    let site = Site::new("dapl");
    // dtestcm binds twenty endpoints to free ports, and listens at 45248 then: none of those may be it.
    let above = || std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "49152 60999");
    site.local.run(above).unwrap().unwrap();
    for port in ports() {
        for (name, options) in
            [("dtest", "-b 5000 -B 20"), ("dtestx", ""), ("dtestcm", "-c 20"), ("dtestsrq", "")]
        {
            let mut server = site.local(port, &start(&local, name, &format!("-s {options}")));
            if name == "dtestsrq" {
                server.wait_until_it_serves();
            } else {
                server.wait_until_it_listens(DAPL_PORT);
            }
            let client = site.remote(port, &start(&remote, name, &format!("-h {NEAR} {options}"))).finish();
            for ended in [client, server.finish()] {
                let output = &ended.output;
                let well = ended.status.success() && !output.contains("FAILED");
                assert!(well && (name != "dtest" || output.contains("PASSED")), "{port} {name}: {ended:?}");
            }
        }
    }
}

/// A QEMU machine protocol session.
struct Monitor {
    answers: BufReader<UnixStream>,
}

impl Monitor {
    fn of(machine: &mut Running, path: &Path) -> Monitor {
        let mut connected = None;
        machine.wait_until("listening", |_| {
            connected = UnixStream::connect(path).ok();
            connected.is_some()
        });
        let stream = connected.expect("wait_until returns when it is there");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut monitor = Monitor { answers: BufReader::new(stream) };
        monitor.execute("qmp_capabilities", "");
        monitor
    }

    /// Executes a command and returns its answer's line.
    fn execute(&mut self, command: &str, arguments: &str) -> String {
        let text = format!("{{\"execute\":\"{command}\",\"arguments\":{{{arguments}}}}}\n");
        self.answers.get_mut().write_all(text.as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "{command}: QEMU has ended");
            assert!(!line.starts_with("{\"error\""), "{command}: {line}");
            if line.starts_with("{\"return\"") {
                return line;
            }
        }
    }

    fn save_memory(&mut self, to: &Path) -> Vec<u8> {
        let arguments = format!("\"val\":0,\"size\":{MEMORY},\"filename\":\"{}\"", to.display());
        self.execute("pmemsave", &arguments);
        fs::read(to).unwrap()
    }
}

/// A diskless machine with a pattern in its memory moves to another host. Memory is registered by chunks, or all at
/// once.
#[test]
fn qemu_migrates_memory_unchanged() {
    if skip("qemu_migrates_memory_unchanged", &["qemu-system-x86_64"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let pattern: Vec<u8> =
        (0..PATTERN as u32 / 4).flat_map(|at| at.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(place("pattern"), &pattern).unwrap();
    let site = Site::new("migrates");
    for (port, pin_all) in ports().into_iter().flat_map(|port| [(port, false), (port, true)]) {
        let [from, to] = ["from", "to"].map(|end| place(&format!("{end}-{port}-{pin_all}")));
        let machine = |monitor: &Path| {
            format!(
                "qemu-system-x86_64 -machine pc,accel=tcg -m {} -display none -nodefaults -S -qmp unix:{},server=on,wait=off",
                MEMORY >> 20,
                monitor.display()
            )
        };
        let loader =
            format!("-device loader,file={},addr={PATTERN_AT},force-raw=on", place("pattern").display());
        let mut target = site.local(port, &format!("{} -incoming defer", machine(&to)));
        let mut source = site.remote(port, &format!("{} {loader}", machine(&from)));
        let (mut local, mut remote) = (Monitor::of(&mut target, &to), Monitor::of(&mut source, &from));
        if pin_all {
            let wanted = "\"capabilities\":[{\"capability\":\"rdma-pin-all\",\"state\":true}]";
            local.execute("migrate-set-capabilities", wanted);
            remote.execute("migrate-set-capabilities", wanted);
        }
        let uri = format!("\"uri\":\"rdma:{NEAR}:4444\"");
        local.execute("migrate-incoming", &uri);
        target.wait_until_it_serves();
        remote.execute("migrate", &uri);
        source.wait_until("through", |_| {
            let answer = remote.execute("query-migrate", "");
            assert!(!answer.contains("\"failed\""), "{port} {pin_all}: {answer}");
            answer.contains("\"completed\"")
        });
        let moved = local.save_memory(&place("moved"));
        assert!(moved[PATTERN_AT..][..PATTERN] == pattern, "{port} {pin_all}: another pattern");
        assert!(moved == remote.save_memory(&place("left")), "{port} {pin_all}: memory differs");
        local.execute("quit", "");
        remote.execute("quit", "");
        assert!(target.finish().status.success() && source.finish().status.success(), "{port} {pin_all}");
    }
}

/// Python wheels carry copies of libraries with names of their own, and link to those names. The copy here has no
/// device.
#[test]
fn renamed_library_yields_to_the_preloaded_one() {
    let name = "renamed_library_yields_to_the_preloaded_one";
    if skip(name, &["cc"]) {
        return;
    }
    const COPY: &str = "struct ibv_device **ibv_get_device_list(int *count) { *count = 0; return 0; }\n\
                        void ibv_free_device_list(struct ibv_device **list) { }\n";
    const VERSIONS: &str = "IBVERBS_1.1 { global: ibv_get_device_list; ibv_free_device_list; };\n";
    const PROGRAM: &str = "#include <infiniband/verbs.h>\n\
                           int main(void) { int count; return ibv_get_device_list(&count) && count == 1 ? 0 : 9; }\n";
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in [("copy.c", COPY), ("versions", VERSIONS), ("program.c", PROGRAM)] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    let library = "libibverbs-0a1b2c3d.so.1.14.44.0";
    let rpath = format!("-Wl,-rpath,{}", folder.path().display());
    let soname = format!("-Wl,-soname,{library}");
    for words in [
        &["-shared", "-fPIC", "-w", "-o", library, "copy.c", &soname, "-Wl,--version-script,versions"][..],
        &["-o", "program", "program.c", library, &rpath],
    ] {
        let done = Command::new("cc").current_dir(folder.path()).args(words).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let program = folder.path().join("program");
    assert_eq!(Command::new(&program).status().unwrap().code(), Some(9), "the copy alone");
    let ended = Site::new("renamed").local("udp", &program.display().to_string()).finish();
    assert!(ended.status.success(), "{ended:?}");
}
