//! Finds processes that hold an interface, in `/proc`, as far as the caller may see.

use std::fs;

use roxie_base::text::process_name;

/// `BPF_MAP_TYPE_XSKMAP` in `include/uapi/linux/bpf.h`.
const XSKMAP: u32 = 17;

/// Returns the processes that hold the BPF program with this id or a link of it, each as `name (pid 1)`.
pub fn of_program(id: u32) -> Vec<String> {
    holders("prog_id", id)
}

/// Returns the other processes that hold an XSKMAP. `/proc` does not identify AF_XDP sockets; a process that steers
/// frames to one holds such a map, as this one does while it opens an interface.
pub(super) fn of_sockets() -> Vec<String> {
    let own = format!("(pid {})", std::process::id());
    holders("map_type", XSKMAP).into_iter().filter(|holder| !holder.ends_with(&own)).collect()
}

/// Returns the holders as one line for an error message.
pub(super) fn describe(holders: &[String]) -> String {
    if holders.is_empty() {
        "no process that is visible from here (another container, a pinned program, or one without them)"
            .to_owned()
    } else {
        holders.join(", ")
    }
}

/// Returns the processes with a descriptor that has the fdinfo line `key: value`.
fn holders(key: &str, value: u32) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let infos = fs::read_dir(entry.path().join("fdinfo")).into_iter().flatten().flatten();
        if infos.flat_map(|info| fs::read_to_string(info.path())).any(|text| has_line(&text, key, value)) {
            names.push(format!("{} (pid {pid})", process_name(pid)));
        }
    }
    names
}

/// True if fdinfo `text` has `key:<white space>value` on a line.
fn has_line(text: &str, key: &str, value: u32) -> bool {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .any(|(k, v)| k == key && v.trim().parse() == Ok(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_matches_by_whole_key_and_number() {
        let text = "pos:\t0\nlink_type:\txdp\nprog_id:\t42\nifindex:\t7\n";
        assert!(has_line(text, "prog_id", 42));
        assert!(!has_line(text, "prog_id", 4));
        assert!(!has_line(text, "id", 42));
        assert!(!has_line(text, "link_type", 42));
    }
}
