//! Finds the holder of a UDP port that is taken.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use roxie_base::text::process_name;

/// Longest wait for a port that may become free by itself, and the pause between attempts.
const FREED_WITHIN: Duration = Duration::from_secs(2);
const TRIES_EVERY: Duration = Duration::from_millis(10);

/// The holder of a port.
struct Owner {
    /// One or two sentences: the holder as far as visible, and what to do.
    text: String,
    /// True if the port may become free by itself. No holder is visible: the last one has just ended, or the socket is
    /// in flight from one process to another. Or each is a child of this process, which has the sockets of its parent
    /// until it executes another program.
    may_go: bool,
}

/// Makes a socket on a port by `bind`, which returns `None` while the port is taken. Waits if the port may become free
/// by itself: sockets in flight between processes that have ended are closed later, by a thread of the kernel.
///
/// # Errors
/// Those of `bind`; `in_use` of the holder, if the port stays taken.
pub(crate) fn bound<S, E>(
    port: u16,
    bind: impl FnMut() -> Result<Option<S>, E>,
    in_use: impl FnOnce(String) -> E,
) -> Result<S, E> {
    bound_within(FREED_WITHIN, port, bind, in_use)
}

/// The last attempt is made after the limit: on a busy machine, the search for the holder alone may take longer than
/// that.
fn bound_within<S, E>(
    limit: Duration,
    port: u16,
    mut bind: impl FnMut() -> Result<Option<S>, E>,
    in_use: impl FnOnce(String) -> E,
) -> Result<S, E> {
    let until = Instant::now() + limit;
    loop {
        let late = Instant::now() >= until;
        if let Some(socket) = bind()? {
            return Ok(socket);
        }
        let owner = of(port);
        if !owner.may_go || late {
            return Err(in_use(owner.text));
        }
        thread::sleep(TRIES_EVERY);
    }
}

/// Finds the holder of local UDP port `port`.
fn of(port: u16) -> Owner {
    let inodes = socket_inodes(port);
    let mut owners: Vec<u32> = inodes.iter().filter_map(|inode| process_with_socket(*inode)).collect();
    owners.sort_unstable();
    owners.dedup();
    if !owners.is_empty() {
        let names: Vec<_> =
            owners.iter().map(|pid| format!("process {pid} ({})", process_name(*pid))).collect();
        let text = format!("{} holds it: stop that process first", names.join(" and "));
        return Owner { text, may_go: owners.into_iter().all(is_own_child) };
    }
    let may_go = inodes.is_empty() || !Path::new("/sys/module/rdma_rxe").exists();
    let text = match (inodes.is_empty(), may_go) {
        (true, _) => "its holder is gone by now: try again",
        (false, false) => {
            "no process holds it and the kernel's rdma_rxe is loaded: remove its devices (rdma link show, \
             rdma link delete NAME) or unload it (modprobe -r rdma_rxe)"
        }
        (false, true) => {
            "no process that may be seen from here holds it: look as root (ss -ulpn), in other containers of this \
             network namespace too"
        }
    };
    Owner { text: text.into(), may_go }
}

/// Returns the inodes of UDP sockets bound to `port` in this thread's network namespace.
fn socket_inodes(port: u16) -> Vec<u64> {
    ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().skip(1).filter_map(|l| inode_if_bound(l, port)).collect::<Vec<_>>())
        .collect()
}

/// `  12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  0  0 34567 2 …`
fn inode_if_bound(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let (_, bound) = fields.nth(1)?.rsplit_once(':')?;
    if u16::from_str_radix(bound, 16).ok()? != port {
        return None;
    }
    fields.nth(7)?.parse().ok()
}

/// True for a child of this process, and for a process that has ended.
fn is_own_child(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.is_some_and(|parent| parent.trim().parse() == Ok(std::process::id()))
}

fn process_with_socket(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let holds = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == &wanted[..]);
        if descriptors.flatten().any(holds) {
            return Some(pid);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use super::*;

    /// A child that was just forked has the sockets of its parent.
    #[test]
    fn port_is_bound_after_a_child_let_go() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("an address").port();
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("0.3").stdin(Stdio::from(OwnedFd::from(socket))).spawn().expect("a child");
        // The command has a copy of the socket as well.
        drop(sleep);
        let bind = || Ok::<_, String>(UdpSocket::bind(("127.0.0.1", port)).ok());
        assert!(bind().is_ok_and(|socket| socket.is_none()), "the child holds it");
        let bound = bound_within(Duration::from_secs(20), port, bind, |text| text);
        assert!(bound.is_ok(), "{bound:?}");
        child.wait().expect("its end");
    }

    #[test]
    fn port_freed_during_a_slow_search_is_bound() {
        let mut tries = 0;
        let bind = || {
            tries += 1;
            thread::sleep(Duration::from_millis(2));
            Ok((tries > 1).then_some(tries))
        };
        // No socket has port 0.
        assert_eq!(bound_within(Duration::from_millis(1), 0, bind, |text| text), Ok(2));
    }

    #[test]
    fn the_process_that_holds_a_port_is_named() {
        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let Owner { text: message, may_go } = of(socket.local_addr().unwrap().port());
        assert!(!may_go && message.contains(&format!("process {} (", std::process::id())), "{message}");
    }

    #[test]
    fn a_table_line_gives_the_inode() {
        let line = "  212: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 \
                    40741 2 00000000e3f1c5d2 0";
        assert_eq!(inode_if_bound(line, 4791), Some(40741));
        assert_eq!(inode_if_bound(line, 4792), None);
    }
}
