//! `roxie nfs`: a server and clients as processes, with folders and wrong input.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::network::Net;
use crate::{A, Running, roxie, run};

/// A folder that is served, and another one for copies.
struct Folders {
    served: tempfile::TempDir,
    own: tempfile::TempDir,
}

impl Folders {
    fn new() -> Folders {
        let folders = Folders { served: tempfile::tempdir().unwrap(), own: tempfile::tempdir().unwrap() };
        fs::create_dir(folders.served.path().join("below")).unwrap();
        fs::write(folders.served.path().join("below/file"), bytes()).unwrap();
        fs::write(folders.served.path().join("empty"), []).unwrap();
        folders
    }

    fn served(&self) -> String {
        self.served.path().display().to_string()
    }

    fn own(&self, name: &str) -> PathBuf {
        self.own.path().join(name)
    }
}

/// Bytes that differ from block to block.
fn bytes() -> Vec<u8> {
    (0..1usize << 20).map(|n| (n / 512 * 31 + n * 7) as u8).collect()
}

/// Starts a server at the left, and waits until it listens.
fn serve(net: &Net, options: &str) -> Running {
    let mut server = net.start_left(&format!("nfs serve --port udp {options}"));
    server.wait_for("is served at");
    server
}

/// Ends a server by SIGTERM.
fn end(server: Running) {
    kill(Pid::from_raw(server.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    server.finish().succeeded();
}

#[test]
fn folder_is_listed_and_read_over_sockets() {
    let Some(net) = Net::new("nfs-read") else { return };
    let folders = Folders::new();
    let server = serve(&net, &folders.served());
    let at = |command: &str, path: &str| format!("nfs {command} --port udp --mount-port 20048 {A}:{path}");
    let listed = net.right(&at("ls", "/ --json")).succeeded().json();
    assert_eq!((&listed[0]["name"], &listed[0]["type"]), (&"below".into(), &"d".into()));
    assert_eq!((&listed[1]["name"], &listed[1]["bytes"]), (&"empty".into(), &0.into()));
    let text = net.right(&at("ls", "/below")).succeeded().stdout;
    assert!(text.starts_with("-rw") && text.ends_with(" 1048576 file\n"), "{text}");
    // The path of a file shows the file.
    assert_eq!(net.right(&at("ls", "/below/file")).succeeded().stdout, text);
    for (path, expected) in [("/below/file", bytes()), ("/empty", Vec::new())] {
        let copy = folders.own("copy");
        let done = net.right(&format!("{} -o {} --json", at("get", path), copy.display())).succeeded().json();
        assert_eq!(done[0]["bytes"], expected.len());
        assert!(fs::read(copy).unwrap() == expected, "{path}");
    }
    end(server);
}

#[test]
fn refused_calls_exit_with_4_and_a_path() {
    let Some(net) = Net::new("nfs-refuse") else { return };
    let folders = Folders::new();
    fs::write(folders.own("new"), b"new").unwrap();
    let server = serve(&net, &folders.served());
    let at = |command: &str, path: &str| format!("nfs {command} --port udp --mount-port 20048 {A}:{path}");
    let put = format!("{} -i {}", at("put", "/new"), folders.own("new").display());
    net.right(&put).failed(4, &["/new: CREATE: NFS3ERR_ROFS (read-only file system)"]);
    net.right(&at("get", "/absent")).failed(4, &["/absent: LOOKUP: NFS3ERR_NOENT"]);
    net.right(&at("get", "/below")).failed(4, &["/below: not a regular file"]);
    net.right(&at("ls", "/absent")).failed(4, &["/absent: MNT3ERR_NOENT"]);
    net.right(&at("ls", "/../etc")).failed(4, &["MNT3ERR_ACCES"]);
    // No port mapper, and nothing at another port.
    net.right(&format!("nfs ls --port udp {A}:/")).failed(4, &["port mapper"]);
    net.right(&format!("nfs ls --port udp {A}:/ --nfs-port 20050")).failed(4, &["refuses the connection"]);
    assert!(!folders.served.path().join("new").exists());
    end(server);
}

#[test]
fn second_server_at_a_port_exits_with_2() {
    let Some(net) = Net::new("nfs-port") else { return };
    let folders = Folders::new();
    let first = serve(&net, &folders.served());
    let second = format!("nfs serve --port udp {}", folders.served());
    net.left(&second).failed(2, &["cannot listen at", "20049", "--listen"]);
    net.left(&format!("{second} --listen 20050")).failed(2, &["TCP", "20048", "--mount-port"]);
    let other = serve(&net, &format!("{} --listen 20050 --mount-port 20051", folders.served()));
    net.right(&format!("nfs ls --port udp {A}:/ --nfs-port 20050 --mount-port 20051")).succeeded();
    end(other);
    end(first);
}

#[test]
fn wrong_values_are_refused_before_opening() {
    let folders = Folders::new();
    run("nfs serve absent-folder").failed(2, &["absent-folder", "No such file"]);
    run(&format!("nfs serve {}/empty", folders.served())).failed(2, &["Not a directory"]);
    run(&format!("nfs serve --port memory {}", folders.served())).failed(2, &["nfs ls / --port memory"]);
    run("nfs ls example").failed(2, &["ADDRESS:/PATH"]);
    run("nfs get 192.0.2.1:/").failed(2, &["/ is a folder"]);
    run("nfs get 192.0.2.1:/x --size 129K").failed(2, &["1 to 128K"]);
    run("nfs get 192.0.2.1:/x --json").failed(2, &["--output"]);
    run("nfs put 192.0.2.1:/x -i absent").failed(2, &["absent", "No such file"]);
    run(&format!("nfs put 192.0.2.1:/x -i {}", folders.served())).failed(2, &["a file is wanted"]);
    run("nfs ls / --port memory").failed(2, &["--export DIR is missing"]);
}

#[test]
fn any_name_and_long_path_is_read() {
    let folders = Folders::new();
    // The folder's path is longer than MOUNT takes, and the name is no UTF-8.
    let path = PathBuf::from("folder-of-200-bytes/".replace('o', &"o".repeat(90)).repeat(6));
    let path = path.join(OsStr::from_bytes(b"caf\xe9"));
    let served = folders.served.path().join(&path);
    fs::create_dir_all(served.parent().unwrap()).unwrap();
    fs::write(&served, bytes()).unwrap();
    let copy = folders.own("copy");
    for (command, said) in [("get", ""), ("ls", "1048576 caf\u{fffd}\n")] {
        let mut run = roxie(&format!("nfs {command} --port memory --export {}", folders.served()));
        run.arg(Path::new("/").join(&path));
        if command == "get" {
            run.arg("-o").arg(&copy);
        }
        let done = Running::start(run).finish().succeeded();
        assert!(done.stdout.ends_with(said), "{done:?}");
    }
    assert!(fs::read(copy).unwrap() == bytes());
}

#[test]
fn all_clients_run_in_one_process() {
    let folders = Folders::new();
    let memory = format!("--port memory --export {}", folders.served());
    let listed = run(&format!("nfs ls / {memory}")).succeeded().stdout;
    assert!(listed.contains(" below\n") && listed.contains(" empty\n"), "{listed}");
    let copy = folders.own("copy");
    run(&format!("nfs get /below/file {memory} --size 999 -o {}", copy.display())).succeeded();
    assert!(fs::read(copy).unwrap() == bytes());
    run(&format!("nfs put /new {memory} -i {}/empty", folders.served())).failed(4, &["NFS3ERR_ROFS"]);
    run(&format!("nfs ls 192.0.2.1:/ {memory}")).failed(2, &["/PATH alone"]);
}
