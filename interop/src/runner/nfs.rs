//! Rows of NFS over RDMA: Roxie's client on the kernel's nfsd, and the kernel's client on Roxie's server.
//!
//! The guest's end is the script `interop/guest/nfs`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use interop::end::{End, Ended, Local};
use interop::error::Error;
use interop::guest::output_folder;
use interop::peer::Peer;
use interop::report::Outcome;
use interop::rows::{Impairment, Row, Side};

use super::guest_script::{self, ENDS_WITHIN, Failed, md5_sum, outcome, pattern, words};
use super::programs::LISTENS_WITHIN;

/// Port of NFS over RDMA.
const SERVICE: &str = "20049";
/// TCP port of Roxie's MOUNT. The kernel's own server has 20048.
const MOUNT: u16 = 20048;
/// Lengths of files: nothing, the padding of XDR, around what a message and a transfer carry, and the largest of a row
/// without losses.
const LENGTHS: [usize; 11] = [0, 1, 3, 4, 3800, 4096, 65_535, 65_536, 65_537, 1 << 20, 64 << 20];
/// Longest file of a row with losses, each of which costs the kernel a retransmission timeout.
const LONGEST_UNDER_LOSS: usize = 1 << 20;

/// Runs a row of either side.
pub(super) fn files(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let played = match row.requester {
        Side::Peer => kernel_is_client(row, roxie, peer),
        Side::Roxie => kernel_is_server(row, roxie, peer),
    };
    outcome(played, roxie)
}

fn lengths(row: &Row) -> Vec<usize> {
    let most = if row.fault() == Impairment::None { usize::MAX } else { LONGEST_UNDER_LOSS };
    LENGTHS.into_iter().filter(|length| *length <= most).collect()
}

/// Runs the guest's script to its end.
fn script(peer: &mut Peer, line: &str) -> Result<Ended, Failed> {
    guest_script::script(peer, "roxie-nfs", line)
}

/// Returns the length of a file and its MD5 sum, as the guest's script prints them.
fn sum(path: &Path) -> Result<String, Failed> {
    let length = fs::metadata(path).map_err(Error::file(path))?.len();
    Ok(format!("{length} {}", md5_sum(path)?))
}

/// The kernel mounts a folder of Roxie's, reads its files, and can change nothing. Then the server ends by SIGTERM.
fn kernel_is_client(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let folder = output_folder().join("nfs-served");
    let _ = fs::remove_dir_all(&folder);
    let below = folder.join("below/deep");
    fs::create_dir_all(&below).map_err(Error::file(&below))?;
    let mut expected = Vec::new();
    let mut add = |name: String, length| {
        let path = folder.join(&name);
        fs::write(&path, pattern(length)).map_err(Error::file(&path))?;
        expected.push(format!("{} ./{name}", sum(&path)?));
        Ok::<(), Failed>(())
    };
    for length in lengths(row) {
        add(format!("file-{length}"), length)?;
    }
    // More names than one reply carries.
    for n in 0..300 {
        add(format!("below/deep/a-name-that-makes-a-listing-long-{n:04}"), n % 5)?;
    }
    expected.sort_by(|one, other| name_of(one).cmp(name_of(other)));
    let here = roxie.address(row.family)?;
    roxie.command(["nfs", "serve"], &words(&format!("{} --mount-port {MOUNT}", folder.display())))?;
    // MOUNT's listener is the last thing that the server opens.
    if !roxie.wait_for_listener(MOUNT, LISTENS_WITHIN)? {
        return Err(Failed::Program("the server does not start", roxie.wait(Duration::ZERO)?));
    }
    script(peer, &format!("mount {here} {SERVICE} {MOUNT} /"))?;
    let read = script(peer, "sums");
    let refused = read.is_ok().then(|| script(peer, "refuse"));
    let departed = script(peer, "leave");
    let read = read?.output;
    refused.transpose()?;
    departed?;
    let mut read: Vec<&str> = read.lines().collect();
    read.sort_by(|one, other| name_of(one).cmp(name_of(other)));
    let differs = expected.iter().zip(&read).find(|(expected, read)| expected != *read);
    if expected.len() != read.len() || differs.is_some() {
        let (there, here) = (read.len(), expected.len());
        return Err(Failed::Other(format!(
            "{there} files there of {here}, the first that differs: {differs:?}"
        )));
    }
    roxie.terminate()?;
    let server = roxie.wait(ENDS_WITHIN)?;
    if server.code != Some(0) {
        return Err(Failed::Program("the server", server));
    }
    fs::remove_dir_all(&folder).map_err(Error::file(&folder))?;
    Ok(())
}

