//! NFS over RDMA in a capture: calls with their chunks, their data and their replies have names.

use super::*;

/// Returns the capture of a listing of a folder, or of reading a file of 100 KiB in it.
fn captured(command: &str, path: &str) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let (folder, file) = (place.path().join("folder"), place.path().join("nfs.pcapng"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), vec![7; 100 << 10]).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_roxie"));
    run.args(["nfs", command, path, "--port", "memory", "--export"]).arg(&folder);
    run.arg("--capture").arg(&file);
    let output = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output.spawn().unwrap().output_in_time();
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::read(file).unwrap()
}

/// Returns what each line names behind its ICRC, with the XIDs as numbers from 0 on.
fn names(lines: &str) -> Vec<String> {
    let name = |line: &str| Some(line.split_once("icrc ok ")?.1.split(" #").next()?.to_owned());
    let names: Vec<String> = lines.lines().filter_map(name).filter(|name| name.contains("xid 0x")).collect();
    let xid = |name: &str| {
        let digits = name.split_once("xid 0x").unwrap().1;
        let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
        digits[..end].to_owned()
    };
    let first = u32::from_str_radix(&xid(&names[0]), 16).unwrap();
    let counted = |name: &String| {
        let xid = xid(name);
        let number = u32::from_str_radix(&xid, 16).unwrap().wrapping_sub(first);
        name.replace(&format!("xid 0x{xid}"), &format!("xid {number}"))
    };
    names.iter().map(counted).collect()
}

#[test]
fn nfs_calls_chunks_and_replies_are_named() {
    let text = String::from_utf8(decode(&[], &captured("get", "/file")).stdout).unwrap();
    let names = names(&text);
    let begin = [
        "RPC NFS3 NULL xid 0",
        "RPC NFS3 NULL xid 0: success",
        "RPC NFS3 LOOKUP xid 1 \"file\"",
        "RPC NFS3 LOOKUP xid 1: success",
        "RPC NFS3 FSINFO xid 2",
        "RPC NFS3 FSINFO xid 2: success",
        "RPC NFS3 GETATTR xid 3",
        "RPC NFS3 GETATTR xid 3: success",
    ];
    assert_eq!(names[..begin.len()], begin);
    let mut rest = names[begin.len()..].to_vec();
    rest.sort();
    let read = [
        "RPC NFS3 READ xid 4, write chunk 64 KiB, offset 0",
        "RPC NFS3 READ xid 4: success, write chunk 64 KiB, R_Key invalidated",
        "RPC NFS3 READ xid 5, write chunk 36 KiB, offset 65536",
        "RPC NFS3 READ xid 5: success, write chunk 36 KiB, R_Key invalidated",
        "WRITE of NFS3 READ data, xid 4",
        "WRITE of NFS3 READ data, xid 5",
    ];
    assert_eq!(rest, read);
    let ladder = String::from_utf8(decode(&["--ladder"], &captured("ls", "/")).stdout).unwrap();
    assert!(ladder.contains("RPC NFS3 READDIRPLUS xid 0x") && ladder.contains("reply chunk"), "{ladder}");
}

#[test]
fn nfs_fields_are_in_json_and_full_text() {
    let capture = captured("get", "/file");
    let rows = rows(&decode(&["--json"], &capture));
    let lines: Vec<_> =
        rows.iter().filter(|row| row["nfs"]["call"] == "NFS3 READ").map(|row| &row["nfs"]).collect();
    let of = |kind: &str| lines.iter().filter(|nfs| nfs["kind"] == kind).count();
    assert_eq!((of("call"), of("data"), of("reply")), (2, 2, 2));
    let call = lines.iter().find(|nfs| nfs["kind"] == "call").unwrap();
    assert_eq!((&call["type"], &call["write_chunk_bytes"][0]), (&"RDMA_MSG".into(), &65536.into()));
    let reply = lines.iter().find(|nfs| nfs["kind"] == "reply").unwrap();
    assert_eq!((&reply["status"], &reply["invalidates"]), (&0.into(), &true.into()));
    let text = String::from_utf8(decode(&["-v"], &capture).stdout).unwrap();
    assert!(text.contains(" version 1 credits 16 RDMA_MSG, write [0x"), "{text}");
    assert!(text.contains("\n  RPC call NFS3 READ, offset 0\n"), "{text}");
    assert!(text.contains("\n  RPC reply NFS3 READ: success\n"), "{text}");
}

/// Bytes of a call on a connection without a REQ are a program's own.
#[test]
fn calls_without_a_request_are_not_named() {
    let words = [7u32, 1, 32, 0, 0, 0, 0, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    let message: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    let frame = frame(Opcode::RC_SEND_ONLY, 1, &message, 7);
    let rows = rows(&decode(&["--json"], &pcap(1, false, false, &[(&frame, frame.len())])));
    assert_eq!(rows.len(), 1);
    assert!(rows[0].get("nfs").is_none(), "{rows:?}");
}
