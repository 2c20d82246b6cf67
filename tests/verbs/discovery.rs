//! The table of docs/discovery.md agrees with the files that programs see under `roxie run`.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Running, Site, folder, skip};

/// Words of a cell at most.
const WORDS: usize = 40;
/// Paths of the page at least: fewer means that the table is not read any more.
const PATHS: usize = 40;

/// A path of the table, and whether its row says that the path is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    path: String,
    is_there: bool,
}

/// Returns the paths in the first column of the page's first table, for a device of this name on `left`.
///
/// The third column of a row begins with `There` or `Not there`; with another word, as in rows about netlink, the row
/// has no claim. A path without a slash in front is below the device's folder. A path with a placeholder other than
/// NAME and IFACE is left out.
///
/// # Panics
///
/// If a row does not have four cells, or a cell has too many words.
fn claims(page: &str, name: &str) -> Vec<Claim> {
    let is_row = |line: &&str| line.starts_with('|');
    let rows = page.lines().skip_while(|line| !is_row(line)).take_while(is_row).skip(2);
    let mut all = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [paths, _, answer, _] = cells[..] else { panic!("not four cells: {row}") };
        let long = cells.iter().find(|cell| cell.split_whitespace().count() > WORDS);
        assert!(long.is_none(), "more than {WORDS} words: {long:?}");
        let is_there = match answer.split([' ', ':', ',', '.']).next() {
            Some("There") => true,
            Some("Not") => false,
            _ => continue,
        };
        for path in paths.split('`').skip(1).step_by(2) {
            let path = path.replace("NAME", name).replace("IFACE", "left");
            let whole =
                if path.starts_with('/') { path } else { format!("/sys/class/infiniband/{name}/{path}") };
            if !whole.contains("ADDRESS") {
                all.push(Claim { path: whole, is_there });
            }
        }
    }
    all
}

/// Returns the claims that do not hold, for the paths that are present.
fn wrong<'a>(claims: &'a [Claim], present: &[&str]) -> Vec<&'a Claim> {
    claims.iter().filter(|claim| claim.is_there != present.contains(&claim.path.as_str())).collect()
}

#[test]
fn discovery_page_agrees_with_the_view() {
    if skip("discovery_page_agrees_with_the_view", &["sh"]) {
        return;
    }
    let page = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/discovery.md");
    let page = fs::read_to_string(page).unwrap();
    let site = Site::new("discovery");
    for name in ["roxie0", "mlx5_0"] {
        let claims = claims(&page, name);
        assert!(claims.len() >= PATHS, "{} paths found", claims.len());
        let mut command = Command::new(folder().join("roxie"));
        command.args(["run", "--quiet", "--dev", "left", "--port", "udp", "--name", name, "--"]);
        // `left` itself is in sysfs of another namespace, so the link to it leads nowhere here.
        let script = r#"for path; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done"#;
        command.args(["sh", "-c", script, "sh"]).args(claims.iter().map(|claim| &claim.path));
        let seen = Running::start(&site.local, command).finish();
        assert!(seen.status.success(), "{seen:?}");
        let present: Vec<&str> = seen.output.lines().collect();
        assert_eq!(wrong(&claims, &present), Vec::<&Claim>::new());
    }
}

#[test]
fn false_rows_of_the_page_are_found() {
    let page = "| read | by | answer | set |\n| --- | --- | --- | --- |\n\
                | `fw_ver`, `/sys/class/net/IFACE` | a | There: 0.1 | |\n\
                | `device/driver` | b | Not there | c |\n\
                | `/sys/bus/pci/devices/ADDRESS` | b | Not there | |\n\
                | `RDMA_NLDEV_CMD_GET` | b | Answered | |\n\n| another | table |\n";
    let claims = claims(page, "x0");
    let (firmware, driver) = ("/sys/class/infiniband/x0/fw_ver", "/sys/class/infiniband/x0/device/driver");
    let paths: Vec<&str> = claims.iter().map(|claim| &*claim.path).collect();
    assert_eq!(paths, [firmware, "/sys/class/net/left", driver]);
    assert!(wrong(&claims, &[firmware, "/sys/class/net/left"]).is_empty());
    assert_eq!(wrong(&claims, &[firmware]), [&claims[1]], "a file that is not there");
    assert_eq!(wrong(&claims, &[firmware, "/sys/class/net/left", driver]), [&claims[2]], "a file too many");
}