fn name_of(line: &str) -> &str {
    line.rsplit(' ').next().unwrap_or(line)
}

/// Roxie writes files to the kernel's server and reads them back. The kernel sums up what was written, and makes what
/// is read.
fn kernel_is_server(row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    script(peer, &format!("serve {SERVICE}"))?;
    let there = peer.address(row.family)?.to_string();
    let there = if there.contains(':') { format!("[{there}]") } else { there };
    let result = use_kernel_server(row, &there, roxie, peer);
    // The next row finds no server.
    let stopped = script(peer, "stop");
    result.and(stopped.map(drop))
}

fn use_kernel_server(row: &Row, there: &str, roxie: &mut dyn Local, peer: &mut Peer) -> Result<(), Failed> {
    let folder = output_folder();
    let (sent, received) = (folder.join("nfs-sent"), folder.join("nfs-received"));
    let of = |path: &Path| path.display().to_string();
    for length in lengths(row) {
        fs::write(&sent, pattern(length)).map_err(Error::file(&sent))?;
        let at = format!("{there}:/export/file-{length}");
        client(roxie, "put", &format!("{at} -i {}", of(&sent)), 0)?;
        same(&sent, &format!("file-{length}"), peer, "written")?;
        // Other bytes than were written, so that nothing of them stands in for what is read.
        script(peer, &format!("fill file-{length} {length}"))?;
        client(roxie, "get", &format!("{at} -o {}", of(&received)), 0)?;
        same(&received, &format!("file-{length}"), peer, "read")?;
    }
    // A shorter file in place of a longer one, in calls of an odd length.
    fs::write(&sent, pattern(5000)).map_err(Error::file(&sent))?;
    let at = format!("{there}:/export/file-1048576");
    client(roxie, "put", &format!("{at} -s 999 -i {}", of(&sent)), 0)?;
    same(&sent, "file-1048576", peer, "written in place")?;
    client(roxie, "get", &format!("{at} -s 777 -o {}", of(&received)), 0)?;
    same(&received, "file-1048576", peer, "read in parts")?;
    let listed = client(roxie, "ls", &format!("{there}:/export"), 0)?;
    if lengths(row).iter().any(|length| !listed.output.contains(&format!(" file-{length}\n"))) {
        return Err(Failed::Program("a file is not listed", listed));
    }
    let absent = client(roxie, "get", &format!("{there}:/export/absent -o {}", of(&received)), 4)?;
    if !absent.output.contains("/export/absent") || !absent.output.contains("NFS3ERR_NOENT") {
        return Err(Failed::Program("a file that does not exist", absent));
    }
    let refused = client(roxie, "ls", &format!("{there}:/elsewhere"), 4)?;
    if !refused.output.contains("/elsewhere: MNT3ERR_") {
        return Err(Failed::Program("a folder that is not exported", refused));
    }
    for path in [&sent, &received] {
        fs::remove_file(path).map_err(Error::file(path))?;
    }
    Ok(())
}

/// Runs a client, which must end with this code.
fn client(roxie: &mut dyn Local, command: &str, line: &str, code: i32) -> Result<Ended, Failed> {
    guest_script::command(roxie, ["nfs", command], line, code)
}

/// Compares a file with one of the kernel's, by length and MD5 sum.
fn same(here: &Path, name: &str, peer: &mut Peer, what: &str) -> Result<(), Failed> {
    let there = script(peer, &format!("sum {name}"))?.output;
    let here = sum(here)?;
    if here == there.trim() {
        Ok(())
    } else {
        Err(Failed::Other(format!("{name}: {what} bytes are others: {here} here, {there} there")))
    }
}
