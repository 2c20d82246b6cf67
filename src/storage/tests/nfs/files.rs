//! Files of all lengths, listings, and statuses of calls that fail.

use std::fs;

use roxie_nfs::client::{Client, ClientError};
use roxie_nfs::nfs3::{FileHandle, Kind, Status};
use roxie_nfs::server::ServerEvent;

use super::{Site, pattern};

fn get(client: &mut Client, root: &FileHandle, name: &str, transfer: u32) -> Result<Vec<u8>, ClientError> {
    let (file, _) = client.lookup(root, name, name)?;
    let (mut bytes, mut seen) = (Vec::new(), 0);
    let copied = client.read_file(&file, name, transfer, &mut bytes, |now| {
        assert!(now >= seen, "{now} bytes after {seen}");
        seen = now;
    })?;
    assert_eq!((copied, seen), (bytes.len() as u64, bytes.len() as u64));
    Ok(bytes)
}

fn status(error: &ClientError) -> Option<Status> {
    if let ClientError::Status { status, .. } = error { Some(*status) } else { None }
}

#[test]
fn files_of_all_lengths_are_read() {
    let site = Site::new();
    // Around what an inline reply carries (4096 bytes with 156 in front of the data), a page, and a transfer.
    let lengths =
        [0, 1, 3, 4, 5, 3935, 3936, 3937, 3940, 3944, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20];
    let (mut client, root) = (site.connect(), site.root());
    for length in lengths {
        site.write("file", &pattern(length, length));
        let read = get(&mut client, &root, "file", 64 << 10).expect("a file");
        assert!(read == pattern(length, length), "{length} bytes");
    }
    client.close().expect("the device works");
    site.serves(0);
}

#[test]
fn large_file_is_read_in_any_transfers() {
    let site = Site::new();
    let bytes = pattern(1, 64 << 20);
    site.write("file", &bytes);
    let (mut client, root) = (site.connect(), site.root());
    for transfer in [64 << 10, 128 << 10] {
        assert!(
            get(&mut client, &root, "file", transfer).expect("a file") == bytes,
            "{transfer} bytes a call"
        );
    }
    // Longer than the file's end, and of an odd length.
    site.write("file", &bytes[..100_001]);
    for transfer in [999, 4001, u32::MAX] {
        assert!(
            get(&mut client, &root, "file", transfer).expect("a file") == bytes[..100_001],
            "{transfer} bytes a call"
        );
    }
}

#[test]
fn changes_are_refused_with_read_only() {
    let site = Site::new();
    site.write("file", b"as it was");
    let (mut client, root) = (site.connect(), site.root());
    let error = client.create(&root, "new", 0o644, "/new").expect_err("read-only");
    assert_eq!(error.to_string(), "/new: CREATE: NFS3ERR_ROFS (read-only file system)");
    let (file, _) = client.lookup(&root, "file", "/file").expect("a file");
    // Inline, and in a read chunk, which the server does not fetch.
    for length in [10, 100_000] {
        let written = client.write_file(&file, "/file", 64 << 10, &mut &pattern(0, length)[..], |_| {});
        assert_eq!(status(&written.expect_err("read-only")), Some(Status::ROFS), "{length} bytes");
        client = site.connect();
    }
    assert_eq!(status(&client.commit(&file, "/file").expect_err("read-only")), Some(Status::ROFS));
    assert_eq!(fs::read(site.path("file")).expect("a file"), b"as it was");
    assert!(!site.path("new").exists());
    let events = site.events.lock().expect("no panic");
    assert!(events.iter().any(|event| matches!(event, ServerEvent::Refused { procedure: "CREATE", .. })));
}

#[test]
fn listings_of_many_names_are_whole() {
    let site = Site::new();
    fs::create_dir(site.path("folder")).expect("a folder");
    // Several replies of 32 KiB.
    let names: Vec<String> = (0..1000).map(|n| format!("folder/a-name-of-some-length-{n:04}")).collect();
    names.iter().for_each(|name| site.write(name, name.as_bytes()));
    let (mut client, root) = (site.connect(), site.root());
    let (folder, attributes) = client.lookup(&root, "folder", "/folder").expect("a folder");
    assert_eq!(attributes.kind, Kind::Folder);
    let mut listed = client.list(&folder, "/folder").expect("a listing");
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!((&listed[0].name[..], &listed[1].name[..]), (&b"."[..], &b".."[..]));
    assert_eq!(listed.len(), 1002);
    for (entry, name) in listed[2..].iter().zip(&names) {
        assert_eq!(format!("folder/{}", String::from_utf8_lossy(&entry.name)), *name);
        assert_eq!(entry.attributes.expect("attributes").size, name.len() as u64);
    }
    // A handle of a listing names the file.
    let handle = listed[5].handle.as_ref().expect("a handle");
    assert_eq!(client.attributes(handle, "a file").expect("attributes").id, listed[5].id);
}

#[test]
fn absent_names_and_wrong_kinds_are_told() {
    let site = Site::new();
    site.write("file", b"bytes");
    let (mut client, root) = (site.connect(), site.root());
    let error = client.lookup(&root, "absent", "/absent").expect_err("absent");
    assert_eq!(error.to_string(), "/absent: LOOKUP: NFS3ERR_NOENT (no such file or folder)");
    let (file, _) = client.lookup(&root, "file", "/file").expect("a file");
    assert_eq!(status(&client.lookup(&file, "name", "").expect_err("no folder")), Some(Status::NOTDIR));
    assert_eq!(status(&client.list(&file, "").expect_err("no folder")), Some(Status::NOTDIR));
    let read = client.read_file(&root, "/", 4096, &mut Vec::new(), |_| {});
    assert_eq!(status(&read.expect_err("a folder")), Some(Status::ISDIR));
    let long = "x".repeat(256);
    assert_eq!(status(&client.lookup(&root, &long, "").expect_err("too long")), Some(Status::NAMETOOLONG));
    assert!(matches!(site.mount("/absent"), Err(ClientError::Export { .. })));
    let error = site.mount("/file").expect_err("no folder").to_string();
    assert_eq!(error, "/file: MNT3ERR_NOTDIR (not a folder)");
}

#[test]
fn removed_files_have_stale_handles() {
    let mut site = Site::new();
    site.write("file", b"first");
    let (mut client, root) = (site.connect(), site.root());
    let (file, _) = client.lookup(&root, "file", "/file").expect("a file");
    fs::rename(site.path("file"), site.path("moved")).expect("a name");
    assert_eq!(status(&client.attributes(&file, "").expect_err("moved")), Some(Status::STALE));
    // Another file in its place is not read for it.
    site.write("file", b"other");
    assert_eq!(status(&client.attributes(&file, "").expect_err("another")), Some(Status::STALE));
    client.close().expect("the device works");
    // A server that is started again knows no handle of the former.
    site.server = None;
    site.start();
    let mut client = site.connect();
    assert_eq!(status(&client.attributes(&root, "").expect_err("of the former")), Some(Status::STALE));
}

#[test]
fn many_clients_read_at_once() {
    let site = Site::new();
    let bytes = pattern(3, 3 << 20);
    site.write("file", &bytes);
    let root = site.root();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = site.connect();
                assert!(get(&mut client, &root, "file", 64 << 10).expect("a file") == bytes);
                client.close().expect("the device works");
            });
        }
    });
    site.serves(0);
}
