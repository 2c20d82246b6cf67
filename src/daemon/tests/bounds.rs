//! What a process may have at most, and share with whom.

use std::os::fd::AsFd;

use super::{Quota, nic};
use crate::daemon::guest::file_of;
use crate::remote::message::{Ask, Told};
use crate::shared::Region;
use crate::verbs::FileId;

#[test]
fn arenas_are_counted_however_small_and_another_has_its_own() {
    const ARENAS: u32 = 100;
    let nic = nic(Quota { arenas: ARENAS, ..Quota::default() });
    let (mut greedy, mut other) = (nic.admitted(), nic.admitted());
    (0..ARENAS).for_each(|_| greedy.arena(1));
    let (_region, fd) = Region::to_lend(1).expect("memory");
    let refused = greedy.ask_with(&Ask::Arena { words: 1 }, &[fd.as_fd()]);
    assert!(refused.is_err(), "{refused:?}");
    other.arena(1);
    assert!(matches!(greedy.ask(Ask::Ports), Ok(Told::Ports(_))), "it is served as before");
}

#[test]
fn a_files_domain_is_of_one_user_and_each_file_has_its_own() {
    let file = FileId { device: 0xfd01, inode: 7 };
    assert_eq!(file_of(1000, file), file_of(1000, file));
    assert_ne!(file_of(1000, file), file_of(1001, file));
    assert_ne!(file_of(1000, file), file_of(1000, FileId { inode: 8, ..file }));
    // Who names what another's would be made of gets its own all the same.
    let forged = FileId { device: file_of(1001, file).device, ..file };
    assert_eq!(file_of(1000, forged), file_of(1000, file));
}
