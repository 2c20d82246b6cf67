//! Nothing outside the exported folder is reached.

use std::fs;
use std::os::unix::fs::symlink;

use roxie_nfs::client::ClientError;
use roxie_nfs::nfs3::{Kind, Status};

use super::Site;
use super::hostile::Bare;

fn status(error: &ClientError) -> Option<Status> {
    if let ClientError::Status { status, .. } = error { Some(*status) } else { None }
}

#[test]
fn parents_end_at_the_folder() {
    let site = Site::new();
    fs::create_dir_all(site.path("a/b")).expect("folders");
    let (mut client, root) = (site.connect(), site.root());
    let own = client.attributes(&root, "/").expect("attributes").id;
    let (above, attributes) = client.lookup(&root, "..", "/..").expect("the folder itself");
    assert_eq!((&above, attributes.id), (&root, own));
    let (a, _) = client.lookup(&root, "a", "/a").expect("a folder");
    let (b, _) = client.lookup(&a, "b", "/a/b").expect("a folder");
    assert_eq!(client.lookup(&b, "..", "").expect("a parent").0, a);
    assert_eq!(client.lookup(&a, "..", "").expect("a parent").0, root);
    assert_eq!(client.lookup(&a, ".", "").expect("itself").0, a);
    // The number of the folder above is not told either.
    let listed = client.list(&root, "/").expect("a listing");
    let above = listed.iter().find(|entry| entry.name == b"..").expect("an entry");
    assert_eq!(above.id, own);
    for name in ["../x", "a/b", "a\0", ""] {
        assert_eq!(
            status(&client.lookup(&root, name, name).expect_err("no name")),
            Some(Status::INVAL),
            "{name:?}"
        );
    }
    assert!(site.mount("/a/../..").is_err() && site.mount("/..").is_err());
    assert_eq!(site.mount("a//./b/").expect("a folder"), b);
}

#[test]
fn symbolic_links_are_shown_and_not_followed() {
    let site = Site::new();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("secret"), b"secret").expect("a file");
    symlink(outside.path(), site.path("folder")).expect("a link");
    symlink(outside.path().join("secret"), site.path("link")).expect("a link");
    site.write("inside", b"inside");
    symlink("inside", site.path("to-inside")).expect("a link");
    let (mut client, root) = (site.connect(), site.root());
    for name in ["folder", "link", "to-inside"] {
        let (link, attributes) = client.lookup(&root, name, name).expect("a link");
        assert_eq!(attributes.kind, Kind::Link, "{name}");
        assert_eq!(status(&client.lookup(&link, "secret", "").expect_err("no folder")), Some(Status::NOTDIR));
        assert!(client.list(&link, name).is_err());
        let read = client.read_file(&link, name, 4096, &mut Vec::new(), |_| {});
        assert_eq!(status(&read.expect_err("no file")), Some(Status::INVAL), "{name}");
    }
    assert!(site.mount("/folder").is_err());
}

#[test]
fn folder_replaced_by_a_link_is_not_entered() {
    let site = Site::new();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("file"), b"secret").expect("a file");
    fs::create_dir(site.path("folder")).expect("a folder");
    site.write("folder/file", b"bytes");
    let (mut client, root) = (site.connect(), site.root());
    let (folder, _) = client.lookup(&root, "folder", "").expect("a folder");
    let (file, _) = client.lookup(&folder, "file", "").expect("a file");
    fs::remove_dir_all(site.path("folder")).expect("a folder");
    symlink(outside.path(), site.path("folder")).expect("a link");
    assert_eq!(status(&client.lookup(&folder, "file", "").expect_err("gone")), Some(Status::STALE));
    assert!(client.attributes(&file, "").is_err());
    assert!(client.read_file(&file, "", 4096, &mut Vec::new(), |_| {}).is_err());
}

#[test]
fn pipes_do_not_block_the_server() {
    let site = Site::new();
    let pipe = site.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o644.into(), 0).expect("a pipe");
    let (mut client, root) = (site.connect(), site.root());
    let (pipe, attributes) = client.lookup(&root, "pipe", "").expect("a pipe");
    assert_eq!(attributes.kind, Kind::Pipe);
    assert_eq!(Bare::new(&site).read(&pipe, 4096), Status::INVAL);
    assert!(client.attributes(&root, "/").is_ok());
}
